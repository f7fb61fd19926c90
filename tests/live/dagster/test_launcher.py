"""A SQLite state on a worker that does not last is refused (D5); PostgreSQL and a host are not."""

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.in_process import InProcessExecutor

from rivet_dagster import RivetResource
from rivet_dagster.assets.build import load_export_assets
from rivet_dagster.assets.launcher import Worker, launched_by, worker_of
from rivet_dagster.assets.sensors import reap_stale_runs
from rivet_dagster.engine.errors import RefusalError
from rivet_dagster.engine.state.location import StateLocation
from tests.live.dagster.conftest import Project, plain
from tests.services.postgres import TestServer, database

LAUNCHER = """
    from dagster._core.launcher import DefaultRunLauncher

    class K8sRunLauncher(DefaultRunLauncher):
        pass
"""

SHARED = """
exports:
  - name: orders
    table: public.orders
    mode: chunked
    chunk_column: id
    format: parquet
    destination: {type: local, path: ./out/orders}
    dagster: {workers: 2}
"""


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """An instance whose runs are launched on pods, as its dagster.yaml says."""
    packages, home = tmp_path / "packages", tmp_path / "home"
    (packages / "dagster_k8s").mkdir(parents=True)
    (packages / "dagster_k8s" / "__init__.py").write_text("")
    (packages / "dagster_k8s" / "launcher.py").write_text(textwrap.dedent(LAUNCHER))
    home.mkdir()
    (home / "dagster.yaml").write_text(
        "telemetry: {enabled: false}\nrun_launcher: {module: dagster_k8s.launcher, class: K8sRunLauncher}\n"
    )
    monkeypatch.syspath_prepend(str(packages))
    for name in [name for name in sys.modules if name.split(".")[0] == "dagster_k8s"]:
        monkeypatch.delitem(sys.modules, name)  # the real one, which another test may have loaded
    with dg.DagsterInstance.from_config(str(home)) as stored:
        yield stored
    for name in [name for name in sys.modules if name.split(".")[0] == "dagster_k8s"]:
        del sys.modules[name]


def refused(project: Project, job: str, *steps: str) -> None:
    result = project.run(job)
    assert not result.success
    failures = project.instance.all_logs(result.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    assert sorted(str(failed.step_key) for failed in failures) == sorted(steps)
    for failed in failures:
        assert failed.dagster_event is not None
        data = failed.dagster_event.step_failure_data.user_failure_data
        assert data is not None
        metadata = plain(data.metadata)
        assert (metadata["code"], metadata["class"]) == ("RIVET_STATE_EPHEMERAL", "refusal")
        assert "PostgreSQL" in metadata["action"]


def test_every_step_on_a_pod_refuses_a_file_and_reads_nothing(
    project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    refused(project, "export_orders", "rivet_export__orders")
    refused(project, "validate_orders", "rivet_export__orders")
    refused(project, "reconcile_orders", "rivet_reconcile__orders")
    refused(project, "repair_orders", "rivet_repair__orders")
    assert "K8sRunLauncher starts a pod for each run" in capfd.readouterr().err
    assert not list(project.folder.glob("rivet_state*"))
    assert not project.out.exists()


def test_each_step_of_a_shared_run_refuses_it_too(project: Project) -> None:
    project.write(SHARED)
    refused(project, "export_orders", "rivet_lead__orders", "rivet_worker__orders_1")
    assert not list(project.folder.glob("rivet_state*"))


def test_a_state_in_postgres_serves_pods(
    project: Project, pg: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database(pg) as kept:
        monkeypatch.setenv("RIVET_STATE_URL", kept.url)
        assert project.run("export_orders").success
    assert project.rows("orders") == 500


def test_the_reaper_does_not_judge_pods_by_a_file_of_its_own(project: Project) -> None:
    """Its own file would show no lease: every live run would look dead."""
    job = project.defs.resolve_job_def("export_orders")
    run = project.instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    with pytest.raises(RefusalError):
        reap_stale_runs(
            project.instance,
            project.config,
            load_export_assets(project.config),
            RivetResource(),
            min_age_s=0.0,
        )
    answer = project.tick("rivet_stale_runs")
    assert "[RIVET_STATE_EPHEMERAL]" in str(answer.skip_reason)
    kept = project.instance.get_run_by_id(run.run_id)
    assert kept is not None
    assert kept.status == dg.DagsterRunStatus.STARTED


@pytest.mark.parametrize(
    ("lives", "url", "lasts"),
    [
        ("host", None, True),
        ("container", None, False),
        ("container", "sqlite:/mnt/state", True),
        ("pod", None, False),
        ("pod", "sqlite:/mnt/state", False),
        ("pod", "postgresql://localhost/state", True),
    ],
)
def test_what_lasts(lives: str, url: str | None, lasts: bool, tmp_path: Path) -> None:
    location = StateLocation.parse(url, tmp_path)
    worker = Worker(lives, "the launcher")  # type: ignore[arg-type]
    if lasts:
        worker.require_lasting(location)
        return
    with pytest.raises(RefusalError) as caught:
        worker.require_lasting(location)
    assert caught.value.code == "RIVET_STATE_EPHEMERAL"


def test_a_host_is_what_nobody_says_otherwise() -> None:
    with dg.DagsterInstance.ephemeral() as ours:
        assert launched_by(ours) == Worker()


@dg.executor(name="k8s")
def on_pods(_: dg.InitExecutorContext) -> dg.Executor:
    return InProcessExecutor(RetryMode.DISABLED)


@dg.op
def where(context: dg.OpExecutionContext) -> None:
    context.log.info(f"lives on a {worker_of(context).lives}")


@dg.job(executor_def=on_pods)
def stepwise() -> None:
    where()


def test_an_executor_that_starts_pods_counts_too(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with dg.DagsterInstance.from_config(str(tmp_path)) as ours:
        done = dg.execute_job(dg.reconstructable(stepwise), ours)
        assert done.success
        assert any("lives on a pod" in entry.user_message for entry in ours.all_logs(done.run_id))
