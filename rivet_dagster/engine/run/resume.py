"""What a new session does about a run that an earlier one left open."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from rivet_dagster.engine.destinations.base import Store
from rivet_dagster.engine.errors import UsageError
from rivet_dagster.engine.names import manifest_copy
from rivet_dagster.engine.state.models import CursorRow, RunHeader, UnitRow
from rivet_dagster.engine.state.store import StateStore
from rivet_dagster.engine.verify.manifest import MAX_MANIFEST_BYTES

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig


class Next(Enum):
    """ROLL_FORWARD: its manifest is already there for readers, so it must be completed first.
    RESUME: go on with its units. ABANDON: its parts become leftovers of the run planned now."""

    ROLL_FORWARD = "roll forward"
    RESUME = "resume"
    ABANDON = "abandon"


@dataclass(frozen=True, slots=True)
class Decision:
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
