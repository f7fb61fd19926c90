"""Plans and events made of what the state recorded: units that are done and are carried or continued."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from rivet_dagster.engine.errors import RivetError
from rivet_dagster.engine.plan.plan import Plan
from rivet_dagster.engine.plan.units import Part, WorkUnit
from rivet_dagster.engine.run.events import RunPlan, UnitCommitted
from rivet_dagster.engine.state.models import JournalEvent, RunHeader, UnitRow

if TYPE_CHECKING:
    from rivet_dagster.engine.state.store import StateStore


def carried_events(state: StateStore, plan: RunPlan) -> Iterator[UnitCommitted]:
    """The units of a continued run that are done already, once each, with their parts."""
    if not plan.resumed:
        return
    found: dict[int, list[Part]] = {}
    for part in state.parts(plan.run_id):
        found.setdefault(part.chunk_index, []).append(part.as_part())
    for row in state.units(plan.run_id):
        if row.status == "completed":
            parts = tuple(found.get(row.unit.index, ()))
            yield UnitCommitted(
                row.unit, row.rows, len(parts), row.bytes, row.seconds, row.attempts, parts, carried=True
            )


def planned_event(plan: Plan) -> JournalEvent:
    """What a run's journal begins with."""
    detail = {"strategy": plan.strategy, "units": len(plan.units), "reason": plan.reason}
    return JournalEvent("PlanResolved", detail)


def failed_event(error: RivetError) -> JournalEvent:
    detail = {"code": error.code or None, "class": error.error_class, "unit": error.unit}
    return JournalEvent("RunFailed", detail)


def partitions(units: Collection[WorkUnit]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(u.partition for u in units))


def run_plan(
    header: RunHeader, rows: Collection[UnitRow], outstanding: frozenset[int], *, resumed: bool, reason: str
) -> RunPlan:
    units = tuple(r.unit for r in rows)
    return RunPlan(
        header.run_id,
        resumed,
        units,
        outstanding,
        partitions(units),
        header.mode,
        reason,
        consistency=header.consistency,
    )
