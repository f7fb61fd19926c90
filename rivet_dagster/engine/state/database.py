"""Connections and transactions; the only module that knows how the two backends differ in them."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rivet_dagster.engine.errors import EnvironmentFault
from rivet_dagster.engine.state.connection import Connection, Parameters, for_psycopg, host_ms
from rivet_dagster.engine.state.location import StateLocation
from rivet_dagster.engine.state.pool import Pool, PoolExhaustedError
from rivet_dagster.engine.state.translate import translate

BUSY_TIMEOUT_S: Final = 10

#: A stalled process must not hold rows for longer than its lease lives, and nobody waits for ever.
#: Statistics of a table of units are never right: a run begins with thousands of rows that they do
#: not know. Without sorting, a claim reads the first entry of its index instead of all of them.
_PG_SESSION: Final = (
    "SELECT set_config('idle_in_transaction_session_timeout', '15s', false),"
    " set_config('lock_timeout', '10s', false),"
    " set_config('enable_sort', 'off', false),"
    " set_config('enable_bitmapscan', 'off', false),"
    " set_config('application_name', 'rivet_dagster state', false)"
)
#: A peer that says nothing is given up after this time at the most, however long a lease lives.
_SILENCE_S: Final = 30.0


def libpq_bounds(lease_s: float) -> dict[str, int]:
    """For libpq: a network that swallows packets is noticed within the time of a lease, or 30 s.

    What was sent and is not acknowledged fails after that time, and so does a wait for an answer, which
    keepalives probe. A new connection has a third of it for each address of the server, 2 s at least.
    """
    silence_s = min(lease_s, _SILENCE_S)
    return {
        "connect_timeout": max(2, round(silence_s / 3)),
        "keepalives_idle": max(1, round(silence_s / 3)),
        "keepalives_interval": max(1, round(silence_s / 6)),
        "keepalives_count": 3,
        "tcp_user_timeout": round(silence_s * 1000),
    }


class Database:
    """A pool of connections to one state. Threads share it; a forked child opens its own.

    lease_s: how long a lease lives, after which nobody needs an answer any more.
    """

    def __init__(self, location: StateLocation, *, lease_s: float = _SILENCE_S) -> None:
        self.location = location
        self.backend = location.backend
        self.dialect: _Sqlite | _Postgres
        if location.backend == "sqlite":
            self.dialect = _Sqlite(location)
        else:
            self.dialect = _Postgres(location, lease_s)
        self._pool = Pool(self.dialect.connect, self.dialect.clean, max_age_s=self.dialect.max_age_s)

    def close(self) -> None:
        self._pool.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A write transaction, committed at the end of the block. SQLite: the write lock is taken at once."""
        with self._lent() as connection:
            connection.execute(self.dialect.begin)
            yield connection
            connection.execute("COMMIT")

    @contextlib.contextmanager
    def single(self) -> Iterator[Connection]:
        """For one statement that is atomic by itself, or reads: no BEGIN and COMMIT around it."""
        with self._lent() as connection:
            yield connection

    @contextlib.contextmanager
    def _lent(self) -> Iterator[Connection]:
        """A connection; what the block leaves open is rolled back. Driver errors come as RivetError."""
        raw = None
        try:
            with self._pool.lend() as raw:
                yield Connection(raw, self.dialect)
        except (self.dialect.errors, PoolExhaustedError) as error:
            lost = raw is not None and self.dialect.lost(raw)
            raise translate(error, self.location.display, lost=lost) from error


