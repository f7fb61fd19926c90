"""The reference accepts what we write, we accept what it writes, and both see the same faults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rivet_dagster.config import load_config
from rivet_dagster.engine.destinations.local import LocalStore
from rivet_dagster.engine.run.engine import Engine
from rivet_dagster.engine.verify.checksum import add, column_checksum
from rivet_dagster.engine.verify.manifest import MAX_MANIFEST_BYTES, Manifest
from rivet_dagster.engine.verify.manifest_reader import parse_manifest
from rivet_dagster.engine.verify.part_reader import parquet_batches
from rivet_dagster.engine.verify.validate import validate_prefix
from tests.services import rivet_cli
from tests.services.peer_exports import TABLES, exports
from tests.services.postgres import TestServer, database
from tests.unit.verify.prefixes import Prefix, table

EXPORTS = [entry["name"] for entry in exports(Path())]
WITH_VALUES = [name for name in EXPORTS if not name.startswith("text") and name != "empty"]


@dataclass(frozen=True)
class Both:
    """The same exports, run by both tools into folders of their own."""

    ours: Path
    theirs: Path

    def manifest(self, config: Path, export: str) -> Manifest:
        data = LocalStore(config.parent / "out" / export).read_bytes("manifest.json", MAX_MANIFEST_BYTES)
        assert data is not None
        return parse_manifest(data)


def run_ours(config: Path, root: Path, names: list[str]) -> None:
    with Engine(load_config(config), state_url=f"sqlite:{root}") as engine:
        for name in names:
            with engine.session(name, holder="test") as session:
                session.plan()
                for _ in session.execute():
                    pass
                session.finalize()


@pytest.fixture(scope="module")
def both(pg: TestServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with database(pg) as db:
        db.execute(*TABLES)
        made = []
        for who in ("ours", "theirs"):
            root = tmp_path_factory.mktemp(who)
            made.append(rivet_cli.write_config(root / "rivet.yaml", db.url, exports(root / "out")))
        run_ours(made[0], made[0].parent, EXPORTS)
        rivet_cli.run(made[1])
        yield Both(*made)


@pytest.mark.parametrize("depth", rivet_cli.DEPTHS)
@pytest.mark.parametrize("export", EXPORTS)
def test_the_reference_passes_what_we_write(both: Both, export: str, depth: str) -> None:
    verdict = rivet_cli.validate(both.ours, export, depth)
    assert verdict.passed, verdict
    expected = (
        {"RIVET_VERIFY_VALUE_CHECK_NOT_AVAILABLE"} if export.startswith("text") and depth == "full" else set()
    )
    assert set(verdict.codes) == expected
    parts = both.manifest(both.ours, export).part_count
    assert verdict.verification["parts_verified"] == (0 if depth == "light" else parts)


@pytest.mark.parametrize("export", EXPORTS)
def test_we_pass_what_the_reference_writes(both: Both, export: str) -> None:
    """Values included: our checksum of its files is the one that it wrote."""
    prefix = both.theirs.parent / "out" / export
    report = validate_prefix(LocalStore(prefix), str(prefix), depth="full", export_name=export)
    assert report.passed, report.findings
    assert report.success_marker_consistent
    assert ("value_check_not_available" in {f.kind for f in report.findings}) == export.startswith("text")
    assert (both.manifest(both.theirs, export).column_checksums is not None) == (export in WITH_VALUES)


def test_keys_that_the_reference_lacks_stand_under_ours(both: Both) -> None:
    """It passed this manifest above."""
    added = both.manifest(both.ours, "text_full").additions
    assert added is not None
    assert added.column_origins == {"id": "identity by default"}
    assert added.csv["delimiter"] == ","


@pytest.mark.parametrize("export", WITH_VALUES)
def test_both_describe_the_same_rows_alike(both: Both, export: str) -> None:
    ours, theirs = both.manifest(both.ours, export), both.manifest(both.theirs, export)
    assert ours.row_count == theirs.row_count
    assert ours.schema_fingerprint == theirs.schema_fingerprint
    assert (ours.mode, ours.format, ours.compression) == (theirs.mode, theirs.format, theirs.compression)
    assert ours.source.extraction.strategy == theirs.source.extraction.strategy
    assert ours.source.extraction.cursor_column == theirs.source.extraction.cursor_column


@pytest.mark.parametrize("export", WITH_VALUES)
def test_both_hold_the_same_values(both: Both, export: str) -> None:
    """Our files, hashed the way the reference hashed its own, column by column."""
    theirs = both.manifest(both.theirs, export)
    assert theirs.column_checksums is not None
    assert len(theirs.column_checksums) == 22
    sums = dict.fromkeys(theirs.column_checksums, 0)
    root = both.ours.parent / "out" / export
    for part in both.manifest(both.ours, export).parts:
        with (root / part.path).open("rb") as file:
            for batch in parquet_batches(file):
                key = batch.column(theirs.checksum_key_column) if theirs.checksum_key_column else None
                for name in sums:
                    sums[name] = add(sums[name], column_checksum(batch.column(name), key))
    assert sums == theirs.column_checksums


@pytest.mark.parametrize("export", WITH_VALUES)
def test_both_write_the_same_value_checksums(both: Both, export: str) -> None:
    """Sums of the same rows are equal wherever both hash with the same key, which is a plan's choice."""
    ours, theirs = both.manifest(both.ours, export), both.manifest(both.theirs, export)
    assert ours.checksum_render == "xxh3-64-sum-v2"
    assert ours.column_checksums is not None
    assert set(ours.column_checksums) == set(theirs.column_checksums or {})
    if ours.checksum_key_column == theirs.checksum_key_column:
        assert ours.column_checksums == theirs.column_checksums


