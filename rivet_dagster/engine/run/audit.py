"""What is asked about a finished export: does it hold what the source holds, and is it whole?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rivet_dagster.engine.errors import UsageError
from rivet_dagster.engine.plan.incremental import cursor_of
from rivet_dagster.engine.plan.units import Part, UnitKind, WorkUnit
from rivet_dagster.engine.run.drift import Drift, schema_drift
from rivet_dagster.engine.run.figures import total
from rivet_dagster.engine.run.quality import QualityReport, evaluate
from rivet_dagster.engine.sources.postgres import aggregate
from rivet_dagster.engine.state.models import Boundary, RunHeader
from rivet_dagster.engine.verify.manifest import UnitParts
from rivet_dagster.engine.verify.reconcile import WHOLE_TABLE, ReconcileReport, reconcile_units
from rivet_dagster.engine.verify.report import Depth, ValidationReport
from rivet_dagster.engine.verify.validate import validate_prefix

if TYPE_CHECKING:
    from rivet_dagster.engine.run.engine import Engine


def latest_complete(engine: Engine, name: str) -> RunHeader:
    """The export's last complete run. Raises UsageError when there is none."""
    run = engine.state.latest_run(name, statuses=("completed",))
    if run is None:
        raise UsageError("no run of it is complete yet: materialize it first", export=name)
    return run


def reconcile(engine: Engine, name: str) -> ReconcileReport:
    """Compare the last complete run with the source as it is now, unit by unit (RC1 to RC6).

    Units that were heap pages of a snapshot are compared as one. Moves the verified boundary when
    everything matches.
    """
    export = engine.export(name)
    run = latest_complete(engine, name)
    source = engine.source(export)
    # cells that the value policy made NULL differ from the source's on purpose
    replaced = total(row.stats for row in engine.state.parts(run.run_id)).nulled
    with source.planner(snapshot=False) as planner:
        columns = tuple(c for c in planner.facts.columns if c.name not in replaced)
        report = reconcile_units(
            lambda unit: planner.aggregate(unit, columns),
            _units(engine, run),
            engine.store(run.prefix),
            columns,
            batch_aggregate=aggregate.aggregate_arrow,
            export_name=name,
            run_id=run.run_id,
            strategy=run.mode,
            file_format=export.format,
            whole=_whole(engine, run),
        )
    _verified(engine, run, report)
    return report


def validate(engine: Engine, name: str, *, depth: Depth = "full") -> ValidationReport:
    """Check the files of the last complete run against their manifest; the source is not asked."""
    run = latest_complete(engine, name)
    return validate_prefix(engine.store(run.prefix), run.prefix, depth=depth, export_name=name)


def quality(engine: Engine, name: str) -> QualityReport:
    """The export's gates over the files of its last complete run."""
    run = latest_complete(engine, name)
    parts = [row.as_part() for row in engine.state.parts(run.run_id)]
    return evaluate(engine.export(name), parts, engine.store(run.prefix))


def drift(engine: Engine, name: str) -> Drift:
    """What the source changed about its columns since the last complete run; asks its catalog only."""
    accepted = engine.state.accepted_schema(name)
    with engine.source(engine.export(name)).planner(snapshot=False) as planner:
        return Drift() if accepted is None else schema_drift(accepted, planner.facts.columns)


def _units(engine: Engine, run: RunHeader) -> list[UnitParts]:
    parts: dict[int, list[Part]] = {}
    for row in engine.state.parts(run.run_id):
        parts.setdefault(row.chunk_index, []).append(row.as_part())
    return [UnitParts(r.unit, parts.get(r.unit.index, ())) for r in engine.state.units(run.run_id)]


def _whole(engine: Engine, run: RunHeader) -> WorkUnit | None:
    """What stands for all of a snapshot's page ranges: the table, or its rows up to the pinned bound."""
    export = engine.export(run.export_name)
    if not export.accumulates:
        return WHOLE_TABLE
    cursor = engine.state.cursor(run.export_name, run.prefix)
    walked = cursor_of(export)
    if any("versions" in row.unit.spec for row in engine.state.units(run.run_id)):
        return None  # transactions are told apart for as long as the snapshot lasts
    if cursor is None or cursor.run_id != run.run_id or cursor.column != walked.identity:
        return None
    return WorkUnit(0, UnitKind.WHOLE, "", {**walked.spec(), "le": cursor.value})


def _verified(engine: Engine, run: RunHeader, report: ReconcileReport) -> None:
    last = max((u.index for u in report.units if u.index is not None), default=None)
    if last is None:
        return
    engine.state.set_verified(
        run.export_name,
        run.prefix,
        Boundary("chunk", run.run_id, chunk_index=last),
        mismatches=report.count("mismatch"),
        unknowns=report.count("unknown"),
    )
