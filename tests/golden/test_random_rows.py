"""Random rows of every type, through every mode and both formats, against the server's own text.

``RIVET_TEST_RANDOM_ROWS``: rows of the table. ``RIVET_TEST_SEED``: draws the same rows again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from tests.golden.postgres_values import ARRAYS, SCALARS, SETUP, WHOLE_ARRAYS, Sample
from tests.golden.random_values import VARIANTS, drawn, quoted, strategy
from tests.golden.read_back import Connection, create_extensions, pin, same, shown
from tests.live.modes import walk
from tests.live.modes.kit import Project
from tests.live.modes.walk import MODES
from tests.services.postgres import TestDatabase, TestServer, database

ROWS: Final = int(os.environ.get("RIVET_TEST_RANDOM_ROWS", "32"))
SEED: Final = int(os.environ.get("RIVET_TEST_SEED") or int.from_bytes(os.urandom(4)))

#: Which values ``v`` have no form in a file's type.
_UNFIT: Final = {
    "timestamp[ns]": "v < '1677-09-21 00:12:43.145225' OR v > '2262-04-11 23:47:16.854775'",
    "decimal256": "v = 'NaN'",
    "date32": "NOT isfinite(v)",
    "timestamp": "NOT isfinite(v) OR v >= '294247-01-10 04:00:54.775808+00'",
    "time64": "v = '24:00'",
    "decimal128": "v = 'NaN'",
}
#: Types that only an override gives a file, with the override.
OVERRIDDEN: Final = {
    "timestamp_ns": Sample(
        "timestamp(3)",
        "timestamp[ns]",
        ("1677-09-21 00:12:44", "2262-04-11 23:47:16.854", "2262-04-12", "infinity"),
        "trunc(extract(epoch FROM v) * 1000000000)::text",
    ),
    "decimal(60,30)": Sample(
        "numeric(60,30)", "decimal256(60, 30)", ("9" * 30 + "." + "9" * 30, "-1e-30", "0", "NaN")
    ),
}
#: Columns as the files have them, not as the names of their folders say.
_READ: Final = "SELECT * FROM read_parquet(?, hive_partitioning=false)"
#: How the text ``x`` of a CSV becomes a value again, where a plain cast does not do it.
_BACK: Final = {
    "bytea": "decode(x, 'hex')",
    "money": "x::numeric::money",
    "money[]": "x::numeric[]::money[]",
    "box[]": "x::text[]::box[]",
}


@dataclass(frozen=True, slots=True)
class Columns:
    """A column ``c<i>`` of every type, and ``f<i>`` without the values that no type of the file holds.

    parquet, csv, undeclared: the server's rendering of each column; in the last ``int[][]`` is a list.
    """

    db: TestDatabase
    samples: tuple[Sample, ...]
    parquet: dict[str, list[Any]] = field(default_factory=dict)
    csv: dict[str, list[Any]] = field(default_factory=dict)
    undeclared: dict[str, list[Any]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[str, Sample]]:
        for i, sample in enumerate(self.samples):
            yield f"c{i}", sample
            if sample.type == "int4[]" or unfit(sample):
                yield f"f{i}", sample

    @property
    def overrides(self) -> dict[str, str]:
        return {name: to for name, sample in self for to, one in OVERRIDDEN.items() if sample is one}

    @property
    def declared(self) -> str:
        return ", ".join(f"{name} {sample.type}" for name, sample in self)


def unfit(sample: Sample) -> str | None:
    return next((sql for kind, sql in _UNFIT.items() if kind in sample.arrow), None)


def scalar_sql(sample: Sample, value: str) -> str:
    """The server's rendering of one value; NULL for a value that the file's type cannot hold."""
    # (,) IS NULL holds for a row of NULLs, its size is not NULL
    none = f"pg_column_size(v) IS NULL OR {unfit(sample) or 'FALSE'}"
    return f"(SELECT CASE WHEN {none} THEN NULL ELSE {sample.oracle} END FROM (SELECT {value} AS v) AS one)"


def parquet_sql(sample: Sample, name: str) -> str:
    if not sample.arrow.startswith("list"):
        return scalar_sql(sample, name)
    items = f"SELECT array_agg({scalar_sql(sample, f'{name}[o]')} ORDER BY o)"
    items += f" FROM generate_subscripts({name}, 1) o"
    shape = f"{name} IS NULL OR array_ndims({name}) > 1 OR array_lower({name}, 1) <> 1"
    return f"CASE WHEN {shape} THEN NULL ELSE coalesce(({items}), '{{}}') END"


def fits_sql(sample: Sample) -> str:
    """Whether the file's type holds all of the value ``c``."""
    if not sample.arrow.startswith("list"):
        return f"{scalar_sql(sample, 'c')} IS NOT NULL"
    items = f"unnest({parquet_sql(sample, 'c')}, c) AS e(kept, v)"
    lost = f"SELECT FROM {items} WHERE kept IS NULL AND v IS NOT NULL"
    return f"{parquet_sql(sample, 'c')} IS NOT NULL AND NOT EXISTS ({lost})"


