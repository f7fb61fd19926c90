"""Run workers that are really killed: the run is ended, the slot comes back, the next run resumes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import pytest
import yaml
from sqlalchemy.engine import make_url

from rivet_dagster import RivetResource
from rivet_dagster.assets._internal import free_pool_slots, pool_info, pool_limits, set_pool_limit
from rivet_dagster.assets.build import load_export_assets
from rivet_dagster.assets.pools import ensure_pools
from rivet_dagster.assets.reaper import Reaped, holder_of
from rivet_dagster.assets.sensors import reap_stale_runs
from rivet_dagster.engine.run.crashed import record_crash
from rivet_dagster.engine.run.engine import Engine
from tests.live.dagster.conftest import EXPORTS, HEAD, URL_ENV, Project, plain
from tests.live.postgres.rig import run_cli
from tests.services.postgres import TestServer, database

CHUNKS = dg.AssetKey(["rivet", "orders", "chunks"])
PASSWORD_ENV = "RIVET_TEST_DAGSTER_PASSWORD"
TABLE = dg.AssetKey(["rivet", "orders"])
POOL = "rivet_orders"
CRASHED = {
    "code": None, "kind": None, "class": "crashed", "exit_code": None, "retryable": True, "action": None,
    "table": None, "status": "failed", "rows": 0, "files": 0, "stop_reason": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, pg: TestServer) -> Iterator[Path]:
    """A DAGSTER_HOME on PostgreSQL: a stopped process cannot lock others out of it, as on SQLite."""
    home = tmp_path_factory.mktemp("dagster_home")
    with database(pg) as storage:
        url = make_url(storage.url)
        settings = {
            "telemetry": {"enabled": False},
            "storage": {
                "postgres": {
                    "postgres_db": {
                        "scheme": "postgresql+psycopg2",
                        "hostname": url.host,
                        "port": url.port,
                        "username": url.username,
                        "password": {"env": PASSWORD_ENV},
                        "db_name": url.database,
                    }
                }
            },
            "concurrency": {"pools": {"granularity": "op"}},
            "run_retries": {"enabled": True, "max_retries": 0},
        }
        (home / "dagster.yaml").write_text(yaml.safe_dump(settings))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(PASSWORD_ENV, str(url.password))
            yield home


@pytest.fixture
def instance(home: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.from_config(str(home)) as stored:
        yield stored
        stored.wipe()
        for pool in pool_limits(stored):
            stored.event_log_storage.delete_concurrency_limit(pool)


@contextmanager
def run_worker(
    project: Project,
    job: str,
    module: str = "rivet_dagster.definitions",
    options: Sequence[str] = (),
    **environment: str,
) -> Iterator[subprocess.Popen[bytes]]:
    """``dagster job execute`` in a process of its own; killed at the end of the block."""
    command = [sys.executable, "-W", "ignore", "-m", "dagster", "job", "execute"]
    log = project.folder / "worker.log"
    with log.open("ab") as output:
        worker = subprocess.Popen(
            [*command, "-m", module, "-j", job, *options],
            env={
                **os.environ,
                "DAGSTER_HOME": project.instance.root_directory,
                "RIVET_CONFIG": str(project.path),
                **environment,
            },
            cwd=project.folder,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield worker
        finally:
            worker.kill()
            worker.wait()


def stopped_process(worker: subprocess.Popen[bytes], seconds: float = 60.0) -> int:
    """Process id of the worker, or of its child, that stopped itself at a fault point."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if worker.poll() is not None:
            pytest.fail(f"the worker ended with {worker.returncode}")
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                pid, rest = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if rest[0] == "T" and int(rest[2]) == worker.pid:  # its process group
                return pid
        time.sleep(0.1)
    pytest.fail("the worker did not reach the fault point")


def reap(project: Project, min_age_s: float = 0.0) -> list[Reaped]:
    assets = load_export_assets(project.config)
    return reap_stale_runs(project.instance, project.config, assets, RivetResource(), min_age_s=min_age_s)


