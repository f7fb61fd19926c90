"""Chosen partitions of an export, done in a new run that carries all others of the last complete one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from rivet_dagster.engine.destinations.base import Store
from rivet_dagster.engine.plan.folders import order_of
from rivet_dagster.engine.plan.plan import CursorWindow
from rivet_dagster.engine.plan.planner import plan_export
from rivet_dagster.engine.plan.units import WorkUnit
from rivet_dagster.engine.run.resume import Repeatable, repeatable, select_units
from rivet_dagster.engine.sources.base import Planner
from rivet_dagster.engine.state.models import PartRow, RunHeader, UnitRow
from rivet_dagster.engine.state.store import StateStore

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig


class Rerun(Struct, frozen=True):
    """The run to begin. carried: units that are done already, with their parts. chosen: those to do now;
    others may be neither, when the run before was not complete.

    base: the run they are carried from, None when there is none. window: of its cursor.
    """

    base: RunHeader | None
    mode: str
    consistency: str | None
    units: tuple[WorkUnit, ...]
    carried: Mapping[int, tuple[PartRow, ...]]
    chosen: frozenset[int]
    window: CursorWindow | None = None


def lacks_folders(export: ExportConfig, rows: Sequence[UnitRow], only: Collection[str]) -> bool:
    """Whether a run with these units has to be begun again to take in folders that were chosen."""
    return export.partition_by is not None and not set(only) <= {row.unit.partition for row in rows}


def rerun(
    state: StateStore,
    store_at: Callable[[str], Store],
    export: ExportConfig,
    planner: Planner,
    plan_hash: str,
    only: Collection[str],
    base: RunHeader | None = None,
) -> Rerun | str:
    """Why not, when no run has units that can be asked for one by one. base: else the last complete run.

    Folders of ``partition_by`` are planned anew, also those that no run had: they mean the same without a
    run. Other partitions belong to the plan that made them.
    """
    base = base or state.latest_run(export.name, statuses=("completed",))
    if base is None:
        return _first(export, planner, only)
    found: Repeatable | str
    if export.partition_by is None:
        found = repeatable(state, store_at, export, base, plan_hash)
    elif base.consistency != "chunk" or export.accumulates or base.plan_hash != plan_hash:
        found = "their folders are of one snapshot, or of another export than this one is now"
    else:
        found = Repeatable(base, tuple(state.units(base.run_id)), None)
    if isinstance(found, str):
        return found
    rows = found.rows
    parts: dict[int, list[PartRow]] = {row.unit.index: [] for row in rows}
    for part in state.parts(base.run_id):
        parts[part.chunk_index].append(part)
    if export.partition_by is not None:
        return _folders(export, planner, base, rows, parts, only)
    chosen = select_units(rows, only)
    carried = {index: tuple(found) for index, found in parts.items() if index not in chosen}
    consistency = "snapshot" if not carried and export.reads_one_snapshot else "chunk"
    return Rerun(base, base.mode, consistency, tuple(r.unit for r in rows), carried, chosen, found.window)


def _first(export: ExportConfig, planner: Planner, only: Collection[str]) -> Rerun | str:
    if export.partition_by is None or export.accumulates:
        return "no run is complete yet"
    plan = plan_export(export, planner, None, only=sorted(only, key=order_of))
    chosen = frozenset(unit.index for unit in plan.units)
    return Rerun(None, plan.strategy, plan.consistency, plan.units, {}, chosen)


def _folders(
    export: ExportConfig,
    planner: Planner,
    base: RunHeader,
    rows: Sequence[UnitRow],
    parts: Mapping[int, Sequence[PartRow]],
    only: Collection[str],
) -> Rerun:
    plan = plan_export(export, planner, None, only=sorted(only, key=order_of))
    units: list[WorkUnit] = []
    carried: dict[int, tuple[PartRow, ...]] = {}
    kept = [row.unit for row in rows if row.unit.partition not in only]
    done = {row.unit.index for row in rows if row.status == "completed"}
    for unit in sorted([*kept, *plan.units], key=lambda u: (order_of(u.partition), u.index)):
        index = len(units)
        if unit.partition not in only and unit.index in done:
            carried[index] = tuple(replace(part, chunk_index=index) for part in parts[unit.index])
        units.append(replace(unit, index=index))
    chosen = frozenset(unit.index for unit in units if unit.partition in only)
    return Rerun(base, base.mode, base.consistency, tuple(units), carried, chosen)
