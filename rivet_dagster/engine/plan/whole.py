"""A whole table: page ranges of its heaps, under one snapshot."""

from __future__ import annotations

from rivet_dagster.engine.plan import sizing
from rivet_dagster.engine.plan.plan import Plan, label_by_index
from rivet_dagster.engine.plan.units import UnitKind, WorkUnit
from rivet_dagster.engine.sources.base import Planner


def plan_full(planner: Planner, *, split: bool = True) -> Plan:
    """Heap page ranges under one snapshot; one unit for each relation that cannot be split.

    split=False: one unit for everything, which something else cuts.
    """
    facts = planner.facts
    snapshot = planner.snapshot_id() is not None
    total = sum(heap.bytes for heap in facts.heaps)
    wanted = sizing.unit_bytes(total)
    units: list[WorkUnit] = []
    for heap in facts.heaps if split else ():
        if not (heap.split and snapshot and heap.pages):
            units.append(WorkUnit(len(units), UnitKind.WHOLE, "", dict(heap.spec)))
            continue
        for first, last in sizing.page_ranges(heap.pages, heap.bytes, wanted):
            spec = {
                **heap.spec,
                "first": first,
                "last": last,
                "step": sizing.page_step(heap.pages, heap.bytes, sizing.STATEMENT_BYTES),
                "pages": heap.pages,
            }
            end = "" if last is None else str(last - 1)
            units.append(
                WorkUnit(len(units), UnitKind.PAGES, "", spec, f"page {first}", end and f"page {end}")
            )
    if not units:
        units.append(WorkUnit(0, UnitKind.WHOLE, "", {}))
    paged = sum(u.kind is UnitKind.PAGES for u in units)
    reason = (
        f"{paged} page ranges of about {wanted // sizing.MIB} MiB under one snapshot"
        if paged
        else "read in one piece: nothing to split by"
    )
    return Plan(
        "full", label_by_index(units), "snapshot" if snapshot else "chunk", resumable=False, reason=reason
    )