def csv_sql(sample: Sample, name: str) -> str:
    """A list is the server's text in a CSV, which has a form for all of its values and shapes."""
    return f"format('%s', {name})" if sample.arrow.startswith("list") else scalar_sql(sample, name)


def ask(connection: Connection, query: str, *params: Any) -> list[tuple[Any, ...]]:
    """Rows of a query under the settings of a read."""
    with connection.transaction():
        pin(connection)
        connection.execute("SET LOCAL search_path = public, pg_catalog")
        if params:
            query = query.replace("'%s'", "'%%s'")  # of format(), and no place for a parameter
        return connection.execute(query.encode(), params or None).fetchall()


def fill(connection: Connection, columns: Columns) -> None:
    """Load ``pool`` by COPY with what the server takes for values of the types."""
    rng = Random(SEED)
    found = []
    for number, (name, sample) in enumerate(columns):
        values = drawn(strategy(sample), ROWS * 2, SEED + number)
        query = "SELECT v FROM unnest(%s::text[]) WITH ORDINALITY AS u(v, o) WHERE pg_input_is_valid(v, %s)"
        valid = [v for (v,) in ask(connection, f"{query} ORDER BY o", values, sample.type)]
        assert len(valid) > len(values) / 5, f"{sample.type}: {len(valid)} of {len(values)} are values"
        if name.startswith("f"):
            typed = f"SELECT t, t::{sample.type} AS c FROM unnest(%s::text[]) t"
            query = f"SELECT t FROM ({typed}) q WHERE {fits_sql(sample)}"
            valid = [v for (v,) in ask(connection, query, valid)]
        rng.shuffle(valid)
        found.append([None if rng.random() < 0.1 else valid[n % len(valid)] for n in range(ROWS)])
    connection.execute(f"CREATE TABLE pool (i int, {columns.declared})".encode())
    with connection.transaction():
        pin(connection)
        connection.execute("SET LOCAL search_path = public, pg_catalog")
        with connection.cursor().copy("COPY pool FROM STDIN") as copy:
            for n, row in enumerate(zip(*found, strict=True), 1):
                copy.write_row([n, *row])


def more_arrays() -> Iterator[Sample]:
    """Of the types that the fixed samples have no array of."""
    known = {s.type for s in ARRAYS} | {"smallint[]", "integer[]", "bigint[]", "double precision[]"}
    for sample in SCALARS:
        name = f"{sample.type}[]"
        if name not in known and not VARIANTS.fullmatch(sample.type):
            comma = ";" if sample.type == "box" else ","
            edges = tuple("{" + quoted(value) + comma + "NULL}" for value in sample.values)
            kind = f"list<item: {sample.arrow}>"
            yield replace(sample, type=name, arrow=kind, values=("{}", *edges))


