"""What is asked about a finished export: does it hold what the source holds, and is it whole?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from rivet_dagster.engine.errors import UsageError
from rivet_dagster.engine.plan.folders import find_folders
from rivet_dagster.engine.plan.incremental import cursor_of
from rivet_dagster.engine.plan.units import Part, UnitKind, WorkUnit
from rivet_dagster.engine.run.figures import total
from rivet_dagster.engine.sources.base import Planner
from rivet_dagster.engine.sources.postgres import aggregate
from rivet_dagster.engine.state.exports import cursor_before
from rivet_dagster.engine.state.models import RunHeader
from rivet_dagster.engine.verify.manifest import UnitParts
from rivet_dagster.engine.verify.reconcile import (
    WHOLE_TABLE,
    ReconcileReport,
    UnitComparison,
    reconcile_units,
)
from rivet_dagster.engine.verify.report import Depth, ValidationReport
from rivet_dagster.engine.verify.validate import validate_prefix

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig
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
        report = replace(report, units=(*report.units, *_folders_not_exported(export, planner, report)))
    _verified(engine, run, report)
    return report


def validate(engine: Engine, name: str, *, depth: Depth = "full") -> ValidationReport:
    """Check the files of the last complete run against their manifest; the source is not asked."""
    run = latest_complete(engine, name)
    return validate_prefix(engine.store(run.prefix), run.prefix, depth=depth, export_name=name)


def _units(engine: Engine, run: RunHeader) -> list[UnitParts]:
    parts: dict[int, list[Part]] = {}
    for row in engine.state.parts(run.run_id):
        parts.setdefault(row.chunk_index, []).append(row.as_part())
    return [UnitParts(r.unit, parts.get(r.unit.index, ())) for r in engine.state.units(run.run_id)]


def _folders_not_exported(
    export: ExportConfig, planner: Planner, report: ReconcileReport
) -> Iterator[UnitComparison]:
    """Folders of ``partition_by`` that the source has rows of and the run has not."""
    if export.partition_by is None or export.accumulates:
        return
    known = {unit.partition for unit in report.units}
    for folder in find_folders(export, planner):
        if folder.key not in known:
            note = "the source has rows of it, and no run exported them"
            yield UnitComparison(None, folder.key, f"folder {folder.key}", None, None, "mismatch", note=note)


def _whole(engine: Engine, run: RunHeader) -> WorkUnit | None:
    """What stands for all of a snapshot's page ranges: the table, or its rows up to the pinned bound."""
    export = engine.export(run.export_name)
    if not export.accumulates:
        return WHOLE_TABLE
    cursor = engine.state.cursor(run.export_name, run.prefix)
    walked = cursor_of(export)
    units = [row.unit for row in engine.state.units(run.run_id)]
    if units[0].spec.get("gt") is not None:
        kept = ("column", "fallback", "versions", "gt", "le")
        spec = {name: units[0].spec[name] for name in kept if name in units[0].spec}
        return WorkUnit(0, UnitKind.WINDOW, "", spec)
    if any("versions" in unit.spec for unit in units):
        return None  # transactions are told apart for as long as the snapshot lasts
    if cursor is None or cursor.run_id != run.run_id or cursor.column != walked.identity:
        return None
    return WorkUnit(0, UnitKind.WHOLE, "", {**walked.spec(), "le": cursor.value})


def _verified(engine: Engine, run: RunHeader, report: ReconcileReport) -> None:
    """The verified boundary goes where the run's own committed one is, when all of it was compared.

    A window of a cursor counts from the window before it: one that nobody compared holds it back.
    """
    known = engine.state.progression(run.export_name, run.prefix)
    committed, verified = known.committed, known.verified
    if report.status != "match" or committed is None or committed.run_id != run.run_id:
        return
    if committed.strategy == "cursor":
        low = engine.state.units(run.run_id)[0].unit.spec.get("gt")
        reached = None if verified is None else verified.cursor
        if low is not None and (reached is None or cursor_before(reached, low)):
            return
    engine.state.set_verified(run.export_name, run.prefix, committed, mismatches=0, unknowns=0)
