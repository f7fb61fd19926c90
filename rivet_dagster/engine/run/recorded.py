"""Plans and events made of what the state recorded: units that are done and are carried or continued."""

from __future__ import annotations

from collections.abc import Collection

from rivet_dagster.engine.plan.units import Part, WorkUnit
from rivet_dagster.engine.run.events import RunPlan, UnitCommitted
from rivet_dagster.engine.state.models import RunHeader, UnitRow


def carried_event(row: UnitRow, parts: tuple[Part, ...]) -> UnitCommitted:
    return UnitCommitted(
        row.unit, row.rows, len(parts), row.bytes, row.seconds, row.attempts, parts, carried=True
    )


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
