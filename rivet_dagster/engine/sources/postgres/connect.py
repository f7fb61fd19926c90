"""Connections to PostgreSQL: pinned session settings, transactions, exported snapshots.

Settings are pinned with SET LOCAL inside each transaction only, so they survive a transaction
pooler and leak to nobody (rivet-facts 1.2).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, LiteralString

import psycopg
from msgspec import Struct
from psycopg import pq

from rivet_dagster.engine.errors import RivetError
from rivet_dagster.engine.sources.postgres.quote import quote_literal
from rivet_dagster.engine.sources.postgres.sqlstate import classify

#: Session settings that the text forms rely on; the reader pins them with SET LOCAL.
TEXT_SETTINGS: Final[Mapping[str, str]] = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "quote_all_identifiers": "off",
}

#: Everything that changes how a value is rendered, and what could hide rows.
PINNED: dict[str, str] = {
    **TEXT_SETTINGS,
    "xmloption": "content",
    "row_security": "off",  # a policy that would hide rows becomes an error instead
    "search_path": "pg_catalog",  # the text of a qualified type never depends on the role
}

#: libpq: a network that swallows packets is noticed within a minute, also by who only waits for rows.
BOUNDS: dict[str, int] = {
    "connect_timeout": 15,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}

#: How long a transaction of ours may be left alone. Whatever is alive asks something long before.
IDLE_TIMEOUT_MS = 600_000
_LOOKS = 4  # signs of life of a snapshot's holder in that time
_SPARE_S = 5.0  # how long a connection opened ahead is taken for a living one
#: libpq reads what fits its buffer, 16 KiB at first, and keeps it as large as it ever had to be: a row of
#: 128 KiB makes an eighth of the calls to the kernel for all that follow, 3 % of a run's CPU.
_WIDEN: Final = "SELECT pg_catalog.repeat(' ', 130900)"
_TRANSACTION_TIMEOUT = 170_000  # the first version that has the setting


#: A statement and its parameters.
Question = tuple[LiteralString, Mapping[str, Any]]


class SessionLimits(Struct, frozen=True):
    """Milliseconds; 0 means no limit of ours.

    idle_timeout_ms: how long the server waits for us within a transaction, for a statement or for rows
    to be taken. A process that was stopped would keep its snapshot, and what vacuum could free, for ever.
    """

    statement_timeout_ms: int = 0
    lock_timeout_ms: int = 0
    idle_timeout_ms: int = IDLE_TIMEOUT_MS


def _settings(limits: SessionLimits, search_path: str | None) -> dict[str, str]:
    settings = dict(PINNED)
    if search_path is None:
        del settings["search_path"]
    else:
        settings["search_path"] = search_path
    settings["statement_timeout"] = str(limits.statement_timeout_ms)
    settings["lock_timeout"] = str(limits.lock_timeout_ms)
    settings["idle_in_transaction_session_timeout"] = str(limits.idle_timeout_ms)
    # a server that waits for its client to take rows is not idle, and does not see its own timeouts
    settings["tcp_user_timeout"] = str(limits.idle_timeout_ms)
    return settings


class PostgresConnector:
    """Opens connections for one source. ``kwargs`` go to libpq and may hold the password."""

    def __init__(self, kwargs: dict[str, Any], limits: SessionLimits) -> None:
        self._kwargs = kwargs
        self.limits = limits
        self._spares: deque[tuple[float, psycopg.Connection[Any]]] = deque()
        self._coming = 0  # connections that a thread has been asked to open
        self._refused: tuple[float, RivetError] | None = None
        self._changed = threading.Condition()
        self._closed = False

    def __repr__(self) -> str:
        return f"PostgresConnector({self._kwargs.get('host')}:{self._kwargs.get('port')})"

    def connect(self) -> psycopg.Connection[Any]:
        """A connection in autocommit mode: opened ahead, being opened, or now. Raises the engine's errors."""
        with self._changed:
            self._changed.wait_for(lambda: self._spares or not self._coming)
            opened, connection = self._spares.popleft() if self._spares else (0.0, None)
            refused, self._refused = self._refused, None
        if connection is not None:
            if time.monotonic() - opened < _SPARE_S:
                return connection
            close(connection)
        elif refused is not None and time.monotonic() - refused[0] < _SPARE_S:
            raise refused[1]
        return self._open()

    def prepare(
        self, count: int, meanwhile: Callable[[], None] | None = None, *, warm: Question | None = None
    ) -> threading.Thread:
        """In a thread: have ``count`` connections ready for those who connect next, then do ``meanwhile``.

        What fails here is told to who connects next. ``warm`` is asked on the first of them, for nothing
        but what the server then has in its caches: a new session's first look into the catalog takes 15 ms.
        """
        missing = self._announce(count)

        def work() -> None:
            self._open_announced(missing, warm)
            if meanwhile is not None:
                meanwhile()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def _announce(self, count: int) -> int:
        with self._changed:
            missing = max(0, count - len(self._spares) - self._coming)
            self._coming += missing
        return missing

    def _open_announced(self, count: int, warm: Question | None) -> None:
        try:
            while count:
                connection = self._open()
                if warm is not None:
                    self._ask_in_vain(connection, warm)
                warm, count = None, count - 1
                with self._changed:
                    self._coming -= 1
                    kept = not self._closed and not connection.closed
                    if kept:
                        self._spares.append((time.monotonic(), connection))
                    self._changed.notify_all()
                if not kept:
                    close(connection)
        except RivetError as error:
            self._refused = time.monotonic(), error
        finally:
            with self._changed:
                self._coming -= count  # nobody waits for what will not come
                self._changed.notify_all()

    def _ask_in_vain(self, connection: psycopg.Connection[Any], question: Question) -> None:
        asking = self.transaction(connection, search_path=None)
        with contextlib.suppress(psycopg.Error, RivetError), asking:
            connection.execute(*question)

    def close(self) -> None:
        """Close what was opened ahead and not taken."""
        with self._changed:
            self._closed = True
            spares, self._spares = self._spares, deque()
        for _, connection in spares:
            close(connection)

    def _open(self) -> psycopg.Connection[Any]:
        try:
            connection = psycopg.connect(
                **{**BOUNDS, **self._kwargs}, autocommit=True, prepare_threshold=None
            )
        except psycopg.Error as error:
            raise classify(error) from error
        return connection

    @contextlib.contextmanager
    def transaction(
        self,
        connection: psycopg.Connection[Any],
        *,
        snapshot: str | None = None,
        limits: SessionLimits | None = None,
        search_path: str | None = PINNED["search_path"],
        widen: bool = False,
    ) -> Iterator[int]:
        """A read-only REPEATABLE READ transaction with every setting pinned, in one round trip.

        Yields the id of the server's process, which a pooler chooses anew for each transaction.
        search_path: None leaves the role's own. widen: the first of a connection that reads much.
        """
        begin = ["BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"]
        if snapshot:
            begin.append(f"SET TRANSACTION SNAPSHOT {quote_literal(snapshot)}")
        settings = _settings(limits or self.limits, search_path)
        if connection.info.server_version >= _TRANSACTION_TIMEOUT:
            settings["transaction_timeout"] = "0"  # a run's snapshot lasts as long as the run
        begin.extend(
            f"SET LOCAL {name} = {value if name == 'search_path' else quote_literal(value)}"
            for name, value in settings.items()
        )
        if widen:
            begin.append(_WIDEN)
        begin.append("SELECT pg_catalog.pg_backend_pid()")
        try:
            cursor = connection.execute("; ".join(begin))
            while cursor.nextset():
                pass
            row = cursor.fetchone()
        except psycopg.Error as error:
            close(connection)
            raise classify(error, phase="snapshot" if snapshot else "read") from error
        assert row is not None
        try:
            yield int(row[0])
        except BaseException:
            close_transaction(connection)
            raise
        try:
            connection.execute("COMMIT")
        except psycopg.Error as error:
            raise classify(error) from error


