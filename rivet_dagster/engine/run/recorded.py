"""Plans and events made of what the state recorded: units that are done and are carried or continued."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rivet_dagster.engine.errors import RivetError
from rivet_dagster.engine.names import new_run_id
from rivet_dagster.engine.plan.plan import Plan
from rivet_dagster.engine.plan.units import Part, WorkUnit
from rivet_dagster.engine.run.events import AlreadyAppliedError, RunPlan, UnitCommitted
from rivet_dagster.engine.state.models import JournalEvent, RunHeader, UnitRow
from rivet_dagster.engine.types.decision import Column

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig, RivetConfig
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


def require_open(state: StateStore, run_id: str) -> None:
    """Raise AlreadyAppliedError unless the run can still be gone on with."""
    run = state.get_run(run_id)
    if run is None or run.status != "in_progress":
        raise AlreadyAppliedError(run_id)


def new_header(
    config: RivetConfig,
    export: ExportConfig,
    columns: Sequence[Column],
    prefix: str,
    mode: str,
    consistency: str | None,
    **kept: Any,
) -> RunHeader:
    """Of a run that begins now. kept: ``plan_hash``, ``parent_run_id``, ``holder``."""
    return RunHeader(
        run_id=new_run_id(export.name),
        export_name=export.name,
        prefix=prefix,
        mode=mode,
        consistency=consistency,
        schema_json=json.dumps([c.as_json() for c in columns]),
        source_identity=config.source.identity(),
        max_chunk_attempts=config.attempts_for(export),
        **kept,
    )


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
