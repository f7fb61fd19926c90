"""Rows past a watermark, up to a bound that is pinned in the snapshot which is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from rivet_dagster.engine.plan.guards import refuse_scan, require_column, require_order
from rivet_dagster.engine.plan.pieces import one_statement, window_pieces
from rivet_dagster.engine.plan.plan import CursorWindow, Plan, label_by_index
from rivet_dagster.engine.plan.units import UnitKind, WorkUnit
from rivet_dagster.engine.plan.whole import plan_full
from rivet_dagster.engine.sources.base import Cursor, Planner, Settle, SourceFacts

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig


def plan_incremental(
    export: ExportConfig, planner: Planner, watermark: str | None, seen: Mapping[str, Any] | None = None
) -> Plan:
    """(watermark, bound], the bound pinned in the snapshot that is read.

    The first run reads everything up to the bound, and the rows without a cursor value.
    """
    cursor = cursor_of(export)
    settle = settle_of(export)
    _require(export, planner.facts, cursor, settle)
    require_order(export, planner, "cursor_column", cursor.columns)
    if export.late_rows_s is not None:
        return _plan_late(export, planner, cursor, watermark, seen)
    bounds = planner.cursor_bounds(cursor, watermark, settle, wait=export.waits_for_writers)
    window = CursorWindow(cursor.identity, bounds.native_type, watermark, bounds.high)
    notes = (bounds.held,) if bounds.held else ()
    if bounds.high is None and (watermark is not None or bounds.held):
        reason = bounds.held or f"no row with {cursor.identity} past the watermark"
        return Plan("incremental", (), "snapshot", False, reason, window, skip_reason=reason)
    if watermark is None:
        bound = {**cursor.spec(), "le": bounds.high} if bounds.capped else {}
        return _first_run(export, planner, cursor, window, bound, notes)
    spec = {**cursor.spec(), "gt": watermark, "le": bounds.high}
    unit = WorkUnit(0, UnitKind.WINDOW, "", spec, watermark, bounds.high)
    units = _pieces(export, planner, cursor, unit)
    reason = f"rows with {cursor.identity} past the watermark{_in_one(planner, units)}"
    return Plan("incremental", units, "snapshot", False, reason, window, notes=notes)


def _pieces(export: ExportConfig, planner: Planner, cursor: Cursor, window: WorkUnit) -> tuple[WorkUnit, ...]:
    """The window's units. With ``partition_by`` it is cut by folders instead."""
    whole = export.partition_by is not None
    return label_by_index([window] if whole else window_pieces(planner, cursor, window))


def _in_one(planner: Planner, units: tuple[WorkUnit, ...]) -> str:
    cut = len(units) > 1 or units[0].kind is UnitKind.PAGES or "cuts" in units[0].spec
    why = "" if cut else one_statement(planner.facts)
    return f", {why}" if why else ""


def _first_run(
    export: ExportConfig,
    planner: Planner,
    cursor: Cursor,
    window: CursorWindow,
    bound: Mapping[str, Any],
    notes: tuple[str, ...],
) -> Plan:
    """The whole table without the rows that ``bound`` leaves to a later run."""
    plan = plan_full(planner, split=export.partition_by is None)
    units = tuple(replace(unit, spec={**unit.spec, **bound}) for unit in plan.units)
    if set(cursor.columns) <= planner.facts.nullable:
        notes = (*notes, f"rows whose {cursor.identity} is NULL are read by a first run only")
    reason = f"first run: the whole table up to the pinned bound, {plan.reason}"
    return replace(plan, strategy="incremental", units=units, cursor=window, reason=reason, notes=notes)


def _plan_late(
    export: ExportConfig,
    planner: Planner,
    cursor: Cursor,
    watermark: str | None,
    seen: Mapping[str, Any] | None,
) -> Plan:
    """Row versions of transactions that ended since the last run, from a little before the watermark on."""
    assert export.late_rows_s is not None
    bounds = planner.late_bounds(cursor, watermark, export.late_rows_s, seen)
    name = cursor.identity
    window = CursorWindow(name, bounds.native_type, watermark, bounds.high)
    if bounds.high is None and watermark is not None:
        reason = f"no row with {name} past the watermark, and none that was committed late"
        return Plan("incremental", (), "snapshot", False, reason, window, skip_reason=reason)
    spec: dict[str, Any] = {**cursor.spec(), "versions": bounds.versions}
    if watermark is None:
        return _first_run(export, planner, cursor, window, spec, ())
    spec |= {"gt": bounds.edge, "le": bounds.high}
    unit = WorkUnit(0, UnitKind.WINDOW, "", spec, bounds.edge, bounds.high)
    notes = () if seen is not None else ("rows that came late before this run are not looked for",)
    units = _pieces(export, planner, cursor, unit)
    reason = f"rows with {name} past the watermark, and those committed late{_in_one(planner, units)}"
    return Plan("incremental", units, "snapshot", False, reason, window, notes=notes)


def cursor_of(export: ExportConfig) -> Cursor:
    """The cursor that an incremental export names, or the key that ``keyset_incremental`` follows."""
    if export.keyset_incremental:
        first, *more = export.key_columns
        return Cursor(first, more=tuple(more))
    assert export.cursor_column is not None
    return Cursor(export.cursor_column, export.cursor_fallback_column)


def settle_of(export: ExportConfig) -> Settle | None:
    block = export.settle
    return None if block is None else Settle(block.seconds, block.column)


def _require(export: ExportConfig, facts: SourceFacts, cursor: Cursor, settle: Settle | None) -> None:
    for key, name in zip(("cursor_column", "cursor_fallback_column"), cursor.columns, strict=False):
        require_column(facts, export.name, key, name)
    if settle is not None and settle.column is not None:
        require_column(facts, export.name, "settle", settle.column)
    refuse_scan(export, facts, "cursor_column", cursor.columns)
