"""Read a table as the product does, and show each Arrow value as the server's oracles show it."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa

from rivet_dagster.engine.sources.postgres.catalog import describe_table
from rivet_dagster.engine.sources.postgres.connect import PINNED
from rivet_dagster.engine.sources.postgres.decoder import CopyDecoder
from rivet_dagster.engine.sources.postgres.quote import quote_ident, quote_literal
from rivet_dagster.engine.types.decision import Column
from tests.golden.postgres_values import EXTENSIONS

Connection = psycopg.Connection[tuple[Any, ...]]


def create_extensions(connection: Connection) -> None:
    """Those of ``EXTENSIONS`` that the server has."""
    found = connection.execute("SELECT name FROM pg_available_extensions")
    for name in {row[0] for row in found} & {*EXTENSIONS}:
        connection.execute(f"CREATE EXTENSION IF NOT EXISTS {name} CASCADE".encode())


def pin(connection: Connection) -> None:
    """The session settings of a read, for the transaction that is open."""
    for name, value in PINNED.items():
        connection.execute(f"SET LOCAL {name} = {quote_literal(value)}".encode())


def read_table(
    connection: Connection, schema: str, table: str, order: str = "id"
) -> tuple[tuple[Column, ...], pa.Table]:
    """Columns and rows of a table, through the catalog, COPY and the kernel."""
    relation = describe_table(connection, schema, table)
    decoder = CopyDecoder(relation.columns)
    select = ", ".join(c.select for c in relation.columns)
    with connection.transaction():
        pin(connection)
        query = f"SELECT {select} FROM {relation.sql} ORDER BY {quote_ident(order)}"
        batches = list(decoder.copy(connection.pgconn, f"COPY ({query}) TO STDOUT (FORMAT BINARY)".encode()))
    last = decoder.flush()
    return relation.columns, pa.Table.from_batches(
        [*batches, *([last] if last is not None else [])], decoder.schema
    )


def shown(array: pa.ChunkedArray) -> list[Any]:
    """Each value as text (None for NULL, a list for a list), without going through Python's datetime."""
    return [value for chunk in array.chunks for value in _shown(chunk)]


def _shown(array: pa.Array) -> list[Any]:
    kind = array.type
    if pa.types.is_list(kind):
        return [_shown(v.values) if v.is_valid else None for v in array]
    if pa.types.is_floating(kind):
        return list(array.to_pylist())
    if isinstance(array, pa.ExtensionArray) and kind.extension_name != "arrow.uuid":
        array = array.storage
    elif pa.types.is_temporal(kind):
        array = array.view(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    return [None if v is None else _render(v) for v in array.to_pylist()]


def _render(value: Any) -> str:
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, bytes):
        return value.hex()
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def same(kind: pa.DataType, got: Any, want: Any) -> bool:
    """Equal bit for bit; floats are compared by their bits, NaN with any NaN."""
    if isinstance(got, list) and isinstance(want, list):
        item = kind.value_type if pa.types.is_list(kind) else kind
        return len(got) == len(want) and all(same(item, g, w) for g, w in zip(got, want, strict=True))
    if isinstance(got, float) and isinstance(want, str):
        code = "<f" if pa.types.is_float32(kind) else "<d"
        exact = float(want)
        return (math.isnan(got) and math.isnan(exact)) or struct.pack(code, got) == struct.pack(code, exact)
    return bool(got == want)
