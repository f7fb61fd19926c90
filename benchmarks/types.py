"""What a value of each type costs: to send, to read into Arrow, and to write to Parquet.

``python -m benchmarks.types`` fills one table a type on a private PostgreSQL (or ``BENCH_DSN``) and reads
it with the product's own reader. Client figures are CPU time of this process, the server's that of its
backend, each the least of several rounds; ``--document`` puts the table into docs/performance.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow as pa

from benchmarks.figures import put_between
from benchmarks.server import server
from rivet_dagster.engine.sources.postgres.catalog import Relation, describe_table
from rivet_dagster.engine.sources.postgres.connect import PINNED
from rivet_dagster.engine.sources.postgres.decoder import CopyDecoder
from rivet_dagster.engine.sources.postgres.overrides import ColumnRules
from rivet_dagster.engine.sources.postgres.quote import quote_literal
from rivet_dagster.engine.write.base import WriteOptions
from rivet_dagster.engine.write.parquet import ParquetPartWriter

DOCUMENT: Final = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
MARKERS: Final = ("<!-- types: begin -->", "<!-- types: end -->")

Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """A column type and an expression for the value of row ``g``. declared: an override.

    shown: its name in the table, where that is not the type's.
    """

    type: str
    value: str
    declared: str | None = None
    shown: str = ""

    @property
    def label(self) -> str:
        return f"{self.type} as {self.declared}" if self.declared else self.shown or self.type


#: A number of up to nine digits without a pattern that a codec could find.
_DIGITS: Final = "(hashint8(g) & 134217727)"
_AT: Final = f"timestamp '2020-01-01' + g * interval '1.2 s' + {_DIGITS} * interval '1 us'"
_DOCUMENT: Final = "jsonb_build_object('user', g, 'tags', jsonb_build_array('a', g % 10), 'x', g * 0.5)"

KINDS: Final = (
    Kind("boolean", f"{_DIGITS} % 3 = 0"),
    Kind("smallint", f"{_DIGITS} % 30000"),
    Kind("integer", _DIGITS),
    Kind("bigint", f"{_DIGITS} * 1000::bigint"),
    Kind("oid", _DIGITS),
    Kind("real", f"{_DIGITS} / 7.0"),
    Kind("double precision", f"{_DIGITS} / 7.0"),
    Kind("numeric(12,2)", f"{_DIGITS} / 100.0"),
    Kind("numeric(38,10)", f"{_DIGITS} * 1234567890123.0000000001"),
    Kind("numeric(60,30)", f"{_DIGITS} * 1234567890123.000000000000000001"),
    Kind("numeric(60,30)", f"{_DIGITS} * 1234567890123.000000000000000001", "decimal(60,30)"),
    Kind("numeric", f"{_DIGITS} / 100.0"),
    Kind("money", f"({_DIGITS} / 100.0)::money"),
    Kind("date", f"date '1970-01-01' + {_DIGITS} % 20000"),
    Kind("timestamp", _AT),
    Kind("timestamp", _AT, "timestamp_ns"),
    Kind("timestamptz", f"({_AT})::timestamptz"),
    Kind("time", f"({_AT})::time"),
    Kind("timetz", f"({_AT})::timestamptz::timetz"),
    Kind("interval", "g * interval '1 day 0.000001 s'"),
    Kind("uuid", "md5(g::text)::uuid"),
    Kind("text", "'name_' || g", shown="text of 11 bytes"),
    Kind("text", "md5(g::text) || md5((g + 1)::text)", shown="text of 64 bytes"),
    Kind("char(10)", "'k' || g % 1000"),
    Kind("mood", "(array['sad', 'ok', 'happy'])[1 + g % 3]::mood", shown="an enum"),
    Kind("bytea", "decode(md5(g::text), 'hex')"),
    Kind("json", f"({_DOCUMENT})::json"),
    Kind("jsonb", _DOCUMENT),
    Kind("inet", "'10.0.0.0'::inet + g"),
    Kind("int4range", "int4range(g, g + 10)"),
    Kind("bit(16)", "(g % 65536)::bit(16)"),
    Kind("point", "point(g, g * 0.5)"),
    Kind("tsvector", "to_tsvector('simple', 'word' || g || ' other')"),
    Kind("pair", "row(g, 'x' || g)::pair", shown="a composite type"),
    Kind("int[]", "array[g, g + 1, g + 2, NULL, g]"),
    Kind("text[]", "array['a' || g, NULL, 'c']"),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Nanoseconds a value; bytes of the Parquet file a value."""

    label: str
    file: str
    copy: float
    read: float
    write: float
    bytes: float