def close_transaction(connection: psycopg.Connection[Any]) -> None:
    """Roll back if the connection still can; otherwise close it."""
    if connection.closed or connection.pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
        # a COPY is still streaming: the cheapest way out that never blocks is to drop the connection
        close(connection)
        return
    try:
        connection.execute("ROLLBACK")
    except psycopg.Error:
        close(connection)


def close(connection: psycopg.Connection[Any]) -> None:
    with contextlib.suppress(psycopg.Error):
        connection.close()


class SnapshotHolder:
    """Owns the transaction whose snapshot every unit of a run reads from.

    It lives in the process that runs the export and on a connection of its own; when it dies, the
    snapshot's page ranges mean nothing any more and the run has to be planned afresh.
    """

    def __init__(self, connector: PostgresConnector) -> None:
        self._connection = connector.connect()
        #: held by whoever asks something on ``connection``
        self.turn = threading.RLock()
        self._over = threading.Event()
        self._connector = connector
        self._begin()
        every_s = connector.limits.idle_timeout_ms / 1000 / _LOOKS
        self._thread = threading.Thread(
            target=self._keep, args=(every_s,), name="rivet-snapshot", daemon=True
        )
        if every_s:
            self._thread.start()

    def _begin(self) -> None:
        # planning resolves unqualified names, so the role's own search_path stays
        self._transaction = self._connector.transaction(self._connection, search_path=None)
        self._transaction.__enter__()
        try:
            row = self._connection.execute("SELECT pg_export_snapshot()").fetchone()
        except psycopg.Error as error:
            self.close()
            raise classify(error) from error
        assert row is not None
        self.snapshot = str(row[0])

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Without the snapshot, and with another one afterwards. Only before somebody reads from it."""
        with self.turn:
            self._transaction.__exit__(None, None, None)
            yield
            self._begin()

    def _keep(self, every_s: float) -> None:
        """Show the server that we are alive. When the transaction is gone, the next reader finds out."""
        while not self._over.wait(every_s):
            with self.turn:
                if self._over.is_set() or self._connection.closed:
                    return
                with contextlib.suppress(psycopg.Error):
                    self._connection.execute("SELECT")

    @property
    def connection(self) -> psycopg.Connection[Any]:
        return self._connection

    def close(self) -> None:
        self._over.set()
        close(self._connection)