@pytest.fixture(params=[None, "id"], ids=["unkeyed", "keyed"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Prefix:
    prefix = Prefix(tmp_path / "out" / "orders", key=request.param)
    prefix.write_run([table(0, 100), table(100, 20)])
    return prefix


def judged(prefix: Prefix) -> rivet_cli.Verdict:
    destination = {"type": "local", "path": str(prefix.root)}
    entry: dict[str, Any] = {"name": "orders", "table": "orders", "mode": "full", "format": "parquet"}
    config = prefix.root.parent.parent / "rivet.yaml"
    rivet_cli.write_config(config, "postgresql://u:p@127.0.0.1:1/x", [{**entry, "destination": destination}])
    return rivet_cli.validate(config, "orders", "full")


def test_the_reference_recomputes_our_checksums_and_finds_them_right(made: Prefix) -> None:
    assert judged(made).passed
    assert judged(made).codes == []


def test_the_reference_sees_another_value_through_our_checksums(made: Prefix) -> None:
    def change(rows: pa.Table) -> pa.Table:
        return rows.set_column(1, rows.schema.field("name"), pa.array(["x"] * rows.num_rows))

    made.write_run([table(0, 100)], number=2, alter=change)
    assert judged(made).codes == ["RIVET_VERIFY_VALUE_CHECKSUM"]


def test_the_reference_ignores_our_own_key_and_a_list_type_that_it_does_not_hash(made: Prefix) -> None:
    body = json.loads((made.root / "manifest.json").read_bytes())
    assert [c["name"] for c in body["rivet_dagster"]["column_checksums"]] == ["days"]
    assert "days" not in [c["name"] for c in body["column_checksums"]]
    made.edit_manifest(lambda b: b["rivet_dagster"].update(future={"deep": [1]}))
    assert judged(made).passed


def test_the_reference_reads_our_encodings(tmp_path: Path) -> None:
    made = Prefix(tmp_path / "out" / "orders")
    made.write_run([table(0, 100)])
    encodings = {"id": "DELTA_BINARY_PACKED"}
    rows = pq.read_table(made.path())
    pq.write_table(
        rows, made.path(), use_dictionary=["name"], column_encoding=encodings, data_page_version="2.0",
        write_page_index=True, write_page_checksum=True, store_decimal_as_integer=True,
    )  # fmt: skip
    stamped = made.part(made.path().name, 100, None)
    made.edit_manifest(
        lambda b: b["parts"][0].update(
            size_bytes=stamped.size_bytes, content_fingerprint=stamped.fingerprint, content_md5=stamped.md5
        )
    )
    assert judged(made).passed
