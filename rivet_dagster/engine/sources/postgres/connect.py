"""Connections to PostgreSQL: pinned session settings, transactions, exported snapshots.

Settings are pinned with SET LOCAL inside each transaction only, so they survive a transaction
pooler and leak to nobody (rivet-facts 1.2).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from msgspec import Struct
from psycopg import pq

from rivet_dagster.engine.errors import RivetError
from rivet_dagster.engine.sources.postgres.quote import quote_literal
from rivet_dagster.engine.sources.postgres.sqlstate import classify
from rivet_dagster.engine.sources.postgres.types import TEXT_SETTINGS

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
_WIDEN = b"SELECT pg_catalog.repeat(' ', 130900)"
_TRANSACTION_TIMEOUT = 170_000  # the first version that has the setting


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
        self._spares: list[tuple[float, psycopg.Connection[Any]]] = []
        self._lock = threading.Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"PostgresConnector({self._kwargs.get('host')}:{self._kwargs.get('port')})"

    def connect(self) -> psycopg.Connection[Any]:
        """A connection in autocommit mode, opened ahead or now. Raises the engine's errors."""
        with self._lock:
            opened, connection = self._spares.pop() if self._spares else (0.0, None)
        if connection is not None:
            if time.monotonic() - opened < _SPARE_S:
                return connection
            close(connection)
        return self._open()

    def open_ahead(self, count: int) -> None:
        """Open connections for the next calls of ``connect``. What fails here, those will say."""
        for _ in range(count):
            try:
                connection = self._open()
            except RivetError:
                return
            with self._lock:
                if not self._closed:
                    self._spares.append((time.monotonic(), connection))
                    continue
            close(connection)

    def prepare(self, count: int, meanwhile: Callable[[], None] | None) -> None:
        """In a thread of its own: ``open_ahead``, and then what is to be done ``meanwhile``."""

        def work() -> None:
            self.open_ahead(count)
            if meanwhile is not None:
                meanwhile()

        threading.Thread(target=work, daemon=True).start()

    def close(self) -> None:
        """Close what was opened ahead and not taken."""
        with self._lock:
            self._closed = True
            spares, self._spares = self._spares, []
        for _, connection in spares:
            close(connection)

    def _open(self) -> psycopg.Connection[Any]:
        try:
            connection = psycopg.connect(
                **{**BOUNDS, **self._kwargs}, autocommit=True, prepare_threshold=None
            )
            connection.pgconn.exec_(_WIDEN)
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
    ) -> Iterator[int]:
        """A read-only REPEATABLE READ transaction with every setting pinned, in one round trip.

        Yields the id of the server's process, which a pooler chooses anew for each transaction.
        search_path: None leaves the role's own.
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
