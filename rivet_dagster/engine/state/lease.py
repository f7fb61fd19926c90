"""Leases: who may work on a key, and the fencing token that makes a stalled holder harmless.

A token belongs to one acquisition. It grows with each and is never used twice, because a released
key keeps its row. Every write of a run compares it inside its own transaction (``fence``), so a
holder that stalled past its time cannot commit after its successor began.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import ColumnElement, Exists, Row, bindparam, literal, select, update
from sqlalchemy.engine import Connection

from rivet_dagster.engine.errors import BusyError, RivetError
from rivet_dagster.engine.state.database import Database
from rivet_dagster.engine.state.liveness import ProcessIdentity, current_process
from rivet_dagster.engine.state.models import Claim, Lease, LeaseInfo
from rivet_dagster.engine.state.schema import state_lease

DEFAULT_TTL_S: Final = 30.0


@functools.cache
def fence() -> Exists:
    """The condition that a lease (parameters ``fence_key``, ``fence_token``) is still the newest.

    On PostgreSQL it locks the lease's row until the transaction ends, which keeps a successor
    waiting (it asks for FOR UPDATE) and lets renewals and other workers' commits pass.
    """
    held = select(literal(1)).where(
        state_lease.c.lease_key == bindparam("fence_key"),
        state_lease.c.token == bindparam("fence_token"),
        state_lease.c.holder.is_not(None),
    )
    return held.with_for_update(read=True, key_share=True).exists()


def fence_params(lease: Lease) -> dict[str, Any]:
    return {"fence_key": lease.key, "fence_token": lease.token}


def check_fence(connection: Connection, lease: Lease) -> None:
    """Raise BusyError (RIVET_STATE_LEASE_LOST) unless ``lease`` is still the newest."""
    if not connection.execute(select(fence()), fence_params(lease)).scalar_one():
        raise lease_lost(lease)


def lease_lost(lease: Lease) -> BusyError:
    return BusyError(
        f"'{lease.key}' has passed from {lease.holder} (token {lease.token}) to another run",
        code="RIVET_STATE_LEASE_LOST",
    )


class LeaseStore:
    """Acquire, renew, release; part of StateStore."""

    _db: Database

    def acquire(
        self, key: str, holder: str, *, wait_s: float, ttl_s: float = DEFAULT_TTL_S, poll_s: float = 0.25
    ) -> Lease:
        """Take ``key``, waiting up to ``wait_s`` seconds for its holder to finish.

        It is taken over when its time ran out, and at once when its holder was a process of this
        machine that is dead. Raises BusyError: RIVET_STATE_RUN_IN_PROGRESS when ``wait_s`` is 0,
        RIVET_STATE_LOCK_TIMEOUT after waiting.
        """
        deadline = time.monotonic() + wait_s
        while True:
            # look first: waiting must not take write locks
            busy = self.holder(key)
            if busy is None:
                outcome = self._take(key, holder, ttl_s)
                if isinstance(outcome, Lease):
                    return outcome
                busy = outcome
            left = deadline - time.monotonic()
            if left <= 0:
                raise _still_busy(busy, wait_s)
            time.sleep(min(left, poll_s * random.uniform(0.75, 1.25)))  # noqa: S311 - spreads the waiters

    def renew(self, lease: Lease) -> None:
        """Give ``lease`` its full time again. Raises BusyError (RIVET_STATE_LEASE_LOST)."""
        statement, parameters = (
            _renewal(self._db),
            {**fence_params(lease), "ttl_ms": round(lease.ttl_s * 1000)},
        )
        with self._db.single() as connection:
            renewed = connection.execute(statement, {**parameters, **self._db.clock()}).rowcount
        if not renewed:
            raise lease_lost(lease)

    def confirm(self, lease: Lease) -> None:
        """Raise BusyError (RIVET_STATE_LEASE_LOST) unless ``lease`` is the newest at this moment."""
        with self._db.single() as connection:
            check_fence(connection, lease)

    def release(self, lease: Lease) -> None:
        """Free the key. Does nothing when the lease is not ours any more."""
        statement = (
            update(state_lease)
            .where(state_lease.c.lease_key == lease.key, state_lease.c.token == lease.token)
            .values(holder=None, expires_at=0)
        )
        with self._db.single() as connection:
            connection.execute(statement)

    def holder(self, key: str) -> LeaseInfo | None:
        """Who holds ``key``; None when it is free, its time ran out or its process is dead."""
        with self._db.single() as connection:
            row = self._read(connection, key)
        return _live_holder(row) if row is not None else None

    def _read(self, connection: Connection, key: str, *, lock: bool = False) -> Row[Any] | None:
        statement = select(state_lease, _now(self._db)).where(state_lease.c.lease_key == bindparam("key"))
        if lock:
            statement = statement.with_for_update()
        return connection.execute(statement, {"key": key, **self._db.clock()}).one_or_none()

    def _take(self, key: str, holder: str, ttl_s: float) -> Lease | LeaseInfo:
        """The lease, or who was faster."""
        process = current_process()
        with self._db.transaction() as connection:
            row = self._read(connection, key, lock=True)
            if row is None:
                # two may insert at once: the row is made first, and taken like any other
                free = _columns(None, 0, ProcessIdentity("", "", 0, 0))
                insert = self._db.insert(state_lease).on_conflict_do_nothing()
                connection.execute(insert, {"lease_key": key, "expires_at": 0, **free})
                row = self._read(connection, key, lock=True)
                assert row is not None
            busy = _live_holder(row)
            if busy is not None:
                return busy
            token = int(row.token) + 1
            connection.execute(
                update(state_lease)
                .where(state_lease.c.lease_key == bindparam("key"))
                .values(expires_at=self._db.now() + bindparam("ttl_ms"), **_columns(holder, token, process)),
                {"key": key, "ttl_ms": round(ttl_s * 1000), **self._db.clock()},
            )
        return Lease(key, holder, token, ttl_s)


def _columns(holder: str | None, token: int, process: ProcessIdentity) -> dict[str, Any]:
    return {
        "holder": holder,
        "token": token,
        "host": process.host,
        "pid": process.pid,
        "pid_start": process.pid_start,
        "boot_id": process.boot_id,
    }


def _now(database: Database) -> ColumnElement[int]:
    return database.now().label("server_now")


def _renewal(database: Database) -> Any:
    return (
        update(state_lease)
        .where(
            state_lease.c.lease_key == bindparam("fence_key"),
            state_lease.c.token == bindparam("fence_token"),
            state_lease.c.holder.is_not(None),
        )
        .values(expires_at=database.now() + bindparam("ttl_ms"))
    )


def _live_holder(row: Row[Any]) -> LeaseInfo | None:
    left_ms = row.expires_at - row.server_now
    if row.holder is None or left_ms <= 0:
        return None
    if ProcessIdentity(row.host, row.boot_id, row.pid, row.pid_start).is_dead():
        return None
    return LeaseInfo(row.lease_key, row.holder, row.token, left_ms / 1000, row.host, row.pid)


def _still_busy(info: LeaseInfo, wait_s: float) -> BusyError:
    waited = f" and did not finish within {wait_s:g} s" if wait_s > 0 else ""
    return BusyError(
        f"'{info.key}' is held by {info.holder} (process {info.pid} on {info.host}){waited}",
        code="RIVET_STATE_LOCK_TIMEOUT" if wait_s > 0 else "RIVET_STATE_RUN_IN_PROGRESS",
    )


class LeaseKeeper:
    """Renews a lease, and the claims under it, from a thread for as long as the block lasts.

    An outage of the state is survived until the lease's time has passed; from then on, and as soon
    as another took over, ``lost`` is set and ``check`` raises. It does not release the lease.
    """

    def __init__(
        self, store: LeaseStore, lease: Lease, *, interval_s: float | None = None, claim_ttl_s: float = 300.0
    ) -> None:
        self.lease = lease
        self.lost = threading.Event()
        self._store = store
        self._interval_s = interval_s if interval_s is not None else lease.ttl_s / 3
        self._claim_ttl_s = claim_ttl_s
        self._claims: set[tuple[str, int, int]] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._reason: RivetError | None = None
        self._renewed_at = time.monotonic()  # the lease was acquired a moment ago
        self._thread = threading.Thread(target=self._beat, name=f"lease {lease.key}", daemon=True)

    def __enter__(self) -> LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)  # it may be waiting for a server that does not answer

    def check(self) -> None:
        """Raise BusyError (RIVET_STATE_LEASE_LOST) when the lease is not ours any more."""
        # this process may have been stopped for longer than its time, and its thread not yet awake
        if not self.lost.is_set() and self._overdue():
            self._renew()
        if self.lost.is_set():
            raise lease_lost(self.lease) from self._reason

    def verify(self) -> None:
        """``check``, and ask the state: the answer holds whatever the clocks say."""
        self.check()
        self._store.confirm(self.lease)

    @contextlib.contextmanager
    def holding(self, claim: Claim) -> Iterator[Claim]:
        """Keep ``claim`` alive while its unit is worked on, however long that takes."""
        held = (claim.run_id, claim.unit.index, claim.token)
        with self._lock:
            self._claims.add(held)
        try:
            yield claim
        finally:
            with self._lock:
                self._claims.discard(held)

    def _beat(self) -> None:
        while not self._stop.wait(self._interval_s) and not self.lost.is_set():
            self._renew()

    def _overdue(self) -> bool:
        return time.monotonic() - self._renewed_at >= self.lease.ttl_s

    def _renew(self) -> None:
        started = time.monotonic()
        try:
            self._store.renew(self.lease)
            self._renewed_at = started
            with self._lock:
                claims = tuple(self._claims)
            extend_claims(self._store._db, claims, self._claim_ttl_s)
        except RivetError as error:
            # whatever the trouble is, it may pass, until the time that we were given has
            if self._overdue() or error.code == "RIVET_STATE_LEASE_LOST":
                self._reason = error
                self.lost.set()


def extend_claims(database: Database, claims: tuple[tuple[str, int, int], ...], ttl_s: float) -> None:
    """Give claims (run id, unit index, token) that still stand ``ttl_s`` seconds from now."""
    from rivet_dagster.engine.state.schema import chunk_task

    if not claims:
        return
    statement = (
        update(chunk_task)
        .where(
            chunk_task.c.run_id == bindparam("run"),
            chunk_task.c.chunk_index == bindparam("index"),
            chunk_task.c.claim_token == bindparam("claim"),
            chunk_task.c.status == "running",
        )
        .values(claim_expires_at=database.now() + bindparam("ttl_ms"))
    )
    shared = {"ttl_ms": round(ttl_s * 1000), **database.clock()}
    with database.transaction() as connection:
        connection.execute(statement, [{"run": r, "index": i, "claim": c, **shared} for r, i, c in claims])
