"""Connections to PostgreSQL: pinned session settings, transactions, exported snapshots.

Settings are pinned with SET LOCAL inside each transaction only, so they survive a transaction
pooler and leak to nobody (rivet-facts 1.2).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import pq

from rivet_dagster.engine.errors import TransientError
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


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Milliseconds; 0 means no limit of ours."""

    statement_timeout_ms: int = 0
    lock_timeout_ms: int = 0
    idle_timeout_ms: int = 0


def _settings(limits: SessionLimits, *, search_path: bool) -> dict[str, str]:
    settings = {k: v for k, v in PINNED.items() if search_path or k != "search_path"}
    settings["statement_timeout"] = str(limits.statement_timeout_ms)
    settings["lock_timeout"] = str(limits.lock_timeout_ms)
    settings["idle_in_transaction_session_timeout"] = str(limits.idle_timeout_ms)
    return settings


class PostgresConnector:
    """Opens connections for one source. ``kwargs`` go to libpq and may hold the password."""

    def __init__(self, kwargs: dict[str, Any], limits: SessionLimits) -> None:
        self._kwargs = kwargs
        self.limits = limits

    def __repr__(self) -> str:
        return f"PostgresConnector({self._kwargs.get('host')}:{self._kwargs.get('port')})"

    def connect(self) -> psycopg.Connection[Any]:
        """A new connection in autocommit mode. Raises the engine's errors."""
        try:
            connection = psycopg.connect(
                **{"connect_timeout": 15, **self._kwargs}, autocommit=True, prepare_threshold=None
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
        search_path: bool = True,
    ) -> Iterator[None]:
        """A read-only REPEATABLE READ transaction with every setting pinned, in one round trip."""
        begin = ["BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"]
        if snapshot:
            begin.append(f"SET TRANSACTION SNAPSHOT {quote_literal(snapshot)}")
        settings = _settings(limits or self.limits, search_path=search_path)
        begin.extend(f"SET LOCAL {name} = {quote_literal(value)}" for name, value in settings.items())
        try:
            connection.execute("; ".join(begin))
        except psycopg.Error as error:
            close(connection)
            raise classify(error, phase="snapshot" if snapshot else "read") from error
        try:
            yield
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
        self._lock = threading.Lock()
        # planning resolves unqualified names, so the role's own search_path stays
        self._transaction = connector.transaction(self._connection, search_path=False)
        self._transaction.__enter__()
        try:
            row = self._connection.execute("SELECT pg_export_snapshot()").fetchone()
        except psycopg.Error as error:
            self.close()
            raise classify(error) from error
        assert row is not None
        self.snapshot = str(row[0])

    def check(self) -> None:
        """Raise TransientError RIVET_SOURCE_SNAPSHOT_LOST when the holder is gone."""
        try:
            with self._lock:
                self._connection.execute("SELECT 1")
        except psycopg.Error as error:
            raise TransientError(
                "the transaction that holds the run's snapshot has ended", code="RIVET_SOURCE_SNAPSHOT_LOST"
            ) from error

    @property
    def connection(self) -> psycopg.Connection[Any]:
        return self._connection

    def close(self) -> None:
        close(self._connection)
