"""What the schema of a file says: logical types, NOT NULL, and how faithful each column is."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.dataset import dataset

from rivet_dagster.engine.run.preview import preview
from tests.services.exporting import Exporter
from tests.services.postgres import TestDatabase

UID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
DUPLICATE_KEYS = '{"a":1.10,"a":2,"n":12345678901234567890.123}'


@pytest.fixture
def exporter(every_db: TestDatabase, tmp_path: Path) -> Exporter:
    return Exporter(every_db, tmp_path)


@pytest.fixture
def mixed(exporter: Exporter) -> Exporter:
    exporter.db.execute(
        "CREATE TYPE mood AS ENUM ('ok')",
        "CREATE TABLE t (id int PRIMARY KEY, u uuid NOT NULL, j json, b jsonb NOT NULL, e mood NOT NULL,"
        " at timestamptz NOT NULL, n numeric(60,30) NOT NULL, us uuid[] NOT NULL, js json[], word text)",
        f"INSERT INTO t VALUES (1, '{UID}', '{DUPLICATE_KEYS}', '{{\"a\":\"\\u00e9\"}}', 'ok',"
        f" '2024-02-29 00:00+00', 1.5, '{{{UID},NULL}}', ARRAY['{{ }}'::json], NULL)",
    )
    return exporter


def parts(exporter: Exporter) -> list[str]:
    return [str(exporter.root / "out" / part["path"]) for part in exporter.manifest()["parts"]]


def test_every_field_says_what_it_is(mixed: Exporter) -> None:
    mixed.run()
    schema = pq.read_schema(parts(mixed)[0])
    found = {f.name: (f.type, not f.nullable) for f in schema}
    assert found == {
        "id": (pa.int32(), True),
        "u": (pa.uuid(), True),
        "j": (pa.json_(), False),
        "b": (pa.json_(), True),
        "e": (pa.string(), True),
        "at": (pa.timestamp("us", "UTC"), True),
        "n": (pa.string(), True),
        "us": (pa.list_(pa.field("item", pa.uuid())), True),
        "js": (pa.list_(pa.field("item", pa.json_())), False),
        "word": (pa.string(), False),
    }
    marks = {f.name: {k.decode(): v.decode() for k, v in f.metadata.items()} for f in schema}
    assert marks["u"].items() >= {
        "rivet.native_type": "uuid", "rivet.fidelity": "exact", "rivet.logical_type": "uuid",
    }.items()  # fmt: skip
    assert marks["j"]["rivet.logical_type"] == marks["b"]["rivet.logical_type"] == "json"
    assert marks["e"]["rivet.logical_type"] == "enum"
    assert (marks["n"]["rivet.fidelity"], marks["n"]["rivet.text_form"]) == ("text", "DecimalPlain")
    assert "rivet.logical_type" not in marks["word"]


def test_parquet_and_duckdb_know_uuid_json_and_required(mixed: Exporter) -> None:
    mixed.run()
    leaves = pq.read_metadata(parts(mixed)[0]).schema
    shown = {leaves.column(i).path: leaves.column(i) for i in range(len(leaves))}
    assert {p: c.logical_type.type for p, c in shown.items() if c.logical_type.type in ("UUID", "JSON")} == {
        "u": "UUID", "j": "JSON", "b": "JSON", "us.list.item": "UUID", "js.list.item": "JSON",
    }  # fmt: skip
    assert {p for p, c in shown.items() if not c.max_definition_level} == {"id", "u", "b", "e", "at", "n"}
    row = duckdb.sql(
        "SELECT typeof(u), u::text, typeof(j), j::text, typeof(b), b::text, typeof(us), us[1]::text, us[2]"
        f" FROM read_parquet({parts(mixed)})"
    ).fetchall()
    uuid, json = ("UUID", UID), ("JSON", DUPLICATE_KEYS)
    assert row == [(*uuid, *json, "JSON", '{"a": "é"}', "UUID[]", UID, None)]


def test_the_plan_says_what_becomes_of_each_column(mixed: Exporter) -> None:
    with mixed.engine(columns={"n": "decimal(60,30)"}, value_policy={"at": "null"}) as engine:
        shown = preview(engine, "o").text().splitlines()
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in shown}
    assert lines["id"] == "integer -> int32 (exact, never NULL)"
    assert lines["e"] == "public.mood -> string (compatible, never NULL)"
    assert lines["at"] == "timestamp with time zone -> timestamp[us, tz=UTC] (exact)"
    assert lines["word"] == "text -> string (exact)"
    assert lines["n"] == (
        "numeric(60,30) -> decimal256(60, 30)"
        " (compatible, declared, never NULL, DuckDB takes it for a DOUBLE)"
    )
    with mixed.engine() as engine:
        assert "numeric(60,30) -> string (text, DecimalPlain, never NULL)" in preview(engine, "o").text()


def test_what_may_be_null_is_not_required(mixed: Exporter) -> None:
    """A query, a policy that puts NULLs in, a view: the file promises nothing."""
    mixed.run(query="SELECT id, u FROM t")
    assert all(f.nullable for f in pq.read_schema(parts(mixed)[0]))
    mixed.db.execute("INSERT INTO t SELECT 2, u, j, b, e, 'infinity', n, us, js, word FROM t")
    mixed.run(value_policy={"at": "null"})
    schema = pq.read_schema(parts(mixed)[0])
    assert schema.field("at").nullable
    assert not schema.field("id").nullable
    assert mixed.column("at").count(None) == 1
    mixed.db.execute("CREATE VIEW w AS SELECT * FROM t WHERE id = 1")
    mixed.run(table="w")
    assert all(f.nullable for f in pq.read_schema(parts(mixed)[0]))


def test_a_folder_whose_parts_differ_in_it_is_read_whole(exporter: Exporter) -> None:
    exporter.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL)",
        "INSERT INTO t SELECT g, g FROM generate_series(1, 10) g",
    )
    keys = {"mode": "incremental", "cursor_column": "id"}
    exporter.run(**keys)
    exporter.db.execute("ALTER TABLE t ALTER v DROP NOT NULL", "INSERT INTO t VALUES (11, NULL)")
    exporter.run(**keys)
    files = sorted(map(str, (exporter.root / "out").glob("*.parquet")))
    assert len(files) == 2
    read = dataset(files).to_table().column("v")
    assert (len(read), read.null_count, sorted(read.drop_null().to_pylist())) == (11, 1, [*range(1, 11)])
    assert duckdb.sql(f"SELECT count(*), count(v) FROM read_parquet({files})").fetchall() == [(11, 10)]