@pytest.fixture(scope="module")
def columns(pg: TestServer) -> Iterator[Columns]:
    print(f"RIVET_TEST_SEED={SEED}")
    with database(pg) as db, db.connect() as connection:
        create_extensions(connection)
        for statement in SETUP:
            connection.execute(statement.encode())
        version = connection.info.server_version // 10_000
        has_xml = ask(connection, "SELECT pg_input_is_valid('<a/>', 'xml')") == [(True,)]
        brought = {None, *(name for (name,) in ask(connection, "SELECT extname FROM pg_extension"))}
        known = {
            s.type: s
            for s in (*SCALARS, *ARRAYS, *WHOLE_ARRAYS, *more_arrays())
            if s.since <= version and s.extension in brought and (has_xml or not s.type.startswith("xml"))
        }
        made = Columns(db, (*known.values(), *OVERRIDDEN.values()))
        fill(connection, made)
        for name, sample in made:
            flat = replace(sample, arrow="list<item: int32>") if "[][]" in sample.type else sample
            asked = f"{parquet_sql(sample, name)}, {csv_sql(sample, name)}, {parquet_sql(flat, name)}"
            rows = ask(connection, f"SELECT {asked} FROM pool ORDER BY i")
            made.parquet[name], made.csv[name], made.undeclared[name] = map(list, zip(*rows, strict=True))
        yield made


@pytest.fixture
def project(columns: Columns, tmp_path: Path) -> Project:
    columns.db.execute("DROP TABLE IF EXISTS t CASCADE" if not is_view(columns) else "DROP VIEW t")
    columns.db.execute("DROP TABLE IF EXISTS base CASCADE")
    return Project(tmp_path, columns.db)


def is_view(columns: Columns) -> bool:
    with columns.db.connect() as connection:
        return ask(connection, "SELECT FROM pg_class WHERE relname = 't' AND relkind = 'v'") != []


def create(project: Project, columns: Columns, way: walk.Way) -> None:
    """The walk's table, with the columns of the pool behind its own."""
    walk.create(project, way)
    walk.insert(project, way, 1, ROWS)
    names = [name for name, _ in columns]
    project.db.execute(
        f"ALTER TABLE {way.base} {', '.join(f'ADD {name} {s.type}' for name, s in columns)}",
        f"UPDATE {way.base} SET {', '.join(f'{name} = p.{name}' for name in names)} FROM pool p WHERE i = n",
        f"VACUUM ANALYZE {way.base}",
    )
    if way.relation == "view":
        project.db.execute("CREATE OR REPLACE VIEW t AS SELECT * FROM base")


def assert_same(columns: Columns, table: pa.Table, wanted: dict[str, list[Any]], reader: str) -> None:
    """Each cell of ``table``, whose rows are in any order, is what the server says."""
    order = table.column("n").to_pylist()
    assert sorted(order) == list(range(1, ROWS + 1))
    wrong = []
    for name, sample in columns:
        kind = table.schema.field(name).type
        if reader == "duckdb" and sample.arrow.startswith("decimal256"):  # it takes them for doubles
            continue
        assert name not in columns.overrides or str(kind) == sample.arrow
        for n, got in zip(order, shown(table.column(name)), strict=True):
            want = wanted[name][n - 1]
            if not same(kind, got, want):
                wrong.append((sample.type, n, want, got))
    assert not wrong, f"{reader}: {len(wrong)} cells differ, seed {SEED}: {wrong[:5]}"


def parquet_tables(parts: list[Path]) -> Iterator[tuple[str, pa.Table]]:
    yield "pyarrow", pa.concat_tables([pq.ParquetFile(part).read() for part in parts])
    with duckdb.connect() as duck:
        duck.execute("SET TimeZone = 'UTC'")
        yield (
            "duckdb",
            duck.execute(_READ, [[str(p) for p in parts]]).to_arrow_table(),
        )


