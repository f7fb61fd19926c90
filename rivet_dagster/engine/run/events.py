"""What a run tells its caller while it goes on, and what it ends with."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from rivet_dagster.engine.errors import RivetError
from rivet_dagster.engine.plan.units import Part, WorkUnit
from rivet_dagster.engine.types.decision import Column


class UnitCommitted(Struct, frozen=True):
    """The unit is durable: its parts are published and the state transaction is done.

    carried: it was completed by an earlier attempt or run and is only reported again.
    """

    unit: WorkUnit
    rows: int
    files: int
    bytes: int
    seconds: float
    attempt: int
    parts: tuple[Part, ...]
    carried: bool = False


class UnitFailed(Struct, frozen=True):
    """An attempt failed. final: the attempts are used up, or the error cannot be retried."""

    unit: WorkUnit
    error: RivetError
    attempt: int
    final: bool


class RunNote(Struct, frozen=True):
    """A line for the log."""

    text: str


RunEvent = UnitCommitted | UnitFailed | RunNote


class AlreadyAppliedError(Exception):
    """The run that was asked for is complete, or given up. Nothing failed: there is nothing left to do."""

    def __init__(self, run_id: str, what: str = "is over") -> None:
        super().__init__(f"run {run_id} {what}")
        self.run_id = run_id


class RunPlan(Struct, frozen=True):
    """units: all of the run. outstanding: indexes that this session will execute.

    partitions: distinct Dagster partition keys in plan order. strategy and reason: for people.
    consistency: ``snapshot`` (all units see one moment) or ``chunk`` (each sees its own).
    """

    run_id: str
    resumed: bool
    units: tuple[WorkUnit, ...]
    outstanding: frozenset[int]
    partitions: tuple[str, ...]
    strategy: str
    reason: str
    est_rows: int | None = None
    consistency: str | None = None


class Cleared(Struct, frozen=True):
    """Files that were in the folder beside the run's own, and are of no run that still counts.

    superseded: parts of complete runs that this one replaced; orphaned: what attempts that came to
    nothing had left. Both lie in ``_quarantine`` now. untracked: names that are not ours, left alone.
    """

    superseded: int = 0
    orphaned: int = 0
    untracked: int = 0


class RunOutcome(Struct, frozen=True):
    """How a run ended. bytes: of the finished files. seconds: of this session.

    warnings: what its end found and a person should see; lines that no event told before. details:
    ``nulled`` (column -> values that the value policy replaced), ``quality`` (gates and their figures),
    ``drift`` (columns that changed since the last complete run), ``folder`` (files beside the run's own).
    retries: attempts at units beyond the first of each, by all sessions of the run.
    """

    status: str
    run_id: str
    export: str
    mode: str
    rows: int
    files: int
    bytes: int
    seconds: float
    units: int
    columns: tuple[Column, ...]
    prefix_uri: str
    manifest_uri: str | None
    skip_reason: str | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    retries: int = 0
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0
