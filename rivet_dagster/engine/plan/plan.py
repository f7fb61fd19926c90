"""The plan of a run, and how its units are shown as partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct
from msgspec.structs import replace

from rivet_dagster.engine.plan.units import UnitKind, WorkUnit
from rivet_dagster.engine.sources.base import Planner

#: A chunked run that goes on after the last key of the run before.
KEYSET_INCREMENTAL = "keyset_incremental"
#: Strategies whose runs add to the folder; any other is a whole pass, which replaces what was there.
ACCUMULATING = frozenset({"incremental", KEYSET_INCREMENTAL})
MAX_PARTITIONS = 500  # each costs 40 to 75 ms of Dagster events


class CursorWindow(Struct, frozen=True):
    """(low, high] of a run with a cursor, named by its identity; low None: a first run."""

    column: str
    native_type: str
    low: str | None
    high: str | None


class Plan(Struct, frozen=True):
    """consistency: ``snapshot`` (all units read one snapshot) or ``chunk`` (each its own).

    resumable: the units mean the same in a later snapshot. skip_reason: there is nothing to do.
    notes: what a person should know about the run.
    """

    strategy: str
    units: tuple[WorkUnit, ...]
    consistency: str
    resumable: bool
    reason: str
    cursor: CursorWindow | None = None
    skip_reason: str | None = None
    notes: tuple[str, ...] = ()


def chunk_plan(strategy: str, units: tuple[WorkUnit, ...], planner: Planner, reason: str) -> Plan:
    """Units that mean the same in any snapshot; each reads its own unless the run holds one for all."""
    if planner.snapshot_id() is None:
        return Plan(strategy, units, "chunk", resumable=True, reason=reason)
    return Plan(strategy, units, "snapshot", resumable=False, reason=f"{reason}, under one snapshot")


def with_nulls(units: tuple[WorkUnit, ...], column: str, planner: Planner) -> tuple[WorkUnit, ...]:
    """``units``, and one for the rows whose ``column`` is NULL when there are any."""
    if column not in planner.facts.nullable or not planner.has_nulls(column):
        return units
    return (*units, WorkUnit(len(units), UnitKind.NULLS, "null", {"column": column}, "NULL", "NULL"))


def label_by_index(units: list[WorkUnit]) -> tuple[WorkUnit, ...]:
    """Partition = position in the plan; past the cap, neighbours share one."""
    share = -(-max(len(units), 1) // MAX_PARTITIONS)
    return tuple(replace(u, partition=f"{u.index // share * share:06d}") for u in units)


def grid_labels(size: int, count: int) -> Callable[[list[WorkUnit]], tuple[WorkUnit, ...]]:
    """Partition = lower bound on the grid of chunk_size; past the cap a coarser, power-of-two grid."""
    span = size
    while -(-count * size // span) > MAX_PARTITIONS:
        span *= 2

    def label(units: Iterable[WorkUnit]) -> tuple[WorkUnit, ...]:
        return tuple(replace(u, partition=_grid_key(int(u.start_key or 0), span)) for u in units)

    return label


def _grid_key(low: int, span: int) -> str:
    slot = low - low % span
    return f"{slot:012d}" if slot >= 0 else f"-{-slot:012d}"
