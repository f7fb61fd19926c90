"""Asset checks: ``validate`` (files against manifest) and ``reconcile`` (source against files)."""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import dagster as dg

from rivet_dagster.assets._internal import (
    latest_materializations,
    log_check_evaluation,
    partitioned_check_preview,
)
from rivet_dagster.assets.failure import failure_metadata, retry_or_failure, tell
from rivet_dagster.assets.launcher import worker_of
from rivet_dagster.assets.naming import RECONCILE, RECONCILE_CHUNKS, VALIDATE
from rivet_dagster.assets.reaper import holder_of
from rivet_dagster.assets.resources import RivetResource, schema_of
from rivet_dagster.engine.errors import as_rivet_error

if TYPE_CHECKING:
    from rivet_dagster.assets.exports import ExportAssets
    from rivet_dagster.engine.verify.reconcile import ReconcileReport, UnitComparison
    from rivet_dagster.engine.verify.report import ValidationReport

#: Longest list of findings put into one event's metadata.
_LISTED = 100
_SEVERITY = {
    "match": dg.AssetCheckSeverity.WARN,
    "unknown": dg.AssetCheckSeverity.WARN,
    "mismatch": dg.AssetCheckSeverity.ERROR,
}


class RowDepth(Enum):
    """What ``reconcile`` compares: counts and sums of columns, or also a hash of every row."""

    sums = "sums"
    rows = "rows"


class ReconcileConfig(dg.Config):
    """depth: ``rows`` also sees cells that changed places; it reads row by row, so it takes longer.

    lock_wait: seconds to wait for a run of the export; while it compares, runs wait for it. no_notify:
    no message about this run.
    """

    depth: RowDepth = RowDepth.sums
    lock_wait: int | None = None
    no_notify: bool = False


def validate_spec(
    table: dg.AssetKey, condition: dg.AutomationCondition[Any] | None = None
) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(
        VALIDATE,
        asset=table,
        blocking=True,
        automation_condition=condition,
        description="Marker, manifest and every part it lists are there, in full size; at depth `full` "
        "also as they were read.",
    )


def validation_result(assets: "ExportAssets", report: "ValidationReport") -> dg.AssetCheckResult:
    """Failed blocks what depends on the table; what could not be looked at only warns."""
    failed = report.status == "fail"
    metadata: dict[str, Any] = {
        "status": report.status,
        "depth": report.depth,
        "parts": report.parts,
        "rows": report.rows,
        "bytes": report.bytes,
        "failures": len(report.failures),
        "warnings": len(report.warnings),
        "files_untracked": report.count("untracked_object"),
        "files_superseded": report.count("superseded_object"),
        "files_quarantined": report.quarantined_files,
        "bytes_quarantined": report.quarantined_bytes,
    }
    if report.findings:
        listed = [{"code": f.code, "path": f.path} for f in report.findings[:_LISTED]]
        metadata["findings"] = dg.MetadataValue.json(listed)
    return dg.AssetCheckResult(
        asset_key=assets.table_key,
        check_name=VALIDATE,
        passed=report.status == "pass",
        severity=dg.AssetCheckSeverity.ERROR if failed else dg.AssetCheckSeverity.WARN,
        metadata=metadata,
    )