def slots(project: Project) -> list[str]:
    info = pool_info(project.instance, POOL)
    assert info is not None
    return [slot.run_id for slot in info.claimed_slots]


def test_a_job_runs_end_to_end_on_an_instance_in_postgres(project: Project) -> None:
    ensure_pools(project.instance, project.config)
    with run_worker(project, "export_orders") as worker:
        assert worker.wait(120) == 0
    (run,) = project.instance.get_runs()
    assert run.status == dg.DagsterRunStatus.SUCCESS
    assert project.instance.get_materialized_partitions(CHUNKS) == {f"{n:012d}" for n in range(0, 501, 100)}
    assert project.instance.get_latest_materialization_event(TABLE)
    assert slots(project) == []
    assert project.rows("orders") == 500


def test_setup_sets_what_the_source_stands_and_a_run_leaves_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = f"rivet_source/{URL_ENV}"
    monkeypatch.setenv("DAGSTER_HOME", project.instance.root_directory)
    for limit in (1, 2):
        project.write(head=f"{HEAD}dagster: {{source_pool_limit: {limit}}}\n")
        assert run_cli(monkeypatch, "setup", "-c", str(project.path)) == 0
        assert pool_limits(project.instance) == {pool: limit}
    set_pool_limit(project.instance, pool, 1)  # a person's, for now
    assert ensure_pools(project.instance, project.config) == []
    assert pool_limits(project.instance) == {pool: 1}


def test_two_exports_of_one_source_take_turns(project: Project) -> None:
    project.write(head=f"{HEAD}dagster: {{source_pool_limit: 1}}\n")
    (pool,) = ensure_pools(project.instance, project.config)
    with run_worker(project, "export_orders", RIVET_TEST_PAUSE_AT="after_unit_commit:3") as first:
        stopped_process(first)
        with run_worker(project, "export_events_log") as second:
            info = pool_info(project.instance, pool)
            deadline = time.monotonic() + 60
            while info is not None and not info.pending_step_count and time.monotonic() < deadline:
                assert second.poll() is None, "it did not wait"
                time.sleep(0.2)
                info = pool_info(project.instance, pool)
            assert info is not None
            assert [slot.step_key for slot in info.claimed_slots] == ["rivet_export__orders"]
            first.send_signal(signal.SIGCONT)
            assert first.wait(60) == 0
            assert second.wait(60) == 0
    assert project.rows("events") == 50


def test_a_killed_run_worker_is_reaped_and_the_next_run_resumes(project: Project) -> None:
    project.write(head=HEAD + "lock_wait: 0\n")  # else a lease that is held is itself a reason to wait
    assert ensure_pools(project.instance, project.config) == [POOL, "rivet_events_log"]
    assert ensure_pools(project.instance, project.config) == []
    with run_worker(project, "export_orders", RIVET_TEST_PAUSE_AT="after_unit_commit:3") as worker:
        assert stopped_process(worker) == worker.pid
        (run,) = project.instance.get_runs()
        assert run.status == dg.DagsterRunStatus.STARTED
        assert slots(project) == [run.run_id]
        assert reap(project) == [], "it holds the lease, so it lives"
        worker.kill()
        worker.wait()

    dead = project.instance.get_run_by_id(run.run_id)
    assert dead is not None
    assert dead.status == dg.DagsterRunStatus.STARTED, "nobody told Dagster"
    assert slots(project) == [run.run_id], "a dead run keeps its slot"

    assert reap(project, min_age_s=3600) == [], "too early to tell"
    (reaped,) = reap(project)
    assert (reaped.run.run_id, reaped.exports) == (run.run_id, ("orders",))
    ended = project.instance.get_run_by_id(run.run_id)
    assert ended is not None
    assert ended.status == dg.DagsterRunStatus.FAILURE
    assert slots(project) == []
    assert reap(project) == []
    (crash,) = project.crashes(run).values()
    assert crash == CRASHED | {"export": "orders", "mode": "chunked", "run_id": engine_run(project)}

    result = project.run("export_orders")
    assert result.success
    (table,) = project.materialized(result, TABLE)
    assert plain(table.metadata)["dagster/row_count"] == 500
    assert project.rows("orders") == 500
    attempts = [plain(m.metadata)["attempt"] for m in project.materialized(result, CHUNKS)]
    assert len(attempts) == 6
    log = "".join(e.user_message for e in project.instance.all_logs(result.run_id))
    assert "resumed: 6 units in 6 partitions, 3 to do" in log


