"""Rows past a watermark, up to a bound that is pinned in the snapshot which is read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rivet_dagster.engine.plan.guards import require_column
from rivet_dagster.engine.plan.plan import CursorWindow, Plan, label_by_index
from rivet_dagster.engine.plan.units import UnitKind, WorkUnit
from rivet_dagster.engine.plan.whole import plan_full
from rivet_dagster.engine.sources.base import Planner

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig


def plan_incremental(export: ExportConfig, planner: Planner, watermark: str | None) -> Plan:
    """(watermark, bound], the bound pinned in the snapshot that is read.

    The first run reads everything, rows without a cursor value included.
    """
    name = export.cursor_column
    assert name is not None
    require_column(planner.facts, export.name, "cursor_column", name)
    bounds = planner.cursor_bounds(name, watermark)
    window = CursorWindow(name, bounds.native_type, watermark, bounds.high)
    if watermark is None:
        plan = plan_full(planner)
        reason = f"first run: the whole table up to the pinned bound, {plan.reason}"
        return replace(plan, strategy="incremental", cursor=window, reason=reason)
    if bounds.high is None:
        reason = f"no row with {name} past the watermark"
        return Plan("incremental", (), "snapshot", False, reason, window, skip_reason=reason)
    spec = {"column": name, "gt": watermark, "le": bounds.high}
    unit = WorkUnit(0, UnitKind.WINDOW, "", spec, watermark, bounds.high)
    return Plan(
        "incremental",
        label_by_index([unit]),
        "snapshot",
        False,
        f"rows with {name} past the watermark",
        window,
    )
