"""``export_all``: order, budgets, crashes and the sum of it all, on real processes."""

from __future__ import annotations

import json
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest

from rivet_dagster.engine.run.engine import Engine
from tests.live.dagster.conftest import HEAD, Project, instance_in_files
from tests.live.dagster.test_crash import run_worker
from tests.services.postgres import TestDatabase

ROWS = {"tiny": 10, "small": 2_000, "middle": 60_000, "large": 200_000, "other": 500, "none": 0}
EXPORT = """
  - name: {name}
    table: public.{name}
    format: parquet
    destination: {{type: local, path: ./out/{name}}}
"""


@pytest.fixture
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    pools = "concurrency: {pools: {granularity: op}}\n"
    with instance_in_files(tmp_path_factory.mktemp("dagster_home"), pools) as stored:
        yield stored


@pytest.fixture
def many(project: Project) -> Project:
    """Six tables, analysed; the config has them in the order of ``ROWS``."""
    for name, rows in ROWS.items():
        project.db.execute(
            f"CREATE TABLE {name} (id bigint PRIMARY KEY, note text)",
            f"INSERT INTO {name} SELECT g, repeat('n', 60) FROM generate_series(1, {rows}) g",
        )
    project.db.execute("ANALYZE")
    return project.write(config(ROWS))


def config(names: Any, **keys: str) -> str:
    """``exports:`` with further lines for some of them."""
    text = "exports:\n"
    for name in names:
        text += EXPORT.format(name=name) + (f"    {keys[name]}\n" if name in keys else "")
    return text


def export_all(project: Project, code: int = 0, **environment: str) -> dg.DagsterRun:
    with run_worker(project, "export_all", **environment) as worker:
        assert worker.wait(120) == code, (project.folder / "worker.log").read_text()[-3000:]
    return project.instance.get_runs(limit=1)[0]


def times(project: Project, run: dg.DagsterRun) -> dict[str, tuple[float, float]]:
    """When each export's step began and ended."""
    found = {}
    for stats in project.instance.get_run_step_stats(run.run_id):
        name = stats.step_key.removeprefix("rivet_export__")
        found[name] = (stats.start_time or 0.0, stats.end_time or 0.0)
    return found


def begun(project: Project, run: dg.DagsterRun) -> list[str]:
    found = times(project, run)
    return sorted(found, key=lambda name: found[name][0])


def overlap(found: dict[str, tuple[float, float]], one: str, other: str) -> bool:
    return found[one][0] < found[other][1] and found[other][0] < found[one][1]


def aggregate(project: Project) -> dict[str, Any]:
    with Engine(project.config) as engine:
        (last, *_) = engine.state.aggregates(1)
        return last


@contextmanager
def sessions(db: TestDatabase) -> Iterator[list[int]]:
    """How many sessions of exports the server had, looked at every few milliseconds."""
    seen: list[int] = []
    over = threading.Event()

    def look() -> None:
        with psycopg.connect(db.url, autocommit=True) as conn:
            while not over.wait(0.005):
                row = conn.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                    " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
                ).fetchone()
                assert row is not None
                seen.append(int(row[0]))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


ONE = "dagster: {max_connections: 1}\n"


def test_first_by_size_then_by_what_the_runs_took(many: Project) -> None:
    """One at a time, so that the order is seen: a budget of one session lets each run alone."""
    many.write(config(ROWS), HEAD + ONE)
    run = export_all(many)
    assert begun(many, run)[:3] == ["none", "large", "middle"], "a table without pages counts as unknown"
    with Engine(many.config) as engine:
        took = {name: past.seconds for name, past in engine.state.pasts(list(ROWS)).items()}
        assert took.keys() == ROWS.keys()
        assert all(past.peak_mb for past in engine.state.pasts(list(ROWS)).values())
    with _history(many) as db:
        db.execute("UPDATE export_metrics SET duration_ms = 1 WHERE export_name = 'large'")
        db.execute("UPDATE export_metrics SET duration_ms = 99000 WHERE export_name = 'tiny'")
    second = begun(many, export_all(many))
    assert second[0] == "tiny"
    assert second[-1] == "large"


@contextmanager
def _history(project: Project) -> Iterator[Any]:
    with Engine(project.config) as engine:
        place = engine.state_location
    path = Path(str(place.path))
    with sqlite3.connect(path) as db:
        yield db


def test_all_sessions_together_stay_within_the_budget(many: Project) -> None:
    many.write(config(ROWS), HEAD + "dagster: {max_connections: 6}\n")
    with sessions(many.db) as seen:
        run = export_all(many)
    assert max(seen) <= 6
    found = times(many, run)
    names = list(found)
    assert any(overlap(found, a, b) for a in names for b in names if a < b), "two exports fit"
    assert sum(many.rows(name) for name in ROWS) == sum(ROWS.values())


def test_heavy_exports_never_run_together(many: Project) -> None:
    heavy = ("large", "middle", "small")
    many.write(config(ROWS, **dict.fromkeys(heavy, "parallel_safe: false")))
    found = times(many, export_all(many))
    assert not any(overlap(found, a, b) for a in heavy for b in heavy if a < b)
    light = [name for name in ROWS if name not in heavy]
    assert any(overlap(found, a, b) for a in heavy for b in light), "the light ones fill the gaps"


def test_a_lower_wave_begins_first(many: Project) -> None:
    many.write(config(ROWS, other="wave: 1", tiny="wave: 2"), HEAD + ONE)
    assert begun(many, export_all(many))[:2] == ["other", "tiny"]


def test_a_killed_process_fails_its_export_and_the_sum_lists_them_all(many: Project) -> None:
    """The process of the second export that commits dies; the others go on in new ones."""
    many.db.execute("DROP TABLE other")
    run = export_all(many, 1, RIVET_TEST_CRASH_AT="after_unit_commit:2")
    assert run.status == dg.DagsterRunStatus.FAILURE
    last = aggregate(many)
    entries = {entry["export_name"]: entry for entry in last["per_export"]}
    assert entries.keys() == ROWS.keys()
    crashed = [name for name, e in entries.items() if e["error"] and e["error"]["class"] == "crashed"]
    assert crashed, "several processes live long enough for a second export"
    assert entries["other"]["status"] == "failed"
    assert entries["other"]["error"]["code"] is not None
    done = {name for name, e in entries.items() if e["status"] == "success"}
    assert done | set(crashed) | {"other"} == ROWS.keys()
    assert last["success_count"] == len(done)
    assert last["failed_count"] == len(crashed) + 1
    for name in done:
        assert many.rows(name) == ROWS[name] == entries[name]["rows"]
    (line,) = [
        e.dagster_event.engine_event_data.metadata["exports"]
        for e in many.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
        if e.dagster_event and "exports" in e.dagster_event.engine_event_data.metadata
    ]
    assert {entry["export"] for entry in json.loads(json.dumps(line.value))} == ROWS.keys()
    again = export_all(many.write(config([name for name in ROWS if name != "other"])))
    assert again.status == dg.DagsterRunStatus.SUCCESS
    assert all(many.rows(name) == rows for name, rows in ROWS.items() if name != "other")


def test_a_run_that_is_stopped_ends_its_processes(many: Project) -> None:
    many.db.execute("INSERT INTO large SELECT g, 'x' FROM generate_series(1000000, 3000000) g")
    with run_worker(many, "export_all") as worker:
        deadline = time.monotonic() + 60
        while not list((many.out).glob("*/*.parquet")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) != 0
    assert many.instance.get_runs(limit=1)[0].status in {
        dg.DagsterRunStatus.CANCELED,
        dg.DagsterRunStatus.FAILURE,
    }
