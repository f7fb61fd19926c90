"""One test for each call into parts of Dagster that are not public: run these first on an upgrade."""

import multiprocessing
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from rivet_dagster.assets import _internal

KEY = dg.AssetKey("a")
PARTS = dg.DynamicPartitionsDefinition(name="parts")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """With files: pools need a real storage."""
    with dg.instance_for_test() as stored:
        yield stored


def fail_with_planned(instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    @dg.asset(key=KEY, partitions_def=PARTS)
    def a() -> None: ...

    @dg.op
    def op(context: dg.OpExecutionContext) -> None:
        context.log_event(dg.AssetMaterialization(KEY, partition="good"))
        _internal.mark_partitions_planned(
            instance, run_id=context.run_id, job_name="j", step_key="op", asset_key=KEY, partitions=["bad"]
        )
        raise dg.Failure("no", allow_retries=False)

    @dg.job
    def j() -> None:
        op()

    return j.execute_in_process(instance=instance, raise_on_error=False)


def test_a_partition_that_was_marked_planned_shows_failed(instance: dg.DagsterInstance) -> None:
    instance.add_dynamic_partitions("parts", ["good", "bad", "missing"])
    assert not fail_with_planned(instance).success
    found = instance.get_status_by_partition(KEY, ["good", "bad", "missing"], PARTS)
    assert found is not None
    assert {k: v.name if v else None for k, v in found.items()} == {
        "good": "MATERIALIZED",
        "bad": "FAILED",
        "missing": None,
    }


def test_latest_materializations_page_through_all(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_internal, "_PAGE", 2)
    keys = [f"k{n}" for n in range(5)]
    for key in [*keys, "k0"]:
        instance.report_runless_asset_event(dg.AssetMaterialization(KEY, partition=key))
    found = _internal.latest_materializations(instance, KEY, [*keys, "never"])
    assert set(found) == set(keys)
    assert found["k0"].storage_id == max(target.storage_id for target in found.values())


def test_pool_limits_slots_and_freeing(instance: dg.DagsterInstance) -> None:
    assert _internal.supports_pools(instance)
    assert "p" not in _internal.pool_limits(instance)
    _internal.set_pool_limit(instance, "p", 1)
    assert _internal.pool_limits(instance)["p"] == 1
    storage = instance.event_log_storage
    assert storage.claim_concurrency_slot("p", "run-1", "step").is_claimed
    assert not storage.claim_concurrency_slot("p", "run-2", "step").is_claimed
    info = _internal.pool_info(instance, "p")
    assert info is not None
    assert [slot.run_id for slot in info.claimed_slots] == ["run-1"]
    assert [step.run_id for step in info.pending_steps if step.assigned_timestamp is None] == ["run-2"]
    _internal.free_pool_slots(instance, "run-1")
    assert storage.claim_concurrency_slot("p", "run-2", "step").is_claimed


def test_an_instance_without_pools_is_no_error() -> None:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        assert not _internal.supports_pools(ephemeral)
        assert _internal.pool_info(ephemeral, "p") is None
        assert _internal.pool_limits(ephemeral) == {}
        _internal.free_pool_slots(ephemeral, "run")


def test_a_check_evaluation_of_one_partition_is_kept_without_being_planned(
    instance: dg.DagsterInstance,
) -> None:
    @dg.op
    def op(context: dg.OpExecutionContext) -> None:
        evaluation = dg.AssetCheckEvaluation(KEY, "c", passed=False, partition="k")
        _internal.log_check_evaluation(context, evaluation)

    @dg.job
    def j() -> None:
        op()

    assert j.execute_in_process(instance=instance).success
    history = instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(KEY, "c"), limit=5
    )
    assert [record.partition for record in history] == ["k"]


def test_the_preview_warning_of_partitioned_checks_is_kept_from_users() -> None:
    with warnings.catch_warnings(record=True) as seen, _internal.partitioned_check_preview():
        warnings.simplefilter("always")
        with _internal.partitioned_check_preview():
            dg.AssetCheckSpec("c", asset=KEY, partitions_def=PARTS)
    assert not seen


def test_asset_jobs_have_the_type_that_we_name() -> None:
    assert isinstance(dg.define_asset_job("j"), _internal.AssetJob)


def test_a_process_that_is_no_step_is_not_tied_to_its_parent() -> None:
    """A code server starts run workers as children too, and they must outlive its reload."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(multiprocessing.parent_process) is not None
        assert pool.apply(_internal.die_with_parent) is False
        pool.close()
        pool.join()  # it ends by itself: a process that is terminated was once waited for in vain


STEP = """
import os, pathlib, sys, time
import dagster as dg
from rivet_dagster.assets._internal import die_with_parent

@dg.op
def sleeper():
    here = pathlib.Path(os.environ["HERE"])
    (here / "armed").write_text(str(die_with_parent()))
    (here / "step").write_text(str(os.getpid()))
    time.sleep(60)

@dg.job(executor_def=dg.EXECUTOR)
def j():
    sleeper()

if __name__ == "__main__":
    with dg.instance_for_test() as instance:
        dg.execute_job(dg.reconstructable(j), instance=instance)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(condition: object, seconds: float = 30.0) -> bool:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("executor", "armed"), [("multiprocess_executor", True), ("in_process_executor", False)]
)
def test_a_step_process_dies_with_its_run_worker_and_a_run_worker_with_nobody(
    tmp_path: Path, executor: str, armed: bool
) -> None:
    module = tmp_path / "step.py"
    module.write_text(STEP.replace("EXECUTOR", executor))
    worker = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(module)],
        env={
            "HERE": str(tmp_path),
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert eventually((tmp_path / "step").exists)
        time.sleep(0.2)
        assert (tmp_path / "armed").read_text() == str(armed)
        step = int((tmp_path / "step").read_text())
        assert (step == worker.pid) is not armed
        assert alive(step)
    finally:
        worker.kill()
        worker.wait()
    assert eventually(lambda: not alive(step), 5)