def to_datetime(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def to_ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


class _Sqlite:
    errors = sqlite3.Error
    begin = "BEGIN IMMEDIATE"
    for_update = ""  # the write lock is one for all
    skip_locked = ""
    key_share = ""
    existing_tables = (
        "SELECT name FROM sqlite_master"
        " WHERE type = 'table' AND name IN (SELECT value FROM json_each(:names))"
    )
    max_age_s = None

    def __init__(self, location: StateLocation) -> None:
        assert location.path is not None
        self._path = location.path
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentFault(
                f"state {location.display}: its directory cannot be made ({type(error).__name__})",
                code="RIVET_STATE_NOT_WRITABLE",
            ) from error

    def connect(self) -> sqlite3.Connection:
        # transactions begin where we say, not where the module guesses
        raw = sqlite3.connect(
            self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            raw.execute("PRAGMA foreign_keys = ON")
            raw.execute("PRAGMA synchronous = FULL")  # a commit outlives a power cut: files follow it
            _switch_to_wal(raw.cursor())
        except BaseException:
            raw.close()
            raise
        return raw

    def clean(self, raw: sqlite3.Connection) -> bool:
        with contextlib.suppress(sqlite3.Error):
            raw.rollback()
            return True
        return False

    def lost(self, _raw: sqlite3.Connection) -> bool:
        return False

    def among(self, column: str, name: str, kind: str = "bigint") -> str:
        return f"{column} IN (SELECT value FROM json_each(:{name}))"

    def array(self, values: Collection[Any]) -> str:
        return json.dumps(list(values))

    def run(self, raw: sqlite3.Connection, sql: str, parameters: Parameters) -> sqlite3.Cursor:
        return raw.execute(sql, {"now": host_ms(), **parameters})

    def run_many(self, raw: sqlite3.Connection, sql: str, parameters: Sequence[Parameters]) -> None:
        now = host_ms()
        raw.executemany(sql, ({"now": now, **each} for each in parameters))


def _switch_to_wal(cursor: sqlite3.Cursor) -> None:
    """Lasting, so later connections find it done. Of many at once, some are refused without a wait."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                cursor.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


class _Postgres:
    begin = "BEGIN"
    for_update = " FOR UPDATE"
    skip_locked = " SKIP LOCKED"
    key_share = " FOR KEY SHARE"
    # not to_regclass(): while a session waits for another's migration, it keeps what it knew of names
    existing_tables = (
        "SELECT relname AS name FROM pg_class"
        " WHERE relname = ANY(:names::text[]) AND pg_table_is_visible(oid)"
    )
    max_age_s = 300.0  # firewalls forget idle connections

    def __init__(self, location: StateLocation, lease_s: float) -> None:
        import psycopg

        from rivet_dagster.engine.state.listening import LEAST_S, ListeningConnection

        self.errors = psycopg.Error
        self._connect = ListeningConnection.connect
        self._silence_s = max(LEAST_S, min(lease_s, _SILENCE_S))
        self._idle = psycopg.pq.TransactionStatus.IDLE
        self._settings: dict[str, Any] = {**libpq_bounds(lease_s), **location.server}

    def connect(self) -> Any:
        # without prepared statements: a pooler between us and the server may not keep them
        raw = self._connect(**self._settings, autocommit=True, prepare_threshold=None)
        raw.silence_s = self._silence_s
        try:
            raw.execute(_PG_SESSION)
        except BaseException:
            raw.close()
            raise
        return raw

    def clean(self, raw: Any) -> bool:
        raw.silence_s = self._silence_s  # a migration has more
        if raw.pgconn.transaction_status == self._idle:
            return True
        with contextlib.suppress(self.errors):
            raw.rollback()
        return bool(raw.pgconn.transaction_status == self._idle)

    def lost(self, raw: Any) -> bool:
        return bool(raw.closed)

    def among(self, column: str, name: str, kind: str = "bigint") -> str:
        return f"{column} = ANY(:{name}::{kind}[])"

    def array(self, values: Collection[Any]) -> list[Any]:
        return list(values)

    def run(self, raw: Any, sql: str, parameters: Parameters) -> Any:
        return raw.execute(for_psycopg(sql), parameters)

    def run_many(self, raw: Any, sql: str, parameters: Sequence[Parameters]) -> None:
        with raw.cursor() as cursor:
            cursor.executemany(for_psycopg(sql), parameters)
