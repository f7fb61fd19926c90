"""A window of a cursor in pieces: one statement stays short, and workers share the window."""

from __future__ import annotations

import itertools

from msgspec.structs import replace

from rivet_dagster.engine.plan import sizing
from rivet_dagster.engine.plan.guards import mean_row_bytes
from rivet_dagster.engine.plan.units import UnitKind, WorkUnit
from rivet_dagster.engine.plan.whole import plan_full
from rivet_dagster.engine.sources.base import Cursor, Planner, SourceFacts


def window_pieces(planner: Planner, cursor: Cursor, window: WorkUnit) -> list[WorkUnit]:
    """The rows of ``window``, each in one unit of the same snapshot.

    Cut by values along the cursor's index; without one by heap pages, because it is a pass over them
    anyway. A query or view without an index is read in one piece.
    """
    facts = planner.facts
    total = facts.bytes or 0
    if total <= sizing.STATEMENT_BYTES:
        return [window]
    if cursor.fallback is None and cursor.column in facts.indexed:
        return _along_index(planner, cursor.column, window)
    pages = plan_full(planner).units
    if not any(unit.kind is UnitKind.PAGES for unit in pages):
        return [window]
    return [replace(unit, spec={**unit.spec, **window.spec}) for unit in pages]


def heap_pages(planner: Planner, window: WorkUnit) -> WorkUnit:
    """``window``, which no index helps to find, as one pass over its heap in statements of some pages each.

    Itself where that is not to be had: a small table, several heaps, no snapshot for all statements.
    """
    facts = planner.facts
    if len(facts.heaps) != 1 or not facts.heaps[0].split or planner.snapshot_id() is None:
        return window
    (heap,) = facts.heaps
    if heap.bytes <= sizing.STATEMENT_BYTES:
        return window
    step = sizing.page_step(heap.pages, heap.bytes, sizing.STATEMENT_BYTES)
    pages = {**heap.spec, "first": 0, "last": None, "step": step, "pages": heap.pages}
    return replace(window, kind=UnitKind.PAGES, spec={**pages, **window.spec})


def one_statement(facts: SourceFacts) -> str:
    """Why a unit that is not cut is one statement, whatever its size; empty where it is small."""
    if facts.table is None:
        return "in one statement, as nothing of a query can be cut without a key"
    if not facts.heaps:
        return "in one statement, as a view or foreign table has no pages to be cut by"
    return "" if (facts.bytes or 0) <= sizing.STATEMENT_BYTES else "in one statement"


def _along_index(planner: Planner, column: str, window: WorkUnit) -> list[WorkUnit]:
    """Units of several statements each; the cuts between those are in the spec."""
    mean = mean_row_bytes(planner.facts)
    rows = sizing.statement_rows(mean)
    low, high = window.spec["gt"], window.spec["le"]
    cuts = planner.index_cuts(column, rows, low, high)
    share = max(1, int(sizing.unit_bytes(int(mean * rows * (len(cuts) + 1))) / (mean * rows)))
    bounds = [low, *cuts[share - 1 :: share], high]
    units = []
    for index, (start, end) in enumerate(itertools.pairwise(bounds)):
        spec = {**window.spec, "gt": start, "le": end}
        inner = cuts[index * share : index * share + share - 1]
        spec |= {"cuts": inner} if inner else {}
        units.append(replace(window, index=index, spec=spec, start_key=start, end_key=end))
    return units
