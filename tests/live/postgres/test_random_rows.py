"""Random rows of every kind of type, by every mode and format, against the server and two readers."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rivet_dagster.engine.sources.postgres.quote import quote_ident
from rivet_dagster.engine.verify.part_reader import csv_batches
from tests.golden.postgres_values import SCALARS
from tests.golden.read_back import pin, same, shown
from tests.services.exporting import Exporter
from tests.services.postgres import TestDatabase

Strategy = st.SearchStrategy[Any]

TEXT: Final = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=4,
)
DATETIMES: Final = st.datetimes()
#: as far as nanoseconds reach, in milliseconds
NEAR: Final = st.datetimes(datetime(1680, 1, 1), datetime(2261, 12, 31))


def whole(low: int, high: int) -> Strategy:
    return st.integers(low, high).map(str)


def places(digits: int, scale: int) -> Strategy:
    most = 10**digits - 1
    return st.integers(-most, most).map(lambda n: f"{n}e-{scale}")


def floats(width: Literal[32, 64]) -> Strategy:
    return st.floats(width=width).map(
        lambda f: "NaN" if math.isnan(f) else repr(f).replace("inf", "Infinity")
    )


INTERVALS: Final = st.tuples(whole(-(10**6), 10**6), whole(-(10**6), 10**6), whole(-(10**15), 10**15)).map(
    lambda p: f"{p[0]} mons {p[1]} days {p[2]} microseconds"
)
#: type -> its values as text, or as a list of texts
KINDS: Final[dict[str, Strategy]] = {
    "boolean": st.sampled_from("tf"),
    "smallint": whole(-(2**15), 2**15 - 1),
    "integer": whole(-(2**31), 2**31 - 1),
    "bigint": whole(-(2**63), 2**63 - 1),
    "oid": whole(0, 2**32 - 1),
    "real": floats(32),
    "double precision": floats(64),
    "numeric(10,2)": places(10, 2),
    "numeric(38,19)": places(38, 19),
    "numeric(60,30)": places(60, 30),
    "numeric": st.one_of(places(60, 40), st.sampled_from(["NaN", "Infinity", "-Infinity", "1e200"])),
    "money": st.decimals(-(10**15), 10**15, places=2).map(str),
    "date": st.dates().map(str),
    "timestamp": DATETIMES.map(str),
    "timestamp(3)": NEAR.map(str),
    "timestamptz": DATETIMES.map(lambda at: f"{at}+00"),
    "time": st.times().map(str),
    "timetz": st.tuples(st.times(), st.integers(-15, 15)).map(lambda p: f"{p[0]}{p[1]:+03d}"),
    "interval": INTERVALS,
    "text": TEXT,
    "varchar": TEXT,
    "char(5)": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5),
    "bytea": st.binary(max_size=8).map(lambda b: f"\\x{b.hex()}"),
    "uuid": st.uuids().map(str),
    "json": JSON.map(json.dumps),
    "jsonb": JSON.map(lambda v: json.dumps(v).replace("\\u0000", "")),
    "inet": st.tuples(st.ip_addresses(v=4), st.integers(0, 32)).map(lambda p: f"{p[0]}/{p[1]}"),
    "int4range": st.tuples(st.integers(-99, 0), st.integers(1, 99)).map(lambda p: f"[{p[0]},{p[1]}]"),
    "bit(3)": st.text("01", min_size=3, max_size=3),
    "int4[]": st.lists(st.none() | whole(-(2**31), 2**31 - 1), max_size=4),
    "text[]": st.lists(st.none() | TEXT, max_size=3),
}
NAMES: Final = {kind: f"c{i} {kind}" for i, kind in enumerate(KINDS)}
#: the override of one column each: nanoseconds, and a decimal that DuckDB does not know
DECLARED: Final = {NAMES["timestamp(3)"]: "timestamp_ns", NAMES["numeric(60,30)"]: "decimal(60,30)"}
ORACLES: Final = {s.type: s.oracle for s in SCALARS}
MODES: Final[dict[str, dict[str, Any]]] = {
    "full": {"mode": "full"},
    "ranges": {"mode": "chunked", "chunk_column": "id", "chunk_size": 3},
    "keys": {"mode": "chunked", "chunk_by_key": "id", "chunk_size": 3},
    "window": {"mode": "incremental", "cursor_column": "id"},
}
ROWS: Final = st.lists(st.tuples(*(values | st.none() for values in KINDS.values())), min_size=3, max_size=7)


def fill(db: TestDatabase, rows: Sequence[tuple[Any, ...]]) -> None:
    columns = ", ".join(f"{quote_ident(NAMES[kind])} {kind}" for kind in KINDS)
    slots = ", ".join(f"%s::text{'[]' * kind.endswith('[]')}::{kind}" for kind in KINDS)
    with db.connect() as conn:
        conn.execute(
            f"DROP TABLE IF EXISTS t, back; CREATE TABLE t (id serial PRIMARY KEY, {columns})".encode()
        )
        conn.cursor().executemany(f"INSERT INTO t VALUES (DEFAULT, {slots})".encode(), rows)
        conn.execute("ANALYZE t")


def plain(value: Any) -> Any:
    """NaN equals NaN here."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def check_parquet(exporter: Exporter) -> None:
    """pyarrow's values are the server's; DuckDB's are pyarrow's."""
    files = [str(exporter.root / "out" / part["path"]) for part in exporter.manifest()["parts"]]
    table = pa.concat_tables([pq.read_table(file) for file in files]).sort_by("id")
    with exporter.db.connect() as conn, conn.transaction():
        pin(conn)
        conn.execute("SET LOCAL search_path = public, pg_catalog")
        for kind, name in NAMES.items():
            column = table.column(name)
            if kind.endswith("[]"):
                query = f"SELECT {quote_ident(name)}::text[] FROM t ORDER BY id"
            else:
                oracle = f"CASE WHEN v IS NOT NULL THEN {ORACLES[kind]} END"
                query = f"SELECT {oracle} FROM (SELECT id, {quote_ident(name)} AS v FROM t) x ORDER BY id"
            want, got = [row[0] for row in conn.execute(query.encode())], shown(column)
            if kind == "timestamp(3)":
                want = [v and f"{int(v) * 1000}" for v in want]
            assert len(got) == len(want) == table.num_rows
            wrong = [(w, g) for w, g in zip(want, got, strict=True) if not same(column.type, g, w)]
            assert not wrong, kind
    with duckdb.connect() as duck:
        duck.execute("SET TimeZone = 'UTC'")
        for name in NAMES.values():
            if name == NAMES["numeric(60,30)"]:
                continue
            read = duck.execute(f"SELECT {quote_ident(name)} FROM read_parquet(?) ORDER BY id", [files])
            found = [plain(row[0]) for row in read.fetchall()]
            assert found == [plain(v) for v in table.column(name).to_pylist()], name


