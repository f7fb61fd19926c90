"""Every call into parts of Dagster that are not public. Each has a test in tests/live/dagster.

Written against dagster 1.13.27. A new minor version of Dagster: run those tests first.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.events import AssetMaterializationPlannedData, DagsterEvent
from dagster._core.execution.retries import RetryMode, get_retries_config
from dagster._utils.concurrency import ConcurrencyKeyInfo

#: What ``define_asset_job`` returns; Dagster exports the function and not its type.
AssetJob = UnresolvedAssetJobDefinition

_PR_SET_PDEATHSIG = 1
_STEP_CHILD_MODULES = ("dagster._core.executor.child_process_executor", "rivet_dagster.assets.step_worker")
_PAGE = 500


def is_step_child() -> bool:
    """Whether this process was started for steps, by the multiprocess executor or by ours.

    Not so: a run worker that a code server started (it must outlive a reload of the server), and
    anything that a shell or cron started (it must outlive the shell).
    """
    target = getattr(multiprocessing.current_process(), "_target", None)
    return getattr(target, "__module__", None) in _STEP_CHILD_MODULES


def die_with_parent() -> bool:
    """Make the kernel kill this step when its run worker dies. True if it was set up (Linux only).

    A run worker that is killed leaves its step process alive, which would go on extracting for a run
    that Dagster already calls failed. The lease and the fencing token keep the data right even so;
    this saves the source the work.
    """
    parent = multiprocessing.parent_process()
    if parent is None or not is_step_child():
        return False
    armed = kill_with_parent()
    if not parent.is_alive():  # it died before the request was made
        os.kill(os.getpid(), signal.SIGKILL)
    return armed


def kill_with_parent() -> bool:
    """Make the kernel kill this process when the one that started it ends. True if it was set up."""
    try:
        done: int = ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        return False
    return done == 0


@contextmanager
def partitioned_check_preview() -> Iterator[None]:
    """Partitioned asset checks are a preview in 1.13; the warning is for us, not for our users."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)
        yield


def mark_partitions_planned(
    instance: dg.DagsterInstance,
    *,
    run_id: str,
    job_name: str,
    step_key: str,
    asset_key: dg.AssetKey,
    partitions: Sequence[str],
) -> None:
    """Report ``partitions`` as planned in this run, so that they show Failed once the run has failed.

    A table run plans no chunk partitions beforehand; without this, a chunk that failed in it would
    show Missing (or still Materialized, from an earlier run).
    """
    for partition in partitions:
        planned = AssetMaterializationPlannedData(asset_key, partition=partition)
        event = DagsterEvent.build_asset_materialization_planned_event(job_name, step_key, planned)
        instance.report_dagster_event(event, run_id)


def latest_materializations(
    instance: dg.DagsterInstance, asset_key: dg.AssetKey, partitions: Sequence[str]
) -> dict[str, AssetCheckEvaluationTargetMaterializationData]:
    """Newest materialization of each of ``partitions``, in the form that check evaluations refer to."""
    found: dict[str, AssetCheckEvaluationTargetMaterializationData] = {}
    missing = set(partitions)
    cursor: str | None = None
    while missing:
        records = dg.AssetRecordsFilter(asset_key=asset_key, asset_partitions=sorted(missing))
        page = instance.fetch_materializations(records, limit=_PAGE, cursor=cursor)
        for record in page.records:
            key = record.partition_key
            if key is not None and key not in found:
                found[key] = AssetCheckEvaluationTargetMaterializationData(
                    storage_id=record.storage_id, run_id=record.run_id, timestamp=record.timestamp
                )
        missing -= set(found)
        cursor = page.cursor
        if not page.has_more:
            break
    return found


def log_check_evaluation(context: dg.OpExecutionContext, evaluation: dg.AssetCheckEvaluation) -> None:
    """Log a check's evaluation of one partition. Taken at run time, missing in the declared types."""
    context.log_event(evaluation)  # type: ignore[arg-type]


def pool_info(instance: dg.DagsterInstance, pool: str) -> ConcurrencyKeyInfo | None:
    """Slots and waiting steps of ``pool``. None where the instance's storage has no pools."""
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits:
        return None
    return storage.get_concurrency_info(pool)


def set_pool_limit(instance: dg.DagsterInstance, pool: str, limit: int) -> None:
    instance.event_log_storage.set_concurrency_slots(pool, limit)


def pool_limits(instance: dg.DagsterInstance) -> dict[str, int]:
    """Limits that were set explicitly, by pool."""
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits:
        return {}
    return {pool.name: pool.limit for pool in storage.get_pool_limits() if not pool.from_default}


def supports_pools(instance: dg.DagsterInstance) -> bool:
    return instance.event_log_storage.supports_global_concurrency_limits


def free_pool_slots(instance: dg.DagsterInstance, run_id: str) -> None:
    """Give back what a dead run holds; the daemon would do it later, a machine without one never."""
    if supports_pools(instance):
        with suppress(NotImplementedError):
            instance.event_log_storage.free_concurrency_slots_for_run(run_id)


def retries_config() -> dg.Field:
    """``retries`` of an executor's config, as Dagster's own executors have it."""
    field: dg.Field = get_retries_config()  # type: ignore[no-untyped-call]
    return field


def retry_mode(executor_config: Mapping[str, Any]) -> RetryMode:
    return RetryMode.from_config(executor_config["retries"]) or RetryMode.ENABLED