def csv_tables(parts: list[Path]) -> Iterator[tuple[str, pa.Table]]:
    """All cells as text; an empty field is NULL, a quoted one is not."""
    names = parts[0].read_text().partition("\n")[0].split(",")
    convert = pc.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
    )
    parse = pc.ParseOptions(newlines_in_values=True)
    read = pc.ReadOptions(block_size=1 << 26)
    yield "pyarrow", pa.concat_tables([pc.read_csv(p, read, parse, convert) for p in parts])
    with duckdb.connect() as duck:
        query = (
            "SELECT * FROM read_csv(?, header=true, auto_detect=false, nullstr='', allow_quoted_nulls=false,"
            " quote='\"', escape='\"', delim=',', parallel=false, max_line_size=9999999, columns=?,"
            " hive_partitioning=false)"
        )
        kinds = dict.fromkeys(names, "VARCHAR")
        yield "duckdb", duck.execute(query, [[str(p) for p in parts], kinds]).to_arrow_table()


_YEAR: Final = re.compile(r"(-?)(\d{4,})(-\d\d-\d\d.*)\Z")


def server_date(text: str | None) -> str | None:
    """A date of ISO 8601, whose year 0 is 1 BC, as the server reads it."""
    if text is None:
        return None
    found = _YEAR.fullmatch(text)
    assert found is not None, text
    year = int(found[1] + found[2])
    return f"{year:04d}{found[3]}" if year > 0 else f"{1 - year:04d}{found[3]} BC"


def back_sql(sample: Sample) -> str:
    if sample.type.startswith("reg"):
        return f"x::oid{'[]' * sample.type.endswith('[]')}::{sample.type}"
    return _BACK.get(sample.type, f"x::{sample.type}")


def values_of_csv(columns: Columns, table: pa.Table) -> dict[str, list[Any]]:
    """What the server makes of the texts: its rendering of each, in the order of n."""
    order = table.column("n").to_pylist()
    found = {}
    with columns.db.connect() as connection:
        for name, sample in columns:
            texts = table.column(name).to_pylist()
            if sample.arrow.startswith(("date", "timestamp")):
                texts = [server_date(text) for text in texts]
            typed = f"SELECT n, {back_sql(sample)} AS y FROM unnest(%s::text[], %s::int[]) AS u(x, n)"
            query = f"SELECT {csv_sql(sample, 'y')} FROM ({typed}) q ORDER BY n"
            found[name] = [value for (value,) in ask(connection, query, texts, [int(n) for n in order])]
    return found


@pytest.mark.parametrize("mode", MODES)
def test_files_hold_what_the_server_says(columns: Columns, project: Project, mode: str) -> None:
    way = MODES[mode]
    create(project, columns, way)
    keys = {**way.keys, "parallel": 2, "value_policy": {"*": "null"}, "columns": columns.overrides}
    if keys.get("chunk_size") == 100:
        keys["chunk_size"] = max(2, ROWS // 5)
    for written in ("parquet", "csv"):
        files = Project(project.folder / written, project.db)
        files.folder.mkdir()
        (files.folder / "rows.sql").write_text("SELECT * FROM t")
        assert files.run(**keys, format=written).outcome.rows == ROWS
        with files.engine() as engine:
            assert engine.validate("o").passed
            report = engine.reconcile("o")
        by_type = {name: sample.type for name, sample in columns}
        differ = {by_type.get(name, name): what for u in report.units for name, what in u.columns}
        assert report.status == "match", f"{written}, seed {SEED}: {differ}, {[u.note for u in report.units]}"
        if written == "parquet":
            for reader, table in parquet_tables(files.parts):
                # the server keeps the dimensions that are declared for columns of tables alone
                declared = way.relation != "view" and not {"query", "query_file"} & way.keys.keys()
                assert_same(columns, table, columns.parquet if declared else columns.undeclared, reader)
        else:
            texts = dict(csv_tables(files.parts))
            assert texts["pyarrow"].equals(texts["duckdb"].cast(texts["pyarrow"].schema))
            found = values_of_csv(columns, texts["pyarrow"])
            wrong = [
                (sample.type, n, want, got)
                for name, sample in columns
                for n, (want, got) in enumerate(zip(columns.csv[name], found[name], strict=True), 1)
                if want != got
            ]
            assert not wrong, f"csv: {len(wrong)} cells differ, seed {SEED}: {wrong[:5]}"