def backend_cpu(pid: int) -> int:
    """CPU nanoseconds of a server process on this machine."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def fill(conn: Connection, kind: Kind, rows: int) -> Relation:
    conn.execute(f"DROP TABLE IF EXISTS typed; CREATE UNLOGGED TABLE typed (v {kind.type} NOT NULL)".encode())
    conn.execute(f"INSERT INTO typed SELECT {kind.value} FROM generate_series(1, {rows}) g".encode())
    conn.execute("VACUUM (ANALYZE, FREEZE) typed")
    rules = ColumnRules({"v": kind.declared} if kind.declared else {})
    return describe_table(conn, None, "typed", overrides=rules.overrides)


def read(conn: Connection, relation: Relation) -> tuple[list[pa.RecordBatch], int, int]:
    """(batches, CPU ns here, CPU ns of the server) of one COPY into Arrow."""
    statement = (
        f"COPY (SELECT {relation.columns[0].select} FROM {relation.sql}) TO STDOUT (FORMAT BINARY)".encode()
    )
    decoder = CopyDecoder(relation.columns)
    with conn.transaction():
        for name, value in PINNED.items():
            conn.execute(f"SET LOCAL {name} = {quote_literal(value)}".encode())
        before = backend_cpu(conn.info.backend_pid), time.process_time_ns()
        batches = list(decoder.copy(conn.pgconn, statement))
        after = time.process_time_ns(), backend_cpu(conn.info.backend_pid)
    last = decoder.flush()
    return [*batches, *([last] if last is not None else [])], after[0] - before[1], after[1] - before[0]


def write(path: Path, relation: Relation, batches: list[pa.RecordBatch], level: int) -> int:
    """CPU ns of writing a Parquet part."""
    options = WriteOptions("parquet", "zstd", level, 131_072, 16 << 20)
    began = time.process_time_ns()
    writer = ParquetPartWriter(path, relation.columns, options)
    for batch in batches:
        writer.write(batch)
    writer.close()
    return time.process_time_ns() - began


def cost(conn: Connection, kind: Kind, args: argparse.Namespace, folder: Path) -> Cost:
    relation = fill(conn, kind, args.rows)
    path = folder / "typed.parquet"
    copies, reads, writes = [], [], []
    for _ in range(args.rounds):
        batches, client, backend = read(conn, relation)
        if (found := sum(b.num_rows for b in batches)) != args.rows:
            raise SystemExit(f"{kind.label}: {found} rows of {args.rows}")
        reads.append(client)
        copies.append(backend)
        writes.append(write(path, relation, batches, args.level))
    figures = (min(copies), min(reads), min(writes), path.stat().st_size)
    return Cost(kind.label, str(relation.columns[0].arrow), *(figure / args.rows for figure in figures))


def table(costs: list[Cost]) -> list[str]:
    lines = ["| type | in the file | server | read | write | bytes |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {c.label} | `{c.file}` | {c.copy:.0f} | {c.read:.0f} | {c.write:.0f} | {c.bytes:.1f} |"
        for c in costs
    ]
    return lines


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--level", type=int, default=3, help="of zstd")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "rivet-dagster-bench")
    parser.add_argument("--document", action="store_true", help="put the table into docs/performance.md")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    args.work.chmod(0o755)
    with server(args.work) as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "DROP TYPE IF EXISTS mood, pair CASCADE; CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');"
            "CREATE TYPE pair AS (a int, b text)"
        )
        with tempfile.TemporaryDirectory(dir=args.work) as folder:
            costs = []
            for kind in KINDS:
                costs.append(cost(conn, kind, args, Path(folder)))
                print(table(costs)[-1], flush=True)
        conn.execute("DROP TABLE typed; DROP TYPE mood, pair")
    if args.document:
        heading = (
            f"CPU nanoseconds a value, the least of {args.rounds} rounds over {args.rows:,} values, one "
            f"column a table; bytes of Parquet at zstd {args.level}; load {os.getloadavg()[0]:.1f}."
        )
        put_between(DOCUMENT, MARKERS, "\n".join([heading, "", *table(costs)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
