"""Exports that several steps share: under executors of one process, of many, and of many hosts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
import psycopg
import pytest

from rivet_dagster.demo.install import ServerNotInstalledError
from rivet_dagster.engine.errors import ConfigError
from tests.conftest import without
from tests.live.dagster.conftest import HEAD, Project, plain
from tests.services.postgres import TestServer, database
from tests.services.redis import redis

CHUNKS = dg.AssetKey(["rivet", "orders", "chunks"])
TABLE = dg.AssetKey(["rivet", "orders"])
GRID = [f"{low:012d}" for low in range(0, 501, 20)]

SHARED = """
exports:
  - name: orders
    table: public.orders
    mode: chunked
    chunk_column: id
    chunk_size: 20
    format: parquet
    destination: {type: local, path: ./out/orders}
    tuning: {batch_size: 5, throttle_ms: 60}
    dagster: {workers: 3}
"""


def head(executor: str) -> str:
    return f"{HEAD}\ndagster:\n  executor: {executor}\n"


@pytest.fixture
def state_url(pg: TestServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with database(pg) as state:
        monkeypatch.setenv("RIVET_STATE_URL", state.url)
        monkeypatch.setenv("RIVET_LEASE_TTL_S", "3")
        yield state.url


def workers(url: str) -> Counter[str]:
    """Process -> units that it did, all runs together."""
    with psycopg.connect(url) as state:
        rows = state.execute("SELECT claimed_by FROM chunk_task WHERE status = 'completed'").fetchall()
    return Counter(str(worker).rpartition("/")[0] for (worker,) in rows)


def check_told(instance: dg.DagsterInstance, run_id: str) -> None:
    """Each partition once, the table once, and its checks."""
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    records = instance.get_records_for_run(run_id, of_type=kind).records
    found = [r.event_log_entry.asset_materialization for r in records]
    chunks = [m.partition for m in found if m is not None and m.asset_key == CHUNKS]
    assert sorted(map(str, chunks)) == GRID
    (table,) = [m for m in found if m is not None and m.asset_key == TABLE]
    assert plain(table.metadata)["rows"] == 500
    kind = dg.DagsterEventType.ASSET_CHECK_EVALUATION
    events = [
        r.event_log_entry.dagster_event for r in instance.get_records_for_run(run_id, of_type=kind).records
    ]
    checks = [e.asset_check_evaluation_data for e in events if e is not None]
    assert {(c.check_name, c.passed) for c in checks} == {("drift", True), ("validate", True)}


def test_in_one_process_the_lead_does_everything(project: Project, state_url: str) -> None:
    project.write(SHARED, head("{in_process: {}}"))
    started = time.monotonic()
    result = project.run("export_orders")
    assert result.success
    check_told(project.instance, result.run_id)
    assert len(workers(state_url)) == 1
    assert project.rows("orders") == 500
    assert time.monotonic() - started < 60


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance that other processes open too."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance


@contextmanager
def process(project: Project, home: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program with the project's environment; killed with all that it started."""
    with (project.folder / "process.log").open("ab") as log:
        started = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", *command],
            env={**os.environ, "DAGSTER_HOME": home, "RIVET_CONFIG": str(project.path)},
            cwd=project.folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield started
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()


JOB = ("dagster", "job", "execute", "-m", "rivet_dagster.definitions", "-j", "export_orders")


def the_run(instance: dg.DagsterInstance) -> dg.DagsterRun:
    (run,) = instance.get_runs()
    return run


def guest_at_work(url: str, seconds: float = 60) -> int:
    """Pid of a process that holds a unit and does not lead."""
    query = (
        "SELECT claimed_by, pid FROM chunk_task, state_lease"
        " WHERE status = 'running' AND lease_key = 'chunk-run:orders'"
    )
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with psycopg.connect(url) as state, suppress(psycopg.errors.UndefinedTable):
            for worker, lead in state.execute(query):
                pid = int(str(worker).rpartition("/")[0].rpartition(":")[2])
                if pid != lead:
                    return pid
        time.sleep(0.1)
    pytest.fail("no guest had a unit")


def test_steps_in_processes_share_the_run_and_one_may_be_killed(
    project: Project, state_url: str, stored: dg.DagsterInstance
) -> None:
    project.write(SHARED, head("{multiprocess: {max_concurrent: 3}}"))
    with process(project, stored.root_directory, *JOB) as job:
        os.kill(guest_at_work(state_url), signal.SIGKILL)
        job.wait(timeout=120)
    run = the_run(stored)
    check_told(stored, run.run_id)
    assert run.status == dg.DagsterRunStatus.FAILURE  # a step died, and that is not hidden
    assert len(workers(state_url)) >= 2
    assert project.rows("orders") == 500


def test_celery_workers_share_the_run(project: Project, state_url: str, stored: dg.DagsterInstance) -> None:
    try:
        with redis() as broker, pytest.MonkeyPatch.context() as patch:
            patch.setenv("RIVET_TEST_BROKER", broker)
            settings = "{broker: {env: RIVET_TEST_BROKER}, backend: {env: RIVET_TEST_BROKER}}"
            project.write(SHARED, head(f"{{celery: {settings}}}"))
            # what dagster-celery's app reads, found beside the program
            (project.folder / "dagster_celery_config.py").write_text(
                f"broker_url = {broker!r}\nresult_backend = {broker!r}\n"
            )
            start = ("celery", "-A", "dagster_celery.app", "worker", "--concurrency=3", "-Q", "dagster")
            with (
                process(project, stored.root_directory, *start),
                process(project, stored.root_directory, *JOB) as job,
            ):
                assert job.wait(timeout=90) == 0, (project.folder / "process.log").read_text()[-3000:]
    except ServerNotInstalledError:
        without("redis-server")
    run = the_run(stored)
    assert run.status == dg.DagsterRunStatus.SUCCESS
    check_told(stored, run.run_id)
    assert len(workers(state_url)) >= 2
    assert project.rows("orders") == 500


def test_an_executor_whose_package_is_missing_names_the_key(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(SHARED, head("{k8s: {job_namespace: etl}}"))
    monkeypatch.setitem(sys.modules, "dagster_k8s", None)
    with pytest.raises(ConfigError, match=r"rivet-dagster\[k8s\]") as caught:
        _ = project.defs
    assert caught.value.field == "dagster.executor"
