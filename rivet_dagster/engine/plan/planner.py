"""Modes become work units. Nothing here reads a row or knows an engine's SQL."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from rivet_dagster.engine.plan import sizing
from rivet_dagster.engine.plan.days import plan_days
from rivet_dagster.engine.plan.folders import plan_folders
from rivet_dagster.engine.plan.guarantees import cursor_notes
from rivet_dagster.engine.plan.guards import chunk_rows, range_column, refuse_scan, refuse_sparse
from rivet_dagster.engine.plan.incremental import plan_incremental
from rivet_dagster.engine.plan.keys import plan_dense, plan_keyset, plan_keyset_incremental
from rivet_dagster.engine.plan.plan import Plan, chunk_plan, grid_labels, label_by_index, with_nulls
from rivet_dagster.engine.plan.units import UnitKind, WorkUnit
from rivet_dagster.engine.plan.whole import plan_full
from rivet_dagster.engine.plan.window import plan_time_window
from rivet_dagster.engine.sources.base import Planner

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig


def plan_export(
    export: ExportConfig,
    planner: Planner,
    watermark: str | None,
    seen: Mapping[str, Any] | None = None,
    *,
    only: Collection[str] | None = None,
) -> Plan:
    """The plan of one run. ``watermark``: the cursor value that the last run committed, or None.

    seen: which row versions that run read, for ``late_rows``. only: the folders of ``partition_by`` to
    plan, by partition key; None: all that hold a row.

    Raises ConfigError or RefusalError, naming export and key, before anything is written.
    """
    if export.partition_by is not None:
        plan = plan_folders(export, planner, lambda part: _plan_mode(export, part, watermark, seen), only)
    else:
        plan = _plan_mode(export, planner, watermark, seen)
    if plan.skip_reason is not None:
        return plan
    if export.skip_empty and only is None and not planner.holds_rows(plan.units):
        reason = "there are no rows, and `skip_empty` is set"
        return replace(plan, units=(), reason=reason, skip_reason=reason)
    return replace(plan, notes=(*plan.notes, *cursor_notes(export, planner.facts)))


def _plan_mode(
    export: ExportConfig, planner: Planner, watermark: str | None, seen: Mapping[str, Any] | None
) -> Plan:
    if export.mode == "full":
        return plan_full(planner)
    if export.mode == "incremental":
        return plan_incremental(export, planner, watermark, seen)
    if export.mode == "time_window":
        return plan_time_window(export, planner)
    if export.keyset_incremental:
        return plan_keyset_incremental(export, planner, watermark)
    if export.chunk_by_key is not None:
        return plan_keyset(export, planner)
    if export.chunk_by_days is not None:
        return plan_days(export, planner)
    if export.chunk_dense:
        return plan_dense(export, planner)
    return plan_range(export, planner)


def plan_range(export: ExportConfig, planner: Planner) -> Plan:
    """Closed integer ranges of ``chunk_column`` between its pinned minimum and maximum."""
    facts = planner.facts
    column = range_column(export, facts)
    refuse_scan(export, facts, "chunk_column", (column,))
    bounds = planner.integer_bounds(column)
    units: list[WorkUnit] = []
    partitions: Callable[[list[WorkUnit]], tuple[WorkUnit, ...]] = label_by_index
    if bounds is not None:
        low, high = bounds
        size = chunk_rows(export, facts)
        if export.chunk_count is not None:
            ranges = sizing.counted_ranges(low, high, export.chunk_count)
        else:
            refuse_sparse(export, facts, column, sizing.range_count(low, high, size))
            ranges = sizing.integer_ranges(low, high, size)
            partitions = grid_labels(size, sizing.range_count(low, high, size))
        for lo, hi in ranges:
            spec = {"column": column, "ge": str(lo), "le": str(hi)}
            units.append(WorkUnit(len(units), UnitKind.RANGE, "", spec, str(lo), str(hi)))
    labelled = with_nulls(partitions(units), column, planner)
    if not labelled:
        labelled = label_by_index([WorkUnit(0, UnitKind.WHOLE, "", {})])
    return chunk_plan("chunked", labelled, planner, f"{len(labelled)} ranges of {column}")
