"""What goes into the state and what comes out of it: plain frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct, field

from rivet_dagster.engine.plan.units import Part, PartStats, WorkUnit

RunStatus = Literal["in_progress", "completed", "interrupted", "failed"]
UnitStatus = Literal["pending", "running", "completed", "failed"]
Strategy = Literal["cursor", "chunk"]


class Lease(Struct, frozen=True):
    """The right to change one key. ``token`` is the fencing token: the newest one alone may write.

    It can be handed to workers on other hosts: whoever has it may claim, commit and renew.
    """

    key: str
    holder: str
    token: int
    ttl_s: float = 30.0


class LeaseInfo(Struct, frozen=True):
    """Who holds a key now. ``expires_in_s``: seconds until others may take it without a renewal."""

    key: str
    holder: str
    token: int
    expires_in_s: float
    host: str
    pid: int


class RunHeader(Struct, frozen=True):
    """One run of an export. Times are UTC and set by the store; ``status`` too."""

    run_id: str
    export_name: str
    prefix: str
    mode: str
    plan_hash: str = ""
    parent_run_id: str | None = None
    consistency: str | None = None
    schema_json: str | None = None
    source_identity: str = ""
    max_chunk_attempts: int = 3
    holder: str = ""
    status: RunStatus = "in_progress"
    created_at: datetime | None = None
    updated_at: datetime | None = None


class UnitRow(Struct, frozen=True):
    """A unit of a run with what became of it. ``error``: error object without message."""

    unit: WorkUnit
    status: UnitStatus
    attempts: int
    rows: int
    bytes: int
    seconds: float
    error: Mapping[str, Any] | None = None
    final: bool = False
    claimed_by: str | None = None


class Claim(Struct, frozen=True):
    """One worker's hold on one unit.

    attempt: 1, 2, ... over all claims of the unit in its run, never used twice, so file names carry
    it; it is the claim's fencing token too. tries: claims that count against ``max_tries``; a
    person's ``requeue`` starts them anew.
    """

    run_id: str
    unit: WorkUnit
    attempt: int
    tries: int
    max_tries: int
    export_name: str
    worker: str

    @property
    def token(self) -> int:
        return self.attempt

    @property
    def last_try(self) -> bool:
        """No further claim of this unit follows a failure of this one."""
        return self.tries >= self.max_tries


class RunProgress(Struct, frozen=True):
    """Units of a run by status. ``failed``: given up; ``waiting``: failed, to be tried again.

    ``next_in_s``: seconds until the first waiting or abandoned unit can be claimed, None without any.
    """

    total: int
    pending: int
    running: int
    completed: int
    waiting: int
    failed: int
    next_in_s: float | None = None

    @property
    def settled(self) -> bool:
        """Nothing is left that a claim could give out, now or later."""
        return self.completed + self.failed == self.total


class PartRow(Struct, frozen=True):
    """A part in the file log. ``origin_run_id``: the run that wrote it (another one if it was carried)."""

    run_id: str
    export_name: str
    chunk_index: int
    file_name: str
    row_count: int
    bytes: int
    fingerprint: str
    md5: str
    format: str
    compression: str
    attempt: int
    checksums: Mapping[str, int] | None
    origin_run_id: str
    created_at: datetime
    stats: PartStats | None = None

    def as_part(self) -> Part:
        return Part(
            self.file_name,
            self.row_count,
            self.bytes,
            self.fingerprint,
            self.md5,
            self.checksums,
            self.stats,
        )


class JournalEvent(Struct, frozen=True):
    """One thing that happened in a run. ``detail`` is JSON and holds no row value and no secret."""

    event: str
    detail: Mapping[str, Any] = field(default_factory=dict)


class JournalRow(Struct, frozen=True):
    run_id: str
    seq: int
    at: datetime
    event: str
    detail: Mapping[str, Any]


class CursorRow(Struct, frozen=True):
    """Where an export's incremental reading stands. ``value`` is canonical text of ``type``."""

    value: str
    column: str
    type: str
    stream: str = ""
    run_id: str | None = None
    last_run_at: datetime | None = None


class Boundary(Struct, frozen=True):
    """How far an export got: a cursor value, or a chunk index of ``run_id`` (never both)."""

    strategy: Strategy
    run_id: str
    cursor: str | None = None
    chunk_index: int | None = None
    at: datetime | None = None

    def __post_init__(self) -> None:
        wanted = self.cursor if self.strategy == "cursor" else self.chunk_index
        other = self.chunk_index if self.strategy == "cursor" else self.cursor
        if wanted is None or other is not None:
            raise ValueError(f"a {self.strategy} boundary holds its {self.strategy} and nothing else")


class Progression(Struct, frozen=True):
    """Advisory boundaries of an export: what is committed and what was verified (never beyond it)."""

    committed: Boundary | None
    verified: Boundary | None


class RunFinish(Struct, frozen=True):
    """How a run ended; written in one transaction.

    metrics: columns of ``export_metrics`` by name; whatever else is there is kept as JSON.
    widths: longest values by column, the export's from now on.
    error: error object of a run that failed (its message is not stored).
    """

    status: Literal["completed", "failed"]
    metrics: Mapping[str, Any] = field(default_factory=dict)
    cursor: CursorRow | None = None
    schema_json: str | None = None
    widths: Mapping[str, int] | None = None
    committed: Boundary | None = None
    error: Mapping[str, Any] | None = None
    events: tuple[JournalEvent, ...] = ()


class RunAggregate(Struct, frozen=True):
    """One invocation over one or more exports. ``details``: its per-export results."""

    run_aggregate_id: str
    started_at: datetime
    finished_at: datetime
    config_path: str
    parallel_mode: str
    total_exports: int
    success_count: int
    failed_count: int
    skipped_count: int
    total_rows: int
    total_files: int
    total_bytes: int
    details: tuple[Mapping[str, Any], ...] = ()
