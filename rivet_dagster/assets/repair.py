"""``repair_<export>``: runs chosen chunks again in a new run that replaces the old one. Dry by default."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from rivet_dagster.assets._internal import die_with_parent
from rivet_dagster.assets.checks import RowDepth
from rivet_dagster.assets.execution import ExportRun
from rivet_dagster.assets.launcher import worker_of
from rivet_dagster.assets.reaper import holder_of
from rivet_dagster.assets.resources import RivetResource, schema_of

if TYPE_CHECKING:
    from rivet_dagster.assets.exports import ExportAssets


#: Longest list put into one event's metadata.
_LISTED = 500


class RepairConfig(dg.Config):
    """chunks: partition keys of the chunk asset; by default those that ``reconcile`` finds wrong.

    depth: of that reconcile. no_notify: no message about this run.
    """

    depth: RowDepth = RowDepth.sums
    chunks: list[str] | None = None
    execute: bool = False
    lock_wait: int | None = None
    no_notify: bool = False


def repair_job(assets: "ExportAssets") -> dg.JobDefinition:
    """An op job, because a repair is a person's decision: nothing schedules or cascades into it."""

    @dg.op(
        name=assets.names.repair_op,
        pool=assets.pool,
        tags={"rivet/export": assets.names.base},
        description="Shows what would be run again; with `execute: true` runs it.",
        config_schema=schema_of(RepairConfig),
        required_resource_keys={"rivet"},
    )
    def repair(context: dg.OpExecutionContext) -> None:
        die_with_parent()
        run_repair(context, assets, RepairConfig(**context.op_config), context.resources.rivet)

    @dg.job(
        name=assets.names.repair_job,
        executor_def=dg.in_process_executor,
        tags={"rivet/export": assets.names.base},
        description=f"Run chosen chunks of export {assets.export.name} again (dry run by default).",
    )
    def job() -> None:
        repair()

    return job


def run_repair(
    context: dg.OpExecutionContext, assets: "ExportAssets", config: RepairConfig, rivet: RivetResource
) -> None:
    """Raises Failure or RetryRequested only; the table is logged, not yielded: the op has no outputs."""
    run = ExportRun(context, assets, requested=config.chunks)
    caught: Exception | None = None
    try:
        wanted = _wanted(context, assets, config, rivet)
        run.requested = None if wanted.fresh else list(wanted.partitions)
        _log(context, assets, wanted, execute=config.execute)
        if config.execute and wanted:
            for _ in run.steps(rivet, lock_wait=config.lock_wait, repair=True):
                pass
    except Exception as error:  # noqa: BLE001 - the event log would keep its text
        caught = error
    if caught is not None:
        raise run.verdict(caught)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a repair would run. fresh: the whole table, because its units cannot be asked for again."""

    partitions: tuple[str, ...]
    fresh: bool = False
    skipped: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return self.fresh or bool(self.partitions)


def _wanted(
    context: dg.OpExecutionContext, assets: "ExportAssets", config: RepairConfig, rivet: RivetResource
) -> _Wanted:
    """The chosen chunks, else what a reconcile finds wrong now."""
    from rivet_dagster.engine.verify.repair import plan_repair

    if config.chunks is not None:
        return _Wanted(tuple(config.chunks))
    name, holder = assets.export.name, holder_of(context.run_id)
    with (
        rivet.engine(assets.config, worker_of(context)) as engine,
        engine.session(name, holder=holder, lock_wait=config.lock_wait),
    ):
        plan = plan_repair(engine.reconcile(name, depth=config.depth.value))
    return _Wanted(plan.partitions, plan.fresh_run, plan.skipped)


def _log(context: dg.OpExecutionContext, assets: "ExportAssets", wanted: _Wanted, *, execute: bool) -> None:
    """What is, or would be, run again: as metadata of an observation of the chunk asset."""
    status = "executing" if execute else "dry_run"
    metadata: dict[str, Any] = {
        "status": status if wanted else "nothing_to_repair",
        "whole_table": wanted.fresh,
        "partitions": len(wanted.partitions),
        "partition_keys": dg.MetadataValue.json(list(wanted.partitions[:_LISTED])),
        "skipped": dg.MetadataValue.json([list(entry) for entry in wanted.skipped[:_LISTED]]),
    }
    context.log_event(dg.AssetObservation(assets.chunks_key, metadata=metadata))
