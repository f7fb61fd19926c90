"""``skip_empty``: a run without rows leaves the folder as it is."""

from __future__ import annotations

from typing import Any

import pytest

from rivet_dagster.engine.errors import IntegrityError
from tests.live.modes.kit import Project

WAYS: dict[str, dict[str, Any]] = {
    "full": {"mode": "full"},
    "query": {"mode": "full", "query": "SELECT * FROM t"},
    "range": {"mode": "chunked", "chunk_column": "n"},
    "keyset": {"mode": "chunked", "chunk_by_key": "n"},
    "keyset_incremental": {"mode": "chunked", "chunk_by_key": "n", "keyset_incremental": True},
    "incremental": {"mode": "incremental", "cursor_column": "n"},
    "late_rows": {"mode": "incremental", "cursor_column": "made", "late_rows": "1h"},
    "time_window": {"mode": "time_window", "time_column": "made", "days_window": 3},
    "folders": {"mode": "full", "partition_by": "made"},
}


def fresh(project: Project, way: str) -> dict[str, Any]:
    project.db.execute("CREATE TABLE t (n int PRIMARY KEY, made timestamptz)")
    keys = {"skip_empty": True, **WAYS[way]}
    if "partition_by" in keys:
        keys["destination"] = {"type": "local", "path": str(project.prefix / "{partition}")}
    return keys


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_written_and_nothing_moves(project: Project, way: str) -> None:
    ran = project.run(**fresh(project, way))
    assert (ran.outcome.status, ran.outcome.rows, ran.plan.units) == ("skipped", 0, ())
    assert "rows" in (ran.outcome.skip_reason or "")
    assert not project.prefix.exists() or not list(project.prefix.iterdir())
    project.db.execute("INSERT INTO t VALUES (1, now())")
    assert project.run().outcome.rows == 1
    assert list(project.prefix.glob("**/_SUCCESS"))


@pytest.mark.parametrize("way", ["full", "range", "time_window"])
def test_what_an_earlier_run_wrote_stays(project: Project, way: str) -> None:
    keys = fresh(project, way)
    project.db.execute("INSERT INTO t VALUES (1, now())")
    project.run(**keys)
    before = {p: p.read_bytes() for p in project.prefix.iterdir()}
    project.db.execute("DELETE FROM t")
    assert project.run().outcome.status == "skipped"
    assert {p: p.read_bytes() for p in project.prefix.iterdir()} == before


def test_without_it_an_empty_file_shows_the_columns(project: Project) -> None:
    ran = project.run(**fresh(project, "full") | {"skip_empty": False})
    assert (ran.outcome.status, ran.outcome.files) == ("success", 1)


def test_rows_that_went_after_the_plan_leave_an_empty_manifest(project: Project) -> None:
    keys = fresh(project, "range")
    project.db.execute("INSERT INTO t VALUES (1, now())")
    ran = project.run(lambda: project.db.execute("DELETE FROM t"), **keys)
    assert (ran.outcome.status, ran.outcome.rows, ran.outcome.files) == ("success", 0, 0)
    assert project.manifest().parts == ()
    assert (project.prefix / "_SUCCESS").exists()
    assert project.reconcile() == "match"
    with project.engine() as engine:
        assert engine.validate("o").status == "pass"


def test_a_gate_looks_at_the_rows_that_are_not_there(project: Project) -> None:
    with pytest.raises(IntegrityError):
        project.run(**fresh(project, "full"), quality={"row_count_min": 1})
