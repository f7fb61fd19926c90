"""What the processes of ``export_all`` do with Dagster's files, streams and processes."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from sqlalchemy import event
from sqlalchemy.pool import Pool

from rivet_dagster.assets._running import event_files_open, has_no_threads
from rivet_dagster.assets.gates import tell_checks
from tests.live.dagster.conftest import EXPORTS, Project, instance_in_files
from tests.live.dagster.test_crash import run_worker
from tests.live.dagster.test_many import config

KEY = dg.AssetKey("a")
NAMES = ("one", "two", "three", "four")


@pytest.fixture
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    with instance_in_files(tmp_path_factory.mktemp("dagster_home")) as stored:
        yield stored


@pytest.fixture
def four(project: Project) -> Project:
    for name in NAMES:
        project.db.execute(
            f"CREATE TABLE {name} (id bigint PRIMARY KEY)",
            f"INSERT INTO {name} SELECT g FROM generate_series(1, 100) g",
        )
    return project.write(config(NAMES))


@pytest.fixture
def connections() -> Iterator[list[object]]:
    """Every database connection that SQLAlchemy made."""
    made: list[object] = []

    def note(connection: object, _record: object) -> None:
        made.append(connection)

    event.listen(Pool, "connect", note)
    yield made
    event.remove(Pool, "connect", note)


def materialize(instance: dg.DagsterInstance, times: int) -> str:
    @dg.op
    def op(context: dg.OpExecutionContext) -> None:
        for n in range(times):
            context.log_event(dg.AssetMaterialization(KEY, partition=str(n)))

    @dg.job
    def job() -> None:
        op()

    return job.execute_in_process(instance=instance).run_id


def test_events_need_one_connection_a_file(instance: dg.DagsterInstance, connections: list[object]) -> None:
    materialize(instance, 1)
    connections.clear()
    materialize(instance, 30)
    each = len(connections)
    connections.clear()
    with event_files_open(instance):
        run_id = materialize(instance, 30)
    assert len(connections) < each - 60  # two files an event: of the run and of all runs
    with dg.DagsterInstance.from_ref(instance.get_ref()) as other:
        assert len(other.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)) == 30
        assert other.get_materialized_partitions(KEY) == {str(n) for n in range(30)}
    connections.clear()
    materialize(instance, 30)
    assert len(connections) == each  # as Dagster does it


def test_a_run_of_many_chunks_connects_for_none_of_them(project: Project, connections: list[object]) -> None:
    """As users run it: in process, on an instance with files."""
    project.write(EXPORTS.replace("chunk_size: 100", "chunk_size: 5"))
    connections.clear()
    result = project.run("export_orders")
    assert result.success
    assert len(project.materialized(result, dg.AssetKey(["rivet", "orders", "chunks"]))) == 101
    assert len(connections) < 100
    assert project.instance.get_latest_materialization_event(dg.AssetKey(["rivet", "orders"]))


PRINTING = """
import os, sys
import dagster as dg
from rivet_dagster.assets._running import captured_logs
with dg.DagsterInstance.from_config(sys.argv[1]) as instance:
    with captured_logs(instance, ["r", "compute_logs", "abc"]) as logs:
        os.write(1, b"to output")
        os.write(2, b"to error")
        assert not instance.compute_log_manager.is_capture_complete(["r", "compute_logs", "abc"])
    assert instance.compute_log_manager.is_capture_complete(["r", "compute_logs", "abc"])
    print(*(open(path).read() for path in logs.paths), sep=", ")
