"""``meta_columns:``: the time of the run and a hash of the row, in every mode and format."""

from __future__ import annotations

import csv
import io
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import xxhash

from rivet_dagster.engine.errors import ConfigError
from rivet_dagster.engine.run.added import EXPORTED_AT, ROW_HASH, ROW_HASH_RENDER
from rivet_dagster.engine.verify import checksum
from tests.services import rivet_cli
from tests.services.exporting import Exporter
from tests.services.postgres import TestDatabase

BOTH: dict[str, Any] = {"meta_columns": {"exported_at": True, "row_hash": True}}
CHUNKS: dict[str, Any] = {"mode": "chunked", "chunk_column": "id", "chunk_size": 20, "chunk_checkpoint": True}


@pytest.fixture
def exporter(db: TestDatabase, tmp_path: Path) -> Exporter:
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, word text, l text[], f float8, b bool, u uuid, n numeric(9,2))",
        "INSERT INTO t SELECT g, NULLIF('w' || g % 7, 'w3'), ARRAY['a', NULL, repeat('x', g)], g / 3.0,"
        " g % 2 = 0, md5(g::text)::uuid, g FROM generate_series(1, 100) g",
    )
    return Exporter(db, tmp_path)


def row_hashes(table: pa.Table, covered: list[str]) -> list[int]:
    """The definition: for each cell 0, or 1, its length and its bytes."""
    columns = [checksum.cell_bytes(table.column(name).combine_chunks()) for name in covered]
    rows = zip(*columns, strict=True)
    framed = (
        b"".join(b"\0" if c is None else b"\1" + struct.pack("<Q", len(c)) + c for c in row) for row in rows
    )
    digests = (xxhash.xxh3_64_intdigest(row) for row in framed)
    return [d - (1 << 64) if d >> 63 else d for d in digests]


def test_both_columns_are_in_schema_checksums_fingerprint_and_manifest(exporter: Exporter) -> None:
    exporter.run()
    plain = exporter.manifest()["schema_fingerprint"]
    before = datetime.now(UTC) - timedelta(seconds=2)
    outcome = exporter.run(**BOTH)
    table, manifest = exporter.table(), exporter.manifest()
    names = ["id", "word", "l", "f", "b", "u", "n"]
    assert table.schema.names == [*names, EXPORTED_AT, ROW_HASH]
    assert [c.name for c in outcome.columns] == table.schema.names
    at, hashed = table.schema.field(EXPORTED_AT), table.schema.field(ROW_HASH)
    assert (at.type, at.nullable) == (pa.timestamp("us", "UTC"), False)
    assert (hashed.type, hashed.nullable) == (pa.int64(), False)
    (stamp,) = set(table.column(EXPORTED_AT).to_pylist())
    assert before <= stamp <= datetime.now(UTC) + timedelta(seconds=2)
    assert table.column(ROW_HASH).to_pylist() == row_hashes(table, names)
    assert {EXPORTED_AT, ROW_HASH} <= {c["name"] for c in manifest["column_checksums"]}
    assert manifest["schema_fingerprint"] != plain
    assert manifest["row_hash"] == {"column": ROW_HASH, "covered": names, "render": ROW_HASH_RENDER}
    with exporter.engine(**BOTH) as engine:
        assert engine.validate("o").passed
        assert engine.reconcile("o").status == "match"


def test_csv_has_them_too(exporter: Exporter) -> None:
    exporter.run(**BOTH, format="csv")
    rows = list(csv.DictReader(io.StringIO(exporter.text())))
    assert len({row[EXPORTED_AT] for row in rows}) == 1
    assert rows[0][EXPORTED_AT].endswith("Z")
    assert len({int(row[ROW_HASH]) for row in rows}) == 100
    with exporter.engine(**BOTH, format="csv") as engine:
        assert engine.validate("o").passed
        assert engine.reconcile("o").status == "match"


def test_the_hash_of_named_columns_sees_them_alone(exporter: Exporter) -> None:
    keys = {"meta_columns": {"row_hash": ["id", "l"]}}
    exporter.run(**keys)
    first = exporter.column(ROW_HASH)
    exporter.db.execute("UPDATE t SET word = 'other'", "UPDATE t SET l = ARRAY['a'] WHERE id = 7")
    exporter.run(**keys)
    table = exporter.table()
    assert sorted(table.column(ROW_HASH).to_pylist()) == sorted(row_hashes(table, ["id", "l"]))
    changed = set(table.column(ROW_HASH).to_pylist()) - set(first)
    assert changed == set(table.filter(pa.compute.equal(table["id"], 7)).column(ROW_HASH).to_pylist())


def test_cells_that_move_between_columns_change_the_hash(exporter: Exporter) -> None:
    exporter.run(
        query="""SELECT a, b FROM (VALUES ('x', 'yz'), ('xy', 'z'), ('xyz', ''), ('', 'xyz'),
        (NULL, 'xyz'), ('xyz', NULL), (NULL, NULL), ('', '')) v(a, b)""",
        meta_columns={"row_hash": True},
    )
    assert len(set(exporter.column(ROW_HASH))) == 8
    exporter.run(
        query="SELECT l FROM (VALUES ('{a,b}'::text[]), ('{ab}'), ('{a,b,NULL}'), ('{a,b,\"\"}'), ('{}'),"
        " (NULL), ('{NULL}'), ('{\"\"}')) v(l)",
        meta_columns={"row_hash": True},
    )
    assert len(set(exporter.column(ROW_HASH))) == 8


def test_a_resumed_run_keeps_its_time(exporter: Exporter) -> None:
    keys = CHUNKS | BOTH
    exporter.stopped(1, **keys)
    exporter.run(**keys)
    assert len(set(exporter.column(EXPORTED_AT))) == 1
    assert exporter.table().num_rows == 100


@pytest.mark.parametrize(
    ("keys", "field", "words"),
    [
        ({"meta_columns": {"row_hash": ["id", "Word"]}}, "meta_columns.row_hash", "'word'"),
        ({"meta_columns": {"row_hash": ["nothing"]}}, "meta_columns.row_hash", "name one of"),
        (
            {"query": f'SELECT 1 AS "{ROW_HASH}"', "meta_columns": {"row_hash": True}},
            "meta_columns",
            "of its own",
        ),
    ],
)
def test_what_cannot_be_added_is_refused(
    exporter: Exporter, keys: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        exporter.run(**keys)
    assert caught.value.field == field
    assert words in str(caught.value)


def test_the_reference_passes_files_with_them(exporter: Exporter) -> None:
    exporter.run(**BOTH, columns={"n": "decimal(20,4)", "id": "int8"})
    config = exporter.root / "rivet.yaml"
    for depth in rivet_cli.DEPTHS:
        verdict = rivet_cli.validate(config, "o", depth)
        assert verdict.passed, verdict
        assert verdict.codes == []
    # it adds the same two columns, of the same types, and says it in the same key
    ours = exporter.table().schema
    rivet_cli.run(config)
    theirs = exporter.manifest()["row_hash"]
    assert set(theirs) == {"column", "covered", "render"}
    assert theirs["column"] == ROW_HASH
    assert [(f.name, f.type) for f in exporter.table().schema] == [(f.name, f.type) for f in ours]