def build_reconcile_check(assets: "ExportAssets") -> dg.AssetChecksDefinition:
    """``reconcile`` of the table, which the UI can run alone, and ``reconcile_chunks`` of the chunks.

    Dagster's UI runs no partitioned check on its own, so the table's check does the work and logs one
    evaluation for each chunk partition beside its own result.
    """
    with partitioned_check_preview():
        specs = [
            dg.AssetCheckSpec(
                RECONCILE,
                asset=assets.table_key,
                description="Every chunk holds what the source holds now.",
            ),
            dg.AssetCheckSpec(
                RECONCILE_CHUNKS,
                asset=assets.chunks_key,
                partitions_def=assets.partitions,
                description="The chunk holds what the source holds now.",
            ),
        ]

    @dg.multi_asset_check(
        name=assets.names.reconcile_op,
        specs=specs,
        can_subset=True,
        pool=assets.pool,
        config_schema=schema_of(ReconcileConfig),
        required_resource_keys={"rivet"},
    )
    def reconcile(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        op = context.op_execution_context
        report = _reconcile(op, assets, op.resources.rivet, ReconcileConfig(**op.op_config))
        _log_chunks(context, assets, report)
        for key in context.selected_asset_check_keys:
            yield _summary(key, report)

    definition: dg.AssetChecksDefinition = reconcile
    return definition


def _reconcile(
    context: dg.OpExecutionContext,
    assets: "ExportAssets",
    rivet: RivetResource,
    config: ReconcileConfig,
) -> "ReconcileReport":
    name, holder = assets.export.name, holder_of(context.run_id)
    try:
        with (
            rivet.engine(assets.config, worker_of(context)) as engine,
            # a run that ends meanwhile would move the files that are compared
            engine.session(name, holder=holder, lock_wait=config.lock_wait),
        ):
            return engine.reconcile(name, depth=config.depth.value)
    except Exception as error:  # noqa: BLE001 - the event log would keep its text
        caught = as_rivet_error(error)
    tell(caught)
    tuning = assets.tuning
    raise retry_or_failure(
        caught,
        export=name,
        retry_number=context.retry_number,
        max_retries=tuning.max_retries,
        backoff_base_ms=tuning.retry_backoff_ms,
        metadata=failure_metadata(caught, export=name, mode=assets.export.mode),
    )


def _log_chunks(
    context: dg.AssetCheckExecutionContext, assets: "ExportAssets", report: "ReconcileReport"
) -> None:
    """One evaluation for each partition, tied to the materialization that it judges.

    Without that tie Dagster would not show the partition's state.
    """
    op = context.op_execution_context
    by_partition: dict[str, list[UnitComparison]] = {}
    for unit in report.units:
        if unit.index is not None:  # else it stands for the whole table
            by_partition.setdefault(unit.partition, []).append(unit)
    targets = latest_materializations(op.instance, assets.chunks_key, list(by_partition))
    for partition, units in by_partition.items():
        if partition not in targets:
            continue  # never reported to this instance: there is nothing to judge
        status = worst_status([u.status for u in units])
        log_check_evaluation(
            op,
            dg.AssetCheckEvaluation(
                asset_key=assets.chunks_key,
                check_name=RECONCILE_CHUNKS,
                passed=status == "match",
                severity=_SEVERITY[status],
                partition=partition,
                target_materialization_data=targets[partition],
                metadata=_counts(units),
            ),
        )


def worst_status(statuses: Sequence[str]) -> str:
    """A mismatch is worse than an unknown, and that than a match."""
    for status in ("mismatch", "unknown"):
        if status in statuses:
            return status
    return "match"


def _summary(key: dg.AssetCheckKey, report: "ReconcileReport") -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=report.status == "match",
        severity=_SEVERITY[report.status],
        metadata={
            **_counts(report.units),
            "run_id": report.run_id,
            "strategy": report.strategy,
            "depth": report.depth,
        },
    )


def _counts(units: Sequence["UnitComparison"]) -> dict[str, Any]:
    """Numbers of a comparison; a count that is not known is left out, never 0."""
    metadata: dict[str, Any] = {"units": len(units)}
    for status in ("match", "mismatch", "unknown"):
        metadata[status] = sum(u.status == status for u in units)
    for name in ("source_rows", "exported_rows"):
        known = [getattr(u, name) for u in units]
        if all(count is not None for count in known):
            metadata[name] = sum(known)
    differing = [u for u in units if u.status != "match"]
    if differing:
        # not its bounds, which may be values of rows
        listed = [{"unit": u.index, "partition": u.partition, "note": u.note} for u in differing]
        metadata["differing"] = dg.MetadataValue.json(listed[:_LISTED])
    return metadata