"""


def test_what_a_process_prints_is_in_its_log_and_nowhere_else(instance: dg.DagsterInstance) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PRINTING, instance.root_directory]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("to output, to error\n", "")


def test_a_process_with_a_thread_is_not_forked() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    assert not has_no_threads()
    over.set()
    thread.join()
    alone = (
        "from rivet_dagster.assets._running import has_no_threads; import pyarrow; print(has_no_threads())"
    )
    assert subprocess.check_output([sys.executable, "-c", alone], text=True) == "True\n"


def test_the_console_shows_what_each_step_prints_once(four: Project) -> None:
    with run_worker(four, "export_all") as worker:
        assert worker.wait(120) == 0
    console = (four.folder / "worker.log").read_text()
    (run,) = four.instance.get_runs()
    ended = [line for line in console.splitlines() if " - STEP_SUCCESS - " in line]
    assert len(ended) == 4
    logs = four.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.LOGS_CAPTURED)
    manager = four.instance.compute_log_manager
    for name in NAMES:
        (captured,) = (
            log.get_dagster_event().logs_captured_data
            for log in logs
            if log.get_dagster_event().logs_captured_data.step_keys == [f"rivet_export__{name}"]
        )
        key = manager.build_log_key_for_run(run.run_id, captured.file_key)
        assert manager.is_capture_complete(key)
        text = (manager.get_log_data(key).stderr or b"").decode()
        assert f"rivet_export__{name} - STEP_SUCCESS" in text
        assert not [other for other in NAMES if other != name and f"__{other} " in text]
        for line in text.splitlines():
            assert line in console
            assert console.count(line) == 1 or name not in line


THREADED = """
import threading, time
threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
from rivet_dagster.definitions import defs
"""


@pytest.mark.parametrize("threaded", [False, True])
def test_processes_are_forked_unless_there_are_threads(four: Project, threaded: bool) -> None:
    (four.folder / "with_a_thread.py").write_text(THREADED)
    module = "with_a_thread" if threaded else "rivet_dagster.definitions"
    with run_worker(four, "export_all", module=module, PYTHONPATH=f"{four.folder}:{os.getcwd()}") as worker:
        commands: set[str] = set()
        while worker.poll() is None:
            commands |= session_commands(worker.pid)
            time.sleep(0.05)
    assert worker.returncode == 0, (four.folder / "worker.log").read_text()[-3000:]
    assert any("forkserver" in command for command in commands) == threaded
    (run,) = four.instance.get_runs()
    assert run.status == dg.DagsterRunStatus.SUCCESS


def session_commands(session: int) -> set[str]:
    """Command lines of the processes in ``session``."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[3]) == session:
                found.add((stat.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def test_checks_of_export_all_are_told_without_being_planned(four: Project) -> None:
    with run_worker(four, "export_all") as worker:
        assert worker.wait(120) == 0
    (run,) = four.instance.get_runs()
    assert not four.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED)
    logs = four.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    told = [log.get_dagster_event().asset_check_evaluation_data for log in logs]
    assert {(e.asset_key.path[-1], e.check_name) for e in told} == {
        (name, check) for name in NAMES for check in ("validate", "drift")
    }
    for evaluation in told:
        assert evaluation.passed
        (newest,) = four.instance.fetch_materializations(evaluation.asset_key, limit=1).records
        assert evaluation.target_materialization_data
        assert evaluation.target_materialization_data.storage_id == newest.storage_id


@pytest.mark.parametrize(
    ("severity", "success"), [(dg.AssetCheckSeverity.ERROR, False), (dg.AssetCheckSeverity.WARN, True)]
)
def test_a_logged_check_blocks_like_a_selected_one(
    instance: dg.DagsterInstance, severity: dg.AssetCheckSeverity, success: bool
) -> None:
    failed = dg.AssetCheckResult(asset_key=KEY, check_name="validate", passed=False, severity=severity)
    passed = dg.AssetCheckResult(asset_key=KEY, check_name="drift", passed=True)

    @dg.op
    def op(context: dg.OpExecutionContext) -> None:
        assert list(tell_checks(context, iter([failed, passed]))) == []

    @dg.job
    def job() -> None:
        op()

    result = job.execute_in_process(instance=instance, raise_on_error=False)
    logs = instance.all_logs(result.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    told = [log.get_dagster_event().asset_check_evaluation_data for log in logs]
    assert [(e.check_name, e.passed, e.severity) for e in told] == [
        ("validate", False, severity),
        ("drift", True, dg.AssetCheckSeverity.ERROR),
    ]
    assert result.success == success
