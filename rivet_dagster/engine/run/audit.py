"""What is asked about a finished export: does it hold what the source holds, and is it whole?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rivet_dagster.engine.errors import UsageError
from rivet_dagster.engine.plan.folders import find_folders
from rivet_dagster.engine.plan.incremental import cursor_of
from rivet_dagster.engine.plan.plan import ACCUMULATING
from rivet_dagster.engine.plan.units import Part, UnitKind, WorkUnit
from rivet_dagster.engine.run.drift import Drift, schema_drift
from rivet_dagster.engine.run.figures import total
from rivet_dagster.engine.run.quality import QualityReport, evaluate
from rivet_dagster.engine.sources.base import Planner
from rivet_dagster.engine.sources.postgres import aggregate
from rivet_dagster.engine.sources.postgres.rowhash import hashable
from rivet_dagster.engine.state.exports import cursor_before
from rivet_dagster.engine.state.models import RunHeader
from rivet_dagster.engine.types.decision import Column
from rivet_dagster.engine.verify.manifest import UnitParts
from rivet_dagster.engine.verify.part_reader import csv_types
from rivet_dagster.engine.verify.reconcile import (
    ReconcileDepth,
    ReconcileReport,
    UnitComparison,
    Whole,
    reconcile_units,
)
from rivet_dagster.engine.verify.report import Depth, ValidationReport
from rivet_dagster.engine.verify.validate import validate_prefix

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig
    from rivet_dagster.engine.run.engine import Engine


def latest_complete(engine: Engine, name: str) -> RunHeader:
    """The export's last complete run. Raises UsageError when there is none, or nothing of it was kept."""
    if engine.export(name).destination.type == "stdout":
        raise UsageError(
            "what went to standard output is gone; there is nothing to look at",
            export=name,
            field="destination.type",
        )
    run = engine.state.latest_run(name, statuses=("completed",))
    if run is None:
        raise UsageError("no run of it is complete yet: materialize it first", export=name)
    return run


def reconcile(engine: Engine, name: str, *, depth: ReconcileDepth = "sums") -> ReconcileReport:
    """Compare the last complete run with the source as it is now, unit by unit (RC1 to RC6).

    Units that mean nothing by themselves any more, e.g. heap pages of a snapshot, are compared as one.
    Moves the verified boundary when everything matches.
    """
    export = engine.export(name)
    run = latest_complete(engine, name)
    source = engine.source(export)
    # cells that the value policy made NULL differ from the source's on purpose
    replaced = total(row.stats for row in engine.state.parts(run.run_id)).nulled
    with source.planner(snapshot=False) as planner:
        columns = tuple(c for c in planner.facts.columns if c.name not in replaced)
        hashed = _hashed(columns, planner.encoding, export.format) if depth == "rows" else []
        report = reconcile_units(
            lambda unit: planner.aggregate(unit, columns, hashed),
            _units(engine, run),
            engine.store(export, run.prefix),
            columns,
            batch_aggregate=partial(aggregate.aggregate_arrow, digest=hashed),
            export_name=name,
            run_id=run.run_id,
            strategy=run.mode,
            file_format=export.format,
            whole=_whole(engine, run),
        )
        report = replace(report, units=(*report.units, *_folders_not_exported(export, planner, report)))
    if depth == "rows":
        left_out = tuple(c.name for c in columns if c.name not in hashed)
        report = replace(report, depth=depth, not_hashed=left_out)
    _verified(engine, run, report)
    return report


def _hashed(columns: Sequence[Column], encoding: str, file_format: str) -> list[str]:
    """Columns that the hash of a row covers: of CSV those that read back as what they are."""
    names = hashable(columns, encoding)
    return names if file_format == "parquet" else [name for name in names if name in csv_types(columns)]


def validate(engine: Engine, name: str, *, depth: Depth = "full") -> ValidationReport:
    """Check the files of the last complete run against their manifest; the source is not asked."""
    run = latest_complete(engine, name)
    store = engine.store(engine.export(name), run.prefix)
    return validate_prefix(store, run.prefix, depth=depth, export_name=name)


def quality(engine: Engine, name: str) -> QualityReport:
    """The export's gates over the files of its last complete run."""
    run = latest_complete(engine, name)
    parts = [row.as_part() for row in engine.state.parts(run.run_id)]
    return evaluate(engine.export(name), parts, engine.store(engine.export(name), run.prefix))


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


def _whole(engine: Engine, run: RunHeader) -> Whole | None:
    """What stands for all units of the run when they cannot be asked for one by one, else None."""
    units = [row.unit for row in engine.state.units(run.run_id)]
    kinds = {unit.kind for unit in units}
    if run.mode not in ACCUMULATING:
        return None if all(unit.outlives_snapshot for unit in units) else Whole()
    if not kinds & {UnitKind.PAGES, UnitKind.WHOLE}:
        return None  # windows have bounds of their own
    export = engine.export(run.export_name)
    if not export.accumulates:
        return Whole(None, "it was a first run by a cursor, which the export's mode does not have any more")
    if units[0].spec.get("gt") is not None:  # a window that was read by heap pages
        kept = ("column", "fallback", "versions", "gt", "le")
        spec = {name: units[0].spec[name] for name in kept if name in units[0].spec}
        return Whole(WorkUnit(0, UnitKind.WINDOW, "", spec))
    walked, cursor = cursor_of(export), engine.state.cursor(run.export_name, run.prefix)
    if cursor is None or cursor.run_id != run.run_id:
        # it saw no cursor value: all that it read are rows without one
        return Whole(WorkUnit(0, UnitKind.NULLS, "", walked.spec()))
    if cursor.column != walked.identity:
        return Whole(None, f"it went by the cursor {cursor.column}, which the export does not have any more")
    versions = units[0].spec.get("versions")
    bound = {"le": cursor.value} if versions is None else {"versions": versions}
    return Whole(WorkUnit(0, UnitKind.WHOLE, "", {**walked.spec(), **bound}))


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
        if isinstance(low, list):
            low = cursor_of(engine.export(run.export_name)).text(low)
        if low is not None and (reached is None or cursor_before(reached, low)):
            return
    engine.state.set_verified(run.export_name, run.prefix, committed, mismatches=0, unknowns=0)
