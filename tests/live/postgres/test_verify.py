"""Validate, reconcile and repair on exports of a real server: what holds, and what planted faults do."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rivet_dagster.config import load_config
from rivet_dagster.engine.run.engine import Engine
from rivet_dagster.engine.verify.repair import plan_repair, read_report
from rivet_dagster.engine.verify.report import ValidationReport
from tests.services.peer_exports import TABLES, exports
from tests.services.postgres import TestDatabase, TestServer, database
from tests.services.rivet_cli import write_config

NAMES = [entry["name"] for entry in exports(Path())]
BY_UNIT = ["ranges", "keyset", "text_ranges"]


@dataclass
class Shop:
    """A database, a config over it, and an engine."""

    db: TestDatabase
    engine: Engine

    def run(self, name: str, only: tuple[str, ...] | None = None) -> None:
        with self.engine.session(name, holder="test") as session:
            session.plan(only=only)
            for _ in session.execute():
                pass
            session.finalize()

    def folder(self, name: str) -> Path:
        return Path(self.engine.prefix(self.engine.export(name)))


@contextlib.contextmanager
def open_shop(pg: TestServer, root: Path) -> Iterator[Shop]:
    with database(pg) as db:
        db.execute(*TABLES)
        config = write_config(root / "rivet.yaml", db.url, exports(root / "out"))
        with Engine(load_config(config), state_url=f"sqlite:{root}") as engine:
            yield Shop(db, engine)


@pytest.fixture
def shop(pg: TestServer, tmp_path: Path) -> Iterator[Shop]:
    with open_shop(pg, tmp_path) as opened:
        yield opened


@pytest.fixture(scope="module")
def exported(pg: TestServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A shop whose exports are done; row 5 of ``every_type`` is put back after a change."""
    with open_shop(pg, tmp_path_factory.mktemp("exported")) as opened:
        opened.db.execute("CREATE TABLE kept AS SELECT * FROM every_type WHERE id = 5")
        for name in NAMES:
            opened.run(name)
        yield opened


def spotless(report: ValidationReport) -> bool:
    """Nothing to say, but of CSV that its parts carry no sums of their values."""
    csv = report.export_name.startswith("text")
    return report.passed and [f.kind for f in report.findings] == ["value_check_not_available"] * csv


@pytest.mark.parametrize("name", NAMES)
def test_a_finished_export_is_whole_and_matches_its_source(exported: Shop, name: str) -> None:
    shop = exported
    report = shop.engine.validate(name)
    assert spotless(report), report.findings
    reconciled = shop.engine.reconcile(name)
    assert reconciled.status == "match", [u.note for u in reconciled.units]
    rows = {"every_type": 1010, "empty_table": 0, "flat": 1000}[shop.engine.export(name).table or ""]
    assert reconciled.as_json()["summary"]["total_source_rows"] == rows


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ("UPDATE every_type SET uid = NULL WHERE id = 5", "uid"),
        ("UPDATE every_type SET amount = amount + 0.01 WHERE id = 5", "amount"),
        ("UPDATE every_type SET wide = -wide WHERE id = 5", "wide"),
        ("UPDATE every_type SET precise = 1e300 WHERE id = 5", "precise"),
        ("UPDATE every_type SET at_utc = at_utc + interval '1 us' WHERE id = 5", "at_utc"),
        ("UPDATE every_type SET clock = clock + interval '1 us' WHERE id = 5", "clock"),
        ("UPDATE every_type SET word = word || ' ' WHERE id = 5", "word"),
        ("UPDATE every_type SET doc = '{}' WHERE id = 5", "doc"),
        ("UPDATE every_type SET raw = raw || '\\x00' WHERE id = 5", "raw"),
        ("UPDATE every_type SET numbers = '{}' WHERE id = 5", "numbers"),
        ("UPDATE every_type SET flag = NOT flag WHERE id = 5", "flag"),
        ("UPDATE every_type SET day = NULL WHERE id = 5", "day"),
    ],
)
@pytest.mark.parametrize("name", ["ranges", "full"])
def test_one_cell_that_changed_is_found_at_an_equal_count(
    exported: Shop, name: str, change: str, column: str
) -> None:
    exported.db.execute(change)
    try:
        report = exported.engine.reconcile(name)
    finally:
        exported.db.execute(
            "DELETE FROM every_type WHERE id = 5", "INSERT INTO every_type SELECT * FROM kept"
        )
    assert [u.status for u in report.units].count("mismatch") == 1
    first = report.units[0]
    assert [c for c, _ in first.columns] == [column]
    assert first.source_rows == first.exported_rows


@pytest.mark.parametrize("name", BY_UNIT)
def test_a_repair_runs_only_what_differs_and_no_row_is_there_twice(shop: Shop, name: str) -> None:
    shop.run(name)
    table = shop.engine.export(name).table
    shop.db.execute(
        f"DELETE FROM {table} WHERE id BETWEEN 100 AND 120", f"UPDATE {table} SET word = 'new' WHERE id = 5"
    )
    before = {p.name: p.stat().st_mtime_ns for p in shop.folder(name).iterdir() if "-u" in p.name}
    report = shop.engine.reconcile(name)
    assert report.units[0].note is not None
    assert report.units[0].note.startswith("source=")
    assert "diff=-21" in report.units[0].note
    plan = plan_repair(read_report(json.loads(json.dumps(report.as_json()))))
    assert [a.chunk_index for a in plan.actions] == [0]
    shop.run(name, only=plan.partitions)
    assert shop.engine.reconcile(name).status == "match"
    validated = shop.engine.validate(name)
    assert spotless(validated), validated.findings
    after = {p.name: p.stat().st_mtime_ns for p in shop.folder(name).iterdir() if "-u" in p.name}
    carried = before.keys() & after.keys()
    assert len(carried) == len(before) - 1
    assert all(before[n] == after[n] for n in carried)


def test_repaired_rows_are_the_sources_rows(shop: Shop) -> None:
    shop.run("ranges")
    shop.db.execute("UPDATE every_type SET word = 'new' WHERE id = 5")
    shop.run("ranges", only=plan_repair(shop.engine.reconcile("ranges")).partitions)
    files = sorted(shop.folder("ranges").glob("*.parquet"))  # as somebody who knows no manifest reads it
    rows = pq.read_table([str(f) for f in files], columns=["id", "word"])
    assert rows.num_rows == 1010
    assert len(set(rows["id"].to_pylist())) == 1010
    assert dict(zip(rows["id"].to_pylist(), rows["word"].to_pylist(), strict=True))[5] == "new"


def test_windows_that_add_up_stay_valid(shop: Shop) -> None:
    shop.run("window")
    shop.db.execute("INSERT INTO every_type (id) VALUES (2001), (2002)")
    shop.run("window")
    assert spotless(shop.engine.validate("window"))
    assert shop.engine.reconcile("window").units[0].exported_rows == 2
    oldest = min(p for p in shop.folder("window").iterdir() if p.suffix == ".parquet")
    oldest.unlink()
    assert [f.code for f in shop.engine.validate("window", depth="sample").findings] == [
        "RIVET_VERIFY_PART_MISSING"
    ]


def test_a_full_pass_leaves_nothing_of_the_earlier_one(shop: Shop) -> None:
    shop.run("full")
    shop.run("full")
    assert spotless(shop.engine.validate("full"))
