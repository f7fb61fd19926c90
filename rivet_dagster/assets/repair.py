"""``repair_<export>``: runs chosen chunks again in a new run that replaces the old one. Dry by default."""

from typing import TYPE_CHECKING

import dagster as dg

from rivet_dagster.assets._internal import die_with_parent
from rivet_dagster.assets.execution import ExportRun
from rivet_dagster.assets.resources import RivetResource

if TYPE_CHECKING:
    from rivet_dagster.assets.exports import ExportAssets


class RepairConfig(dg.Config):
    """chunks: partition keys of the chunk asset; by default those that ``reconcile`` finds wrong."""

    chunks: list[str] | None = None
    execute: bool = False
    lock_wait: int | None = None


def repair_job(assets: "ExportAssets") -> dg.JobDefinition:
    """An op job, because a repair is a person's decision: nothing schedules or cascades into it."""

    @dg.op(
        name=assets.names.repair_op,
        pool=assets.pool,
        tags={"rivet/export": assets.names.base},
        description="Shows what would be run again; with `execute: true` runs it.",
    )
    def repair(context: dg.OpExecutionContext, config: RepairConfig, rivet: RivetResource) -> None:
        die_with_parent()
        run_repair(context, assets, config, rivet)

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
        if run.requested is None:
            run.requested = _mismatched(assets, rivet)
        _log_plan(context, assets, run.requested, execute=config.execute)
        if config.execute and run.requested:
            for _ in run.steps(rivet, lock_wait=config.lock_wait):
                pass
    except Exception as error:  # noqa: BLE001 - the event log would keep its text
        caught = error
    if caught is not None:
        raise run.verdict(caught)


def _mismatched(assets: "ExportAssets", rivet: RivetResource) -> list[str]:
    """Partitions whose source and files differ now, in plan order."""
    with rivet.engine(assets.config) as engine:
        report = engine.reconcile(assets.export.name)
    return list(dict.fromkeys(unit.partition for unit in report.units if unit.status == "mismatch"))


def _log_plan(
    context: dg.OpExecutionContext, assets: "ExportAssets", partitions: list[str], *, execute: bool
) -> None:
    """What is, or would be, run again: as metadata of an observation of the chunk asset."""
    metadata = {
        "status": "executing" if execute and partitions else "dry_run" if partitions else "nothing_to_repair",
        "partitions": len(partitions),
        "partition_keys": dg.MetadataValue.json(partitions[:500]),
    }
    context.log_event(dg.AssetObservation(assets.chunks_key, metadata=metadata))
    context.add_output_metadata(metadata)
