"""Inputs that broke other tools' types, each as its whole kind: the values arrive, or the column is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rivet_dagster.engine.errors import RefusalError, RivetError
from tests.services.exporting import Exporter
from tests.services.postgres import TestDatabase


@pytest.fixture
def exporter(db: TestDatabase, tmp_path: Path) -> Exporter:
    return Exporter(db, tmp_path)


RANGES: dict[str, Any] = {"mode": "chunked", "chunk_column": "id", "chunk_size": 40}
KEYS: dict[str, Any] = {"mode": "chunked", "chunk_by_key": "id", "chunk_size": 40}
WINDOW: dict[str, Any] = {"mode": "incremental", "cursor_column": "id"}


def test_the_first_rows_do_not_decide_a_type(exporter: Exporter) -> None:
    """All NULL, then one digit behind the point, then three: each part has the catalog's types."""
    exporter.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n numeric(9,3), free numeric, a int[], j jsonb)",
        "INSERT INTO t SELECT g, CASE WHEN g > 80 THEN 1.123 WHEN g > 40 THEN 1.1 END,"
        " CASE WHEN g > 40 THEN g / 3.0 END, CASE WHEN g > 80 THEN ARRAY[g] END,"
        " CASE WHEN g > 80 THEN '1'::jsonb END FROM generate_series(1, 120) g",
    )
    exporter.run(**RANGES)
    parts = [exporter.root / "out" / part["path"] for part in exporter.manifest()["parts"]]
    assert len(parts) >= 3
    types = [pa.int32(), pa.decimal128(9, 3), pa.string(), pa.list_(pa.field("item", pa.int32())), pa.json_()]
    assert [pq.read_schema(part).types for part in parts] == [types] * len(parts)


@pytest.mark.parametrize("mode", [{}, RANGES, KEYS, WINDOW], ids=["full", "ranges", "keys", "window"])
@pytest.mark.parametrize("written", ["parquet", "csv"])
def test_a_key_of_a_domain_beside_types_of_the_database(
    exporter: Exporter, mode: dict[str, Any], written: str
) -> None:
    """Type numbers of enum, composite and hstore differ by database; the wire shows a domain as its base."""
    exporter.db.execute(
        "CREATE EXTENSION hstore",
        "CREATE TYPE mood AS ENUM ('sad', 'ok')", "CREATE TYPE comp AS (a int, b text)",
        "CREATE DOMAIN posint AS int CHECK (VALUE > 0)", "CREATE DOMAIN key AS posint",
        "CREATE TABLE t (id key PRIMARY KEY, m mood NOT NULL, h hstore, r comp)",
        "INSERT INTO t SELECT g, 'ok', hstore('k', g::text), ROW(g, 'x'::text)::comp"
        " FROM generate_series(1, 100) g",
        "ANALYZE t",
    )  # fmt: skip
    exporter.run(format=written, **mode)
    if written == "parquet":
        rows = sorted(exporter.table().to_pylist(), key=lambda row: int(row["id"]))
        assert [row["id"] for row in rows] == [*range(1, 101)]
        assert rows[6] == {"id": 7, "m": "ok", "h": '"k"=>"7"', "r": "(7,x)"}
    else:
        assert '7,ok,"""k""=>""7""","(7,x)"' in exporter.text()
    with exporter.engine(format=written, **mode) as engine:
        assert engine.reconcile("o").status == "match"
        assert engine.validate("o").passed


def test_an_array_is_surprising_by_its_values_alone(exporter: Exporter) -> None:
    """CREATE TABLE AS forgets the declared dimensions, and {} and {5} look like a plain list."""
    exporter.db.execute(
        "CREATE TABLE s (id int, v int[][])",
        "INSERT INTO s VALUES (1, '{}'), (2, '{5}'), (3, '{{1,2},{3,4}}'), (4, '[2:3]={6,NULL}'), (5, NULL)",
        "CREATE TABLE t AS TABLE s",
    )
    texts = ["{}", "{5}", "{{1,2},{3,4}}", "[2:3]={6,NULL}", None]
    exporter.run(table="s")
    assert exporter.column("v") == texts
    for what, rows in (("multi-dimensional", "id <= 3"), ("does not start at 1", "id <> 3")):
        with pytest.raises(RefusalError, match=what) as caught:
            exporter.run(query=f"SELECT * FROM t WHERE {rows}")
        assert (caught.value.code, caught.value.field) == ("RIVET_SOURCE_VALUE_UNREPRESENTABLE", "v")
    exporter.run(query="SELECT * FROM t WHERE id IN (1, 2, 5)")
    assert exporter.column("v") == [[], [5], None]
    exporter.run(columns={"v": "text"})
    assert exporter.column("v") == texts


def test_names_that_other_tools_make_one(exporter: Exporter) -> None:
    names = ["na!e", "na%e", "a__b", "a_b", "Aa", "aA", "aa", "t", "Ä", "ä", "select", "_", "a b", "a\nb"]
    columns = ", ".join(f'"{name}" int' for name in names)
    exporter.db.execute(f"CREATE TABLE t ({columns})", f"INSERT INTO t VALUES {(*range(len(names)),)}")
    exporter.run()
    assert exporter.table().to_pylist() == [{name: i for i, name in enumerate(names)}]
    exporter.run(format="csv")
    assert (
        exporter.text()
        == ",".join(names).replace("a\nb", '"a\nb"') + "\n" + ",".join(map(str, range(len(names)))) + "\n"
    )


def test_the_servers_own_error_is_shown(exporter: Exporter) -> None:
    """Not what a reader of the stream makes of it: SQLSTATE and message come through."""
    exporter.db.execute("CREATE TABLE t (d jsonb)", "INSERT INTO t VALUES ('[1]'), ('2')")
    with pytest.raises(RivetError, match="cannot extract elements from a scalar") as caught:
        exporter.run(query="SELECT jsonb_array_elements(d) AS x FROM t")
    assert caught.value.sqlstate == "22023"
    assert caught.value.export == "o"


def test_json_keeps_what_jsonb_and_parsers_drop(exporter: Exporter) -> None:
    documents = [
        '{"a":1.10,"a":2,"n":12345678901234567890.123}',
        '{"a":"\\u0000"}',  # legal in json, in no text
        ' [1e400,  -0.0] ',
    ]  # fmt: skip
    with exporter.db.connect() as conn:
        conn.execute("CREATE TABLE t (id int, j json)")
        conn.cursor().executemany("INSERT INTO t VALUES (%s, %s::json)", list(enumerate(documents)))
    for written in ("parquet", "csv"):
        exporter.run(format=written)
        with exporter.engine(format=written) as engine:
            assert engine.reconcile("o").status == "match"
    exporter.run()
    assert exporter.column("j") == documents