def engine_run(project: Project) -> str:
    """The engine's run of ``orders`` that is open, which the state says has crashed."""
    with Engine(project.config, state_url="") as engine:
        (figures,) = engine.state.metrics("orders")
        begun = engine.state.open_run("orders")
        assert begun is not None
        assert engine.state.journal(begun.run_id)[-1].event == "RunFailed"
    assert (figures["run_id"], figures["status"]) == (begun.run_id, "failed")
    assert figures["error"] == {k: CRASHED[k] for k in CRASHED if k in figures["error"]} | {"message": None}
    return begun.run_id


def test_the_sensor_ends_the_run_and_asks_for_one_that_resumes(project: Project) -> None:
    with run_worker(project, "export_orders", RIVET_TEST_CRASH_AT="after_unit_commit:2") as worker:
        worker.wait(60)
    (run,) = project.instance.get_runs()
    assert not project.tick("rivet_stale_runs").run_requests, "too early to tell"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rivet_dagster.assets.reaper.MIN_AGE_S", 0.0)
        (request,) = project.tick("rivet_stale_runs").run_requests or []
    assert request.job_name == "export_orders"
    assert run.run_id in (request.run_key or "")
    assert request.tags["rivet/resume_of"] == run.run_id
    assert len(project.crashes(run)) == 1
    ended = project.instance.get_run_by_id(run.run_id)
    assert ended is not None
    assert not project.tick_failed("rivet_crashed_runs", ended).run_requests, "it is resumed once"
    assert len(project.crashes(run)) == 1


def test_a_live_run_that_waits_its_turn_is_not_reaped(project: Project) -> None:
    """It holds no lease, and is silent: but somebody else has the lease, so it may be waiting."""
    with (
        Engine(project.config) as engine,
        engine.session("orders", holder="somebody else"),
        run_worker(project, "export_orders") as worker,
    ):
        deadline = time.monotonic() + 60
        started = dg.DagsterEventType.STEP_START
        while time.monotonic() < deadline and worker.poll() is None:
            runs = project.instance.get_runs()
            if runs and project.instance.all_logs(runs[0].run_id, of_type=started):
                break
            time.sleep(0.2)
        time.sleep(0.5)
        assert reap(project) == []
        worker.kill()
        worker.wait()
        assert reap(project) == [], "cannot be told apart while the other run holds the lease"
    assert len(reap(project)) == 1


def test_a_killed_step_of_export_all_leaves_the_others(project: Project) -> None:
    """Each export has a process of its own there: the death of one is the failure of one."""
    project.write(EXPORTS)
    with run_worker(project, "export_all", RIVET_TEST_CRASH_AT="after_unit_commit:2") as worker:
        assert worker.wait(120) == 1
    (run,) = project.instance.get_runs()
    assert run.status == dg.DagsterRunStatus.FAILURE
    kinds = {dg.DagsterEventType.STEP_SUCCESS, dg.DagsterEventType.STEP_FAILURE}
    ends = {
        e.dagster_event.step_key: e.dagster_event.event_type
        for e in project.instance.all_logs(run.run_id, of_type=kinds)
        if e.dagster_event
    }
    assert ends == {
        "rivet_export__orders": dg.DagsterEventType.STEP_FAILURE,
        "rivet_export__events_log": dg.DagsterEventType.STEP_SUCCESS,
    }
    assert slots(project) == []

    (request,) = project.tick_failed("rivet_crashed_runs", run).run_requests or []
    assert (request.job_name, request.tags) == ("export_orders", {"rivet/resume_of": run.run_id})
    assert project.crashes(run) == {
        "rivet_export__orders": CRASHED
        | {"export": "orders", "mode": "chunked", "run_id": engine_run(project)}
    }
    with run_worker(project, "export_orders", RIVET_TEST_CRASH_AT="after_unit_commit:1") as worker:
        worker.wait(120)
    (again,) = project.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
    project.instance.add_run_tags(again.run_id, request.tags)
    project.instance.report_run_failed(again, "as run monitoring does")
    free_pool_slots(project.instance, again.run_id)
    again = next(r for r in project.instance.get_runs() if r.run_id == again.run_id)
    assert not project.tick_failed("rivet_crashed_runs", again).run_requests, "the budget is one"
    (crash,) = project.crashes(again).values()
    assert crash["run_id"] == engine_run(project), "it had taken over the run that the first one began"
    with Engine(project.config, state_url="") as engine:
        told_again = record_crash(engine, "orders", holder_of(again.run_id))
        journal = [event.event for event in engine.state.journal(crash["run_id"])]
    assert (told_again["run_id"], journal.count("RunFailed")) == (crash["run_id"], 2), "one for each death"
    assert project.run("export_orders").success
    assert project.rows("orders") == 500