def check_csv(exporter: Exporter) -> None:
    """PostgreSQL reads the rows back; DuckDB and pyarrow find the same texts and the same NULLs."""
    files = [exporter.root / "out" / part["path"] for part in exporter.manifest()["parts"]]
    hexed = quote_ident(NAMES["bytea"])  # hexadecimal without the prefix
    listed = ", ".join(
        f"encode({hexed}, 'hex')" if kind == "bytea" else quote_ident(name) for kind, name in NAMES.items()
    )
    with exporter.db.connect() as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS back (LIKE t); TRUNCATE back")
        conn.execute(f"ALTER TABLE back ALTER {hexed} TYPE text USING NULL".encode())
        for file in files:
            with conn.cursor().copy("COPY back FROM STDIN (FORMAT csv, HEADER match)") as stream:
                stream.write(file.read_bytes())
        want = conn.execute(f"SELECT id, ROW({listed})::text FROM t ORDER BY id".encode()).fetchall()
        back = listed.replace(f"encode({hexed}, 'hex')", hexed)
        assert conn.execute(f"SELECT id, ROW({back})::text FROM back ORDER BY id".encode()).fetchall() == want
    texts = dict.fromkeys(["id", *NAMES.values()], pa.string())
    rows: list[dict[str, Any]] = []
    for file in files:
        with file.open("rb") as opened:
            rows += [row for batch in csv_batches(opened, texts) for row in batch.to_pylist()]
    with duckdb.connect() as duck:
        read = duck.execute(
            "SELECT * FROM read_csv(?, all_varchar = true, header = true, delim = ',', quote = '\"',"
            " escape = '\"', nullstr = '', allow_quoted_nulls = false, auto_detect = false, columns = ?)",
            [[str(file) for file in files], dict.fromkeys(texts, "VARCHAR")],
        )
        assert sorted(read.fetchall(), key=lambda r: int(r[0])) == sorted(
            (tuple(row.values()) for row in rows), key=lambda r: int(r[0])
        )


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_and_format_gives_the_servers_values(db: TestDatabase, tmp_path: Path, mode: str) -> None:
    # shrinking would export a hundred times
    @settings(max_examples=2, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(ROWS)
    def run(rows: list[tuple[Any, ...]]) -> None:
        fill(db, rows)
        for written, check in (("parquet", check_parquet), ("csv", check_csv)):
            exporter = Exporter(db, Path(tempfile.mkdtemp(dir=tmp_path)))
            exporter.run(
                format=written, columns={quote_ident(n): d for n, d in DECLARED.items()}, **MODES[mode]
            )
            check(exporter)

    run()
