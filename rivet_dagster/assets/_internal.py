"""Every call into parts of Dagster that are not public, but for those of running steps (``_running.py``,
``executor.py``, ``step_worker.py``). Each has a test in tests/live/dagster.

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
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.metadata.metadata_set import NamespacedMetadataSet
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.events import AssetMaterializationPlannedData, DagsterEvent, EngineEventData
from dagster._core.execution.retries import RetryMode, get_retries_config
from dagster._core.execution.stats import StepEventStatus
from dagster._utils.concurrency import ConcurrencyKeyInfo
from dagster_shared.error import SerializableErrorInfo

#: Documented by Dagster, and not exported.
MetadataSet = NamespacedMetadataSet
#: What ``define_asset_job`` returns; Dagster exports the function and not its type.
AssetJob = UnresolvedAssetJobDefinition


class _NearJob(UnresolvedAssetJobDefinition):
    def resolve(
        self,
        asset_graph: AssetGraph,
        default_executor_def: dg.ExecutorDefinition | None = None,
        resource_defs: Mapping[str, dg.ResourceDefinition] | None = None,
    ) -> dg.JobDefinition:
        return super().resolve(self._near(asset_graph), default_executor_def, resource_defs)

    def _near(self, graph: AssetGraph) -> AssetGraph:
        """The assets and checks that are selected, and what they depend on or check."""
        near = {graph.assets_def_for_key(key) for key in self.selection.resolve_checks(graph)}
        near |= {graph.assets_def_for_key(key) for key in self.selection.resolve(graph)}
        checks = {key: assets for assets in near for key in assets.check_keys}
        keys = {key for assets in near for key in assets.keys} | {key.asset_key for key in checks}
        keys |= {parent for key in keys if graph.has(key) for parent in graph.get(key).parent_keys}
        nodes = {key: graph.get(key) for key in sorted(keys) if graph.has(key)}
        return AssetGraph(nodes, checks)


def near_job(job: AssetJob) -> AssetJob:
    """``job``, resolved in a graph of its own assets and what they depend on.

    Dagster resolves each asset job by looking at every asset of the location; with 300 exports and three
    such jobs for each that is most of the time a location takes to load. A launch that narrows the job
    narrows it within that graph.
    """
    return _NearJob(
        name=job.name,
        selection=job.selection,
        config=job.config,
        description=job.description,
        tags=job.tags,
        run_tags=job.run_tags,
        metadata=job.metadata,
        executor_def=job.executor_def,
        hooks=job.hooks,
        op_retry_policy=job.op_retry_policy,
        owners=job.owners,
    )


_PR_SET_PDEATHSIG = 1
_STEP_CHILD_MODULES = ("dagster._core.executor.child_process_executor", "rivet_dagster.assets.step_worker")
_PAGE = 500
_OVER = {StepEventStatus.SUCCESS, StepEventStatus.FAILURE, StepEventStatus.SKIPPED}
#: What the multiprocess executor says a step failed of when its process died.
_STEP_PROCESS_DIED = "ChildProcessCrashException"


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


def process_died(event: DagsterEvent) -> bool:
    """Whether a STEP_FAILURE says that the step's process died, and not that the step failed."""
    error = event.step_failure_data.error
    return error is not None and error.cls_name == _STEP_PROCESS_DIED


def report_step_error(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    step_key: str,
    text: str,
    metadata: Mapping[str, dg.RawMetadataValue],
) -> None:
    """Add an error with ``metadata`` to the log of a step that cannot say it itself."""
    data = EngineEventData(metadata, error=SerializableErrorInfo(text, [], None))
    instance.report_engine_event(text, run, data, step_key=step_key)


def step_errors(
    instance: dg.DagsterInstance, run_id: str
) -> Iterator[tuple[str, Mapping[str, dg.MetadataValue[Any]]]]:
    """(step key, metadata) of what ``report_step_error`` added to the run."""
    for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT):
        event = entry.dagster_event
        if event is not None and event.step_key is not None and event.engine_event_data.metadata:
            yield event.step_key, event.engine_event_data.metadata


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
                found[key] = _target(record)
        missing -= set(found)
        cursor = page.cursor
        if not page.has_more:
            break
    return found


def latest_materialization(
    instance: dg.DagsterInstance, asset_key: dg.AssetKey
) -> AssetCheckEvaluationTargetMaterializationData | None:
    """The newest of the asset, as check evaluations refer to it."""
    newest = instance.fetch_materializations(asset_key, limit=1).records
    return _target(newest[0]) if newest else None


def _target(record: dg.EventLogRecord) -> AssetCheckEvaluationTargetMaterializationData:
    return AssetCheckEvaluationTargetMaterializationData(
        storage_id=record.storage_id, run_id=record.run_id, timestamp=record.timestamp
    )


def log_check_evaluation(context: dg.OpExecutionContext, evaluation: dg.AssetCheckEvaluation) -> None:
    """Log a check's evaluation of one partition. Taken at run time, missing in the declared types."""
    context.log_event(evaluation)  # type: ignore[arg-type]


def has_ended(context: dg.OpExecutionContext, step_key: str) -> bool:
    """Whether the step of this run is over, well or not."""
    stats = context.instance.get_run_step_stats(context.run_id, [step_key])
    return any(s.status in _OVER for s in stats)


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
