"""Leases: who may work on a key, and the fencing token that makes a stalled holder harmless.

A token belongs to one acquisition. It grows with each and is never used twice, because a released
key keeps its row. Every write of a run compares it inside its own transaction (``fence``), so a
holder that stalled past its time cannot commit after its successor began.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from rivet_dagster.engine.errors import BusyError, RivetError
from rivet_dagster.engine.state.connection import Connection, Dialect, Row
from rivet_dagster.engine.state.database import Database
from rivet_dagster.engine.state.liveness import ProcessIdentity, current_process
from rivet_dagster.engine.state.models import Claim, Lease, LeaseInfo
from rivet_dagster.engine.state.patience import Asked, Patience, repeatable

DEFAULT_TTL_S: Final = 30.0
#: A claim of a run with one process outlives pauses of it; nobody else waits for the unit.
DEFAULT_CLAIM_TTL_S: Final = 300.0


_LEASE_COLUMNS: Final = "lease_key, holder, token, expires_at, host, pid, pid_start, boot_id"
IS_NEWEST: Final = """
    state_lease.lease_key = :fence_key AND state_lease.token = :fence_token
    AND state_lease.holder IS NOT NULL"""
_ADD_FREE: Final = f"""
    INSERT INTO state_lease ({_LEASE_COLUMNS})
    VALUES (:key, NULL, 0, 0, '', 0, 0, '')
    ON CONFLICT DO NOTHING"""
_TAKE: Final = """
    UPDATE state_lease
    SET holder = :holder, token = :token, expires_at = :now + :ttl_ms,
        host = :host, pid = :pid, pid_start = :pid_start, boot_id = :boot_id
    WHERE lease_key = :key
    RETURNING expires_at"""
_RENEW: Final = f"UPDATE state_lease SET expires_at = :now + :ttl_ms WHERE {IS_NEWEST}"
_RELEASE: Final = """
    UPDATE state_lease SET holder = NULL, expires_at = 0
    WHERE lease_key = :fence_key AND token = :fence_token"""
_EXTEND_CLAIM: Final = """
    UPDATE chunk_task SET claim_expires_at = :now + :ttl_ms
    WHERE run_id = :run AND chunk_index = :index AND claim_token = :claim AND status = 'running'"""


def fence(dialect: Dialect) -> str:
    """The condition that a lease (parameters ``fence_key``, ``fence_token``) is still the newest.

    On PostgreSQL it locks the lease's row until the transaction ends, which keeps a successor
    waiting (it asks for FOR UPDATE) and lets renewals and other workers' commits pass.
    """
    return f"EXISTS (SELECT 1 FROM state_lease WHERE {IS_NEWEST}{dialect.key_share})"


def fence_params(lease: Lease) -> dict[str, Any]:
    return {"fence_key": lease.key, "fence_token": lease.token}


def check_fence(connection: Connection, lease: Lease) -> None:
    """Raise BusyError (RIVET_STATE_LEASE_LOST) unless ``lease`` is still the newest."""
    if not connection.scalar(f"SELECT {fence(connection.dialect)}", **fence_params(lease)):
        raise lease_lost(lease)


def lease_lost(lease: Lease) -> BusyError:
    return BusyError(
        f"'{lease.key}' has passed from {lease.holder} (token {lease.token}) to another run",
        code="RIVET_STATE_LEASE_LOST",
    )


class LeaseStore(Asked):
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
        tries: set[tuple[int, int]] = set()
        while True:
            # look first: waiting must not take write locks
            busy = self.holder(key)
            if busy is None:
                outcome = self._take(key, holder, ttl_s, tries)
                if isinstance(outcome, Lease):
                    return outcome
                busy = outcome
            left = deadline - time.monotonic()
            if left <= 0:
                raise _still_busy(busy, wait_s)
            time.sleep(min(left, poll_s * random.uniform(0.75, 1.25)))  # noqa: S311 - spreads the waiters

    @repeatable
    def renew(self, lease: Lease) -> None:
        """Give ``lease`` its full time again. Raises BusyError (RIVET_STATE_LEASE_LOST)."""
        with self._db.single() as connection:
            renewed = connection.execute(_RENEW, ttl_ms=round(lease.ttl_s * 1000), **fence_params(lease))
        if not renewed:
            raise lease_lost(lease)

    @repeatable
    def confirm(self, lease: Lease) -> None:
        """Raise BusyError (RIVET_STATE_LEASE_LOST) unless ``lease`` is the newest at this moment."""
        with self._db.single() as connection:
            check_fence(connection, lease)

    @repeatable
    def release(self, lease: Lease) -> None:
        """Free the key. Does nothing when the lease is not ours any more."""
        with self._db.single() as connection:
            connection.execute(_RELEASE, **fence_params(lease))

    @repeatable
    def holder(self, key: str) -> LeaseInfo | None:
        """Who holds ``key``; None when it is free, its time ran out or its process is dead."""
        with self._db.single() as connection:
            row = _read(connection, key)
        return _live_holder(row) if row is not None else None

    @repeatable
    def last_holder(self, key: str) -> str | None:
        """Who took ``key`` last and never released it: alive, or dead since."""
        with self._db.single() as connection:
            row = _read(connection, key)
        return None if row is None else row.holder

    @repeatable
    def _take(self, key: str, holder: str, ttl_s: float, tries: set[tuple[int, int]]) -> Lease | LeaseInfo:
        """The lease, or who was faster.

        tries: (token, end) of what earlier calls have written without an answer to their commit. Nobody
        works under such a lease, so it is taken over like a dead one's.
        """
        process = current_process()
        with self._db.transaction() as connection:
            row = _read(connection, key, lock=connection.dialect.for_update)
            if row is None:
                # two may insert at once: the row is made first, and taken like any other
                connection.execute(_ADD_FREE, key=key)
                row = _read(connection, key, lock=connection.dialect.for_update)
                assert row is not None
            busy = _live_holder(row)
            if busy is not None and (row.token, row.expires_at) not in tries:
                return busy
            token = int(row.token) + 1
            end = connection.scalar(
                _TAKE,
                key=key,
                holder=holder,
                token=token,
                ttl_ms=round(ttl_s * 1000),
                host=process.host,
                pid=process.pid,
                pid_start=process.pid_start,
                boot_id=process.boot_id,
            )
            tries.add((token, end))
        return Lease(key, holder, token, ttl_s)


def _read(connection: Connection, key: str, *, lock: str = "") -> Row | None:
    query = f"SELECT {_LEASE_COLUMNS}, :now AS server_now FROM state_lease WHERE lease_key = :key"
    return connection.first(query + lock, key=key)


def _live_holder(row: Row) -> LeaseInfo | None:
    if not is_live(row):
        return None
    left_s = (row.expires_at - row.server_now) / 1000
    return LeaseInfo(row.lease_key, row.holder, row.token, left_s, row.host, row.pid)


def is_live(row: Row) -> bool:
    """Whether a row of ``state_lease`` with ``server_now`` is held, by what may be alive, and in time."""
    if row.holder is None or row.expires_at <= row.server_now:
        return False
    return not ProcessIdentity(row.host, row.boot_id, row.pid, row.pid_start).is_dead()


def _still_busy(info: LeaseInfo, wait_s: float) -> BusyError:
    waited = f" and did not finish within {wait_s:g} s" if wait_s > 0 else ""
    return BusyError(
        f"'{info.key}' is held by {info.holder} (process {info.pid} on {info.host}){waited}",
        code="RIVET_STATE_LOCK_TIMEOUT" if wait_s > 0 else "RIVET_STATE_RUN_IN_PROGRESS",
    )


class LeaseKeeper:
    """Renews a lease, and the claims under it, from a thread for as long as the block lasts.

    An outage of the state is survived until the lease's time has passed; from then on, and as soon
    as another took over, ``lost`` is set and ``check`` raises.
    """

    def __init__(
        self,
        store: LeaseStore,
        lease: Lease,
        *,
        interval_s: float | None = None,
        claim_ttl_s: float = DEFAULT_CLAIM_TTL_S,
    ) -> None:
        self.lease = lease
        self.claim_ttl_s = claim_ttl_s
        self.lost = threading.Event()
        #: told once when that happens, on whatever thread found it out
        self.on_loss: Callable[[RivetError], None] | None = None
        self._store = store
        self._interval_s = interval_s if interval_s is not None else lease.ttl_s / 3
        self._claims: set[tuple[str, int, int]] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._reason: RivetError | None = None
        self._renewed_at = time.monotonic()  # the lease was acquired a moment ago
        #: how whoever works under the lease waits for the state: as long as it lives, or the block lasts
        self.patience = Patience(lease.ttl_s, self.check, self._stop.wait)
        self._thread = threading.Thread(target=self._beat, name=f"lease {lease.key}", daemon=True)

    def __enter__(self) -> LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)  # it may be waiting for a server that does not answer

    def release(self) -> None:
        """Give the lease back, after the block; one that is lost, or cannot be given back, runs out."""
        if not self.lost.is_set():
            with contextlib.suppress(RivetError):
                self._store.release(self.lease)

    def check(self) -> None:
        """Raise BusyError (RIVET_STATE_LEASE_LOST) when the lease is not ours any more."""
        # this process may have been stopped for longer than its time, and its thread not yet awake
        if not self.lost.is_set() and self._overdue():
            self._renew()
        if self.lost.is_set():
            raise lease_lost(self.lease) from self._reason

    def verify(self) -> None:
        """``check``, and ask the state: the answer holds whatever the clocks say."""
        self.patience.ask(lambda: self._store.confirm(self.lease))

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

    def _touch(self) -> None:
        self._store.renew(self.lease)

    def _renew(self) -> None:
        started = time.monotonic()
        try:
            self._touch()
            self._renewed_at = started
            with self._lock:
                claims = tuple(self._claims)
            extend_claims(self._store._db, claims, self.claim_ttl_s)
        except RivetError as error:
            # whatever the trouble is, it may pass, until the time that we were given has
            if self._overdue() or error.code == "RIVET_STATE_LEASE_LOST":
                self._lose(error)

    def _lose(self, reason: RivetError) -> None:
        with self._lock:
            if self.lost.is_set():
                return
            self._reason = reason
            self.lost.set()
            tell = self.on_loss
        if tell is not None:
            tell(lease_lost(self.lease))


class GuestKeeper(LeaseKeeper):
    """Keeps claims alive under a lease that another process holds and renews."""

    def _touch(self) -> None:
        self._store.confirm(self.lease)


def extend_claims(database: Database, claims: tuple[tuple[str, int, int], ...], ttl_s: float) -> None:
    """Give claims (run id, unit index, token) that still stand ``ttl_s`` seconds from now."""
    if not claims:
        return
    rows = [{"run": run, "index": index, "claim": claim} for run, index, claim in claims]
    ttl_ms = round(ttl_s * 1000)
    with database.transaction() as connection:
        connection.execute_many(_EXTEND_CLAIM, [{**row, "ttl_ms": ttl_ms} for row in rows])