@pytest.mark.parametrize("by", ["reaper", "monitoring"])
def test_a_killed_run_of_many_goes_on_with_those_it_had_not_begun(project: Project, by: str) -> None:
    project.write(EXPORTS)
    one = project.folder / "one.yaml"
    one.write_text("execution: {config: {max_concurrent: 1}}")
    options, pause = ["-c", str(one)], "after_unit_commit:2"
    with run_worker(project, "export_all", options=options, RIVET_TEST_PAUSE_AT=pause) as worker:
        stopped_process(worker)
        worker.kill()
        worker.wait()
    (run,) = project.instance.get_runs()
    started = project.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_START)
    assert [e.get_dagster_event().step_key for e in started] == ["rivet_export__orders"]
    if by == "reaper":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rivet_dagster.assets.reaper.MIN_AGE_S", 0.0)
            deadline = time.monotonic() + 60
            while not (requests := project.tick("rivet_stale_runs").run_requests or []):
                assert time.monotonic() < deadline
    else:
        project.instance.report_run_failed(run, "as run monitoring does")
        free_pool_slots(project.instance, run.run_id)
        ended = project.instance.get_run_by_id(run.run_id)
        assert ended is not None
        requests = project.tick_failed("rivet_crashed_runs", ended).run_requests or []
    (request,) = requests
    assert request.job_name == "export_all"
    assert request.asset_selection == [TABLE, dg.AssetKey(["rivet", "events_log"])]
    assert request.run_config == {"execution": {"config": {"max_concurrent": 1}}}
    assert request.tags["rivet/resume_of"] == run.run_id
    begun = engine_run(project)
    job = project.defs.resolve_job_def("export_all")
    again = job.execute_in_process(instance=project.instance, asset_selection=request.asset_selection)
    assert again.success
    assert project.rows("orders") == 500
    assert project.rows("events") == 50
    with Engine(project.config, state_url="") as engine:
        last = engine.state.latest_run("orders")
        assert last is not None
        assert last.run_id == begun, "it is the run that was killed which is complete now"


def test_a_run_that_failed_by_itself_is_no_crash(project: Project) -> None:
    project.db.execute("DROP TABLE orders")
    result = project.run("export_orders")
    assert not result.success
    answer = project.tick_failed("rivet_crashed_runs", result.dagster_run)
    assert (answer.run_requests, project.crashes(result.dagster_run)) == ([], {})


def test_a_worker_killed_before_it_had_a_run_is_told_without_one(project: Project) -> None:
    with run_worker(project, "export_orders", RIVET_TEST_CRASH_AT="after_lease") as worker:
        worker.wait(60)
    (run,) = project.instance.get_runs()
    assert len(reap(project)) == 1
    (crash,) = project.crashes(run).values()
    assert crash == CRASHED | {"export": "orders", "mode": "chunked", "run_id": ""}
