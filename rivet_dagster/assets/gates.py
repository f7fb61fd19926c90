"""Inline asset checks of what a run measures: ``quality`` (gates over its rows), ``drift`` (its shape).

Both are told whether the run ends well or not: a gate that fails shows as a failed check beside the
failed step. Metadata holds figures and names of columns, never a value of a row.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

from rivet_dagster.assets._internal import latest_materialization, log_check_evaluation
from rivet_dagster.assets.naming import DRIFT, QUALITY

if TYPE_CHECKING:
    from rivet_dagster.assets.exports import ExportAssets
    from rivet_dagster.config import ExportConfig

StepResult = dg.MaterializeResult[Any] | dg.AssetCheckResult

_SEVERITY = {"warn": dg.AssetCheckSeverity.WARN, "fail": dg.AssetCheckSeverity.ERROR}


def gate_specs(
    export: "ExportConfig", table: dg.AssetKey, condition: dg.AutomationCondition[Any] | None = None
) -> list[dg.AssetCheckSpec]:
    """Specs of the gates that the export's config asks for."""
    specs = []
    if export.quality is not None:
        what = "The gates of `quality:` hold over the rows."
        specs.append(
            dg.AssetCheckSpec(QUALITY, asset=table, description=what, automation_condition=condition)
        )
    if export.on_schema_drift != "continue":
        what = "The source has the columns and types of the last complete run, and no value outgrew it."
        specs.append(dg.AssetCheckSpec(DRIFT, asset=table, description=what, automation_condition=condition))
    return specs


def gate_results(assets: "ExportAssets", details: Mapping[str, Any]) -> Iterator[dg.AssetCheckResult]:
    """Results of the gates in ``details`` (of a run's outcome, or of the error that ended it).

    A gate that was not reached is not told.
    """
    if assets.export.quality is not None and "quality" in details:
        yield _quality(assets, details["quality"]["gates"])
    if assets.export.on_schema_drift != "continue" and "drift" in details:
        yield _drift(assets, details["drift"])


def tell_checks(
    context: dg.OpExecutionContext, results: Iterator[StepResult], selected: frozenset[str] = frozenset()
) -> Iterator[StepResult]:
    """Yield what Dagster waits for; log checks that were not selected, which takes half of the events.

    Raises Failure at the end when one of those failed, as Dagster does after a check that blocks: what
    depends on the table stays as it is.
    """
    blocked: list[str] = []
    about = None
    for result in results:
        if isinstance(result, dg.MaterializeResult) or result.check_name in selected:
            yield result
            continue
        assert result.asset_key is not None
        assert result.check_name is not None
        about = about or latest_materialization(context.instance, result.asset_key)
        log_check_evaluation(
            context,
            dg.AssetCheckEvaluation(
                asset_key=result.asset_key,
                check_name=result.check_name,
                passed=result.passed,
                metadata=result.metadata,
                target_materialization_data=about,
                severity=result.severity,
                description=result.description,
            ),
        )
        if not result.passed and result.severity == dg.AssetCheckSeverity.ERROR:
            blocked.append(result.check_name)
    if blocked:
        raise dg.Failure(f"checks failed: {', '.join(blocked)}", allow_retries=False)


def _quality(assets: "ExportAssets", gates: list[dict[str, Any]]) -> dg.AssetCheckResult:
    worst = next((s for s in ("fail", "warn") if any(g["status"] == s for g in gates)), None)
    metadata: dict[str, Any] = {
        # by name as well, so that Dagster can plot each over time
        **{_name(gate): gate["found"] for gate in gates},
        "gates": dg.MetadataValue.json(
            [
                {
                    "gate": gate["gate"],
                    "column": gate["column"],
                    "threshold": gate["limit"],
                    "measured": gate["found"],
                    "passed": gate["status"] == "pass",
                    "status": gate["status"],
                    "note": gate["note"].strip(),
                }
                for gate in gates
            ]
        ),
        "failed": sum(gate["status"] == "fail" for gate in gates),
        "warned": sum(gate["status"] == "warn" for gate in gates),
    }
    return _result(assets, QUALITY, worst, metadata)


def _drift(assets: "ExportAssets", drift: dict[str, Any]) -> dg.AssetCheckResult:
    columns = {what: drift[what] for what in ("added", "removed", "retyped")}
    wider = {name: {"bytes": now, "before": before} for name, (now, before) in drift["wider"].items()}
    weight: str = assets.export.on_schema_drift
    worst = weight if any(columns.values()) else "warn" if wider else None
    metadata: dict[str, Any] = {what: len(names) for what, names in columns.items()}
    metadata |= {"wider": len(wider)}
    if worst is not None:
        metadata["columns"] = dg.MetadataValue.json({**columns, "wider": wider})
    return _result(assets, DRIFT, worst, metadata)


def _result(
    assets: "ExportAssets", check: str, worst: str | None, metadata: dict[str, Any]
) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=assets.table_key,
        check_name=check,
        passed=worst is None,
        severity=_SEVERITY.get(worst or "", dg.AssetCheckSeverity.ERROR),
        metadata=metadata,
    )


def _name(gate: dict[str, Any]) -> str:
    return f"{gate['gate']}: {gate['column']}" if gate["column"] else str(gate["gate"])
