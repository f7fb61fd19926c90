"""The last days of a table, by the source's clock."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa

from rivet_dagster.engine.plan.days import EPOCH, day_literal, is_day
from rivet_dagster.engine.plan.guards import refuse_scan, require_column, wrong_kind
from rivet_dagster.engine.plan.plan import Plan, chunk_plan
from rivet_dagster.engine.plan.units import UnitKind, WorkUnit
from rivet_dagster.engine.sources.base import Planner, SourceFacts

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig

_DAY_SECONDS = 86_400


def plan_time_window(export: ExportConfig, planner: Planner) -> Plan:
    """One unit a UTC day, from ``days_window`` days ago until now; today's has no end.

    Whole days: a partition means the same in every run that has it.
    """
    facts, column, days = planner.facts, export.time_column, export.days_window
    assert column is not None
    assert days is not None
    _require(export, facts, column)
    today = planner.today()
    units: list[WorkUnit] = []
    for day in range(max(today - days, 1), today + 1):
        spec = {"column": column, "ge": _start(export, facts, column, day)}
        if day < today:
            spec["lt"] = _start(export, facts, column, day + 1)
        shown = date.fromordinal(day).isoformat()
        units.append(WorkUnit(len(units), UnitKind.SPAN, shown, spec, shown, shown if day < today else None))
    return chunk_plan("time_window", tuple(units), planner, f"{len(units)} days of {column}")


def _start(export: ExportConfig, facts: SourceFacts, column: str, day: int) -> str:
    if export.time_column_type == "unix":
        return str((day - EPOCH) * _DAY_SECONDS)
    return day_literal(facts, column, day)


def _require(export: ExportConfig, facts: SourceFacts, name: str) -> None:
    require_column(facts, export.name, "time_column", name)
    found = facts.column(name)
    kind = found.source_arrow if found else pa.null()
    if export.time_column_type == "unix":
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise wrong_kind(export, facts, "time_column", "`time_column_type: unix` needs a number")
    elif not is_day(facts, name):
        raise wrong_kind(export, facts, "time_column", "a window of days needs a date or timestamp column")
    refuse_scan(export, facts, "time_column", (name,))
