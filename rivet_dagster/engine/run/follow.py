"""The lead of a shared run: invites workers of other processes, and tells what they settle."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from rivet_dagster.engine.errors import (
    REGISTRY,
    BusyError,
    CrashedError,
    IntegrityError,
    InternalError,
    RefusalError,
    RivetError,
    SchemaDriftError,
    TransientError,
    UsageError,
)
from rivet_dagster.engine.run.events import RunEvent, UnitCommitted, UnitFailed
from rivet_dagster.engine.run.workers import WorkerPool
from rivet_dagster.engine.state.models import Lease
from rivet_dagster.engine.state.store import StateStore

_EVERY_S: Final = 1.0
#: A unit's time is taken before its transaction commits: how far back each look goes again.
_OVERLAP_MS: Final = 30_000
_KINDS: Final = {
    kind.error_class: kind
    for kind in (UsageError, TransientError, IntegrityError, SchemaDriftError, RefusalError, InternalError)
}


def shared_events(
    pool: WorkerPool,
    state: StateStore,
    run_id: str,
    lease: Lease,
    *,
    snapshot: str | None,
    done: Collection[int],
) -> Iterator[RunEvent]:
    """``pool.events``, with those of other processes among them. done: units that are told already.

    Units that others could not do are failures of ``pool`` too.
    """
    state.invite(run_id, lease, snapshot)
    follower = _Follower(pool, state, run_id, done)
    thread = threading.Thread(target=follower.run, name="rivet-follow", daemon=True)
    thread.start()
    try:
        yield from pool.events()
    finally:
        follower.over.set()
        thread.join()
    with contextlib.suppress(BusyError):  # the pool tells of a lost lease
        yield from follower.look()


class _Follower:
    def __init__(self, pool: WorkerPool, state: StateStore, run_id: str, done: Collection[int]) -> None:
        self._pool = pool
        self._state = state
        self._run_id = run_id
        self._told = set(done)
        self._since = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(_EVERY_S):
            try:
                for event in self.look():
                    self._pool.tell(event)
            except RivetError:
                continue  # the state is away; the workers will say so if it lasts

    def look(self) -> Iterator[RunEvent]:
        """What others have settled since the last look."""
        found, latest = self._state.settled_since(self._run_id, self._since)
        new = [i for i, worker in found.items() if i not in self._told and not self._pool.owns(worker)]
        for one in self._state.settled(self._run_id, new):
            row = one.row
            self._told.add(row.unit.index)
            if row.status == "completed":
                parts = tuple(part.as_part() for part in one.parts)
                yield UnitCommitted(
                    row.unit, row.rows, len(parts), row.bytes, row.seconds, one.attempt, parts
                )
            elif row.status == "failed":
                error = error_of(row.error)
                error.unit = row.unit.index
                self._pool.errors.append(error)
                yield UnitFailed(row.unit, error, one.attempt, True)
        self._since = latest - _OVERLAP_MS


def error_of(record: Mapping[str, Any] | None) -> RivetError:
    """The error that the state's error object was made of; its message is in the other process's log."""
    record = record or {}
    if record.get("code") not in REGISTRY:
        return CrashedError("each process that worked on the unit died without a word")
    kind = _KINDS.get(record["class"], InternalError)
    return kind("a unit failed in another process; its log has the message", code=record["code"])
