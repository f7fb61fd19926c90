"""What a new session does about a run that an earlier one left open."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from rivet_dagster.engine.destinations.base import Store
from rivet_dagster.engine.errors import RefusalError, UsageError
from rivet_dagster.engine.names import manifest_copy
from rivet_dagster.engine.plan.incremental import cursor_of
from rivet_dagster.engine.plan.plan import ACCUMULATING, CursorWindow
from rivet_dagster.engine.plan.units import UnitKind
from rivet_dagster.engine.state.models import CursorRow, RunHeader, UnitRow
from rivet_dagster.engine.state.store import StateStore
from rivet_dagster.engine.verify.manifest import MAX_MANIFEST_BYTES
from rivet_dagster.engine.verify.manifest_reader import parse_manifest

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig


class Next(Enum):
    """ROLL_FORWARD: its manifest is already there for readers, so it must be completed first.
    RESUME: go on with its units. ABANDON: its parts become leftovers of the run planned now."""

    ROLL_FORWARD = "roll forward"
    RESUME = "resume"
    ABANDON = "abandon"


class Decision(Struct, frozen=True):
    next: Next
    reason: str


def decide(
    run: RunHeader, store: Store, export: ExportConfig, plan_hash: str, *, selected: bool, fresh: bool
) -> Decision:
    """selected: a person chose partitions, which continues the run they belong to. fresh: start anew."""
    if store.read_bytes(manifest_copy(run.run_id), MAX_MANIFEST_BYTES) is not None:
        return Decision(Next.ROLL_FORWARD, "its manifest was already published")
    if fresh:
        return Decision(Next.ABANDON, "a fresh run was asked for")
    if run.consistency != "chunk":
        return Decision(Next.ABANDON, "its units mean nothing outside its snapshot, which is gone")
    if run.plan_hash != plan_hash:
        return Decision(Next.ABANDON, "the export, its columns or its destination changed since")
    if not (export.chunk_checkpoint or selected):
        return Decision(Next.ABANDON, "chunk_checkpoint is off")
    return Decision(Next.RESUME, "its units are continued")


def cursor_to_go_on(state: StateStore, export: ExportConfig, prefix: str, stream: str) -> CursorRow | None:
    """The committed cursor, refused when it belongs to another column or source (ADR-0033).

    A run that left no cursor was a whole pass into the folder and replaced what an older cursor stood
    for: reading starts anew.
    """
    cursor = state.cursor(export.name, prefix) if export.accumulates else None
    last = state.latest_run(export.name, prefix=prefix)
    if cursor is None or (last is not None and last.run_id != cursor.run_id):
        return None
    walked = cursor_of(export).identity
    if cursor.column == walked and cursor.stream in ("", stream):
        return cursor
    raise RefusalError(
        f"the stored cursor belongs to column '{cursor.column}' of {cursor.stream or 'another stream'}, "
        f"not to '{walked}' of {stream}",
        code="RIVET_STATE_CURSOR_OWNER_MISMATCH",
        export=export.name,
        field="cursor_column",
    )


class Repeatable(Struct, frozen=True):
    """A complete run whose units can be run again, each alone. window: of its cursor, None without one."""

    run: RunHeader
    rows: tuple[UnitRow, ...]
    window: CursorWindow | None


def repeatable(
    state: StateStore,
    store_at: Callable[[str], Store],
    export: ExportConfig,
    run: RunHeader,
    plan_hash: str,
) -> Repeatable | str:
    """``run`` and its units, or why single units of it cannot be run again.

    Their new parts come from another moment than those that stay, so an export that promises one
    snapshot of the whole table is not among them.
    """
    if run.plan_hash != plan_hash:
        return "they belong to no complete run of the export as it is now"
    rows = tuple(state.units(run.run_id))
    kinds = {row.unit.kind for row in rows}
    if run.mode == "full" or not rows or not all(row.unit.outlives_snapshot for row in rows):
        return "they mean nothing outside their snapshot, which is gone"
    if export.consistency == "snapshot":
        return "`consistency: snapshot` reads all of them at one moment"
    if run.mode not in ACCUMULATING:
        return Repeatable(run, rows, None)
    if UnitKind.WHOLE in kinds:
        return "a first run has no bounds that its units could be read by again"
    data = store_at(run.prefix).read_bytes(manifest_copy(run.run_id), MAX_MANIFEST_BYTES)
    if data is None:
        return "the manifest of their run is gone, and with it the window of the cursor"
    found = parse_manifest(data).source.extraction
    window = CursorWindow(
        found.cursor_column or "", found.cursor_type or "", found.cursor_low, found.cursor_high
    )
    return Repeatable(run, rows, window)


def versions_read(state: StateStore, cursor: CursorRow | None) -> Mapping[str, Any] | None:
    """Which row versions the run that left ``cursor`` read, from its units; None without ``late_rows``."""
    if cursor is None or cursor.run_id is None:
        return None
    rows = state.units(cursor.run_id)
    return rows[0].unit.spec.get("versions") if rows else None


def select_units(rows: Collection[UnitRow], partitions: Collection[str] | None) -> frozenset[int]:
    """Indexes of the units behind the chosen partitions; all that are not done without a choice."""
    if partitions is None:
        return frozenset(r.unit.index for r in rows if r.status != "completed")
    known = {r.unit.partition for r in rows}
    unknown = sorted(set(partitions) - known)
    if unknown:
        raise UsageError(
            f"the plan has no partition {', '.join(unknown[:10])}; it has {len(known)}, "
            f"from {min(known)} to {max(known)}",
            code="RIVET_PARTITION_UNKNOWN",
        )
    return frozenset(r.unit.index for r in rows if r.unit.partition in partitions)
