"""How the peers that hand us Arrow batches write Parquet: the encodings that suit the columns, one codec.

A peer is given the same choices that our own writer makes (few distinct values: dictionary; numbers
and times: delta), so that a difference is the reading and not the writer's settings.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP = 65_536
TEXT_DICTIONARY = 5_000
NUMBER_DICTIONARY = 64


@dataclass(frozen=True)
class Task:
    """One table to read: where it is, where it goes, the level of zstd, and a key if the tool wants one."""

    dsn: str
    table: str
    out: Path
    level: int
    key: str


def task(description: str | None) -> Task:
    """The task of the command line: DSN TABLE OUT LEVEL [KEY]."""
    parser = argparse.ArgumentParser(description=description)
    for name in ("dsn", "table", "out", "level"):
        parser.add_argument(name)
    parser.add_argument("key", nargs="?", default="")
    given = parser.parse_args()
    return Task(given.dsn, given.table, Path(given.out), int(given.level), given.key)


def distinct(dsn: str, table: str) -> dict[str, float]:
    """Columns with a known, fixed number of distinct values."""
    with psycopg.connect(dsn) as conn:
        rows = conn.execute(
            "select attname::text, n_distinct from pg_stats where tablename = %s and n_distinct > 0", (table,)
        ).fetchall()
    return {str(name): float(count) for name, count in rows}


def writer(todo: Task, schema: pa.Schema, index: int = 0) -> pq.ParquetWriter:
    """A Parquet file of ``schema`` with the encodings above."""
    counts = distinct(todo.dsn, todo.table)
    dictionary: list[str] = []
    encoding: dict[str, str] = {}
    for column in schema:
        text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        if pa.types.is_boolean(column.type):
            continue
        if counts.get(column.name, float("inf")) <= (TEXT_DICTIONARY if text else NUMBER_DICTIONARY):
            dictionary.append(column.name)
        elif packs(column.type):
            encoding[column.name] = "DELTA_BINARY_PACKED"
    return pq.ParquetWriter(
        todo.out / f"part-{index:05d}.parquet",
        schema,
        compression="zstd",
        compression_level=todo.level,
        use_dictionary=dictionary or False,
        column_encoding=encoding or None,
        store_decimal_as_integer=True,
    )


def packs(kind: pa.DataType) -> bool:
    """Whether the column's Parquet form is an integer."""
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= 18)
    return bool(pa.types.is_integer(kind) or pa.types.is_temporal(kind))


def regrouped(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterable[pa.Table]:
    """The batches gathered to row groups of about ``ROW_GROUP`` rows."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= ROW_GROUP:
            yield pa.Table.from_batches(held, schema)
            held, rows = [], 0
    if held:
        yield pa.Table.from_batches(held, schema)
