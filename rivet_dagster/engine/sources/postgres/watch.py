"""A look at the server beside the reads: who waits for them, and how busy the others are."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any, Final

import psycopg

from rivet_dagster.engine.errors import TransientError
from rivet_dagster.engine.sources.base import Sighting
from rivet_dagster.engine.sources.postgres import connect
from rivet_dagster.engine.sources.postgres.connect import PostgresConnector, SessionLimits

_LIMITS: Final = SessionLimits(statement_timeout_ms=5_000, lock_timeout_ms=1_000)

#: Relations of ours that somebody has, or waits for, an ACCESS EXCLUSIVE lock on (the one lock that a read
#: stands in the way of), and our processes there. One that waits behind the lock counts too: its snapshot
#: is older than what it will find. pg_locks shows the sessions of all roles, without any privilege.
_ALTERING: Final = """
SELECT ddl.relation::bigint, array_agg(DISTINCT ours.pid) FILTER (WHERE ours.pid IS NOT NULL)
FROM pg_catalog.pg_locks ddl
JOIN pg_catalog.pg_database d ON d.oid = ddl.database AND d.datname = pg_catalog.current_database()
LEFT JOIN pg_catalog.pg_locks ours ON ours.locktype = 'relation' AND ours.database = ddl.database
  AND ours.relation = ddl.relation AND ours.pid = ANY ('{backends}'::int[])
WHERE ddl.locktype = 'relation' AND ddl.mode = 'AccessExclusiveLock'
  AND (ours.pid IS NOT NULL OR ddl.relation::bigint = ANY ('{known}'::bigint[]))
GROUP BY 1"""

#: Sessions of others that compute, read, or wait for a lock, and the checkpoints that somebody's writes
#: have asked for. None of it grows with what we read: our own sessions go by their name, a session that
#: waits for its client or sleeps costs nothing, and reading writes nothing. Without pg_read_all_stats the
#: states of other roles are hidden; those that wait for a lock are still counted.
_LOAD: Final = """
SELECT (
  SELECT count(*) FROM pg_catalog.pg_stat_activity a
  WHERE a.backend_type IS DISTINCT FROM 'walsender' AND a.pid <> pg_catalog.pg_backend_pid()
    AND a.application_name IS DISTINCT FROM pg_catalog.current_setting('application_name')
    AND a.application_name IS DISTINCT FROM 'rivet_dagster state'
    AND (a.state = 'active' AND a.backend_type = 'client backend'
      AND coalesce(a.wait_event_type, '') NOT IN ('Client', 'Timeout', 'Activity', 'Extension')
      OR a.pid IN (SELECT l.pid FROM pg_catalog.pg_locks l WHERE NOT l.granted))
), (SELECT {checkpoints} FROM pg_catalog.{writer})"""

_CHECKPOINTER: Final = 170_000  # its counters have a view of their own from here on


class PostgresWatch:
    """See ``SourceWatch``. weighs: the load is asked for too."""

    def __init__(self, connector: PostgresConnector, *, weighs: bool) -> None:
        self._connector = connector
        self._weighs = weighs
        self._connection: psycopg.Connection[Any] | None = None
        self._known: set[int] = set()
        self._checkpoints: int | None = None

    def look(self, backends: Collection[int]) -> Sighting:
        try:
            return self._look(backends)
        except psycopg.Error as error:
            self.close()
            raise TransientError(f"the look at the server failed: {error.sqlstate}") from error

    def _look(self, backends: Collection[int]) -> Sighting:
        if self._connection is None or self._connection.closed:
            self._connection = self._connector.connect()
        connection, load = self._connection, None
        if not (backends or self._known or self._weighs):
            return Sighting(frozenset(), altering=False, load=None)
        with self._connector.transaction(connection, limits=_LIMITS):
            statement = _ALTERING.format(backends=_array(backends), known=_array(self._known))
            found = connection.execute(statement.encode()).fetchall()
            if self._weighs:
                load = self._load(connection)
        self._known = {relation for relation, _ in found}
        pids = frozenset(pid for _, ours in found for pid in ours or ())
        return Sighting(pids, altering=bool(found), load=load)

    def _load(self, connection: psycopg.Connection[Any]) -> int:
        modern = connection.info.server_version >= _CHECKPOINTER
        statement = _LOAD.format(
            checkpoints="num_requested" if modern else "checkpoints_req",
            writer="pg_stat_checkpointer" if modern else "pg_stat_bgwriter",
        )
        row = connection.execute(statement.encode()).fetchone()
        assert row is not None
        busy, checkpoints = int(row[0]), int(row[1])
        before, self._checkpoints = self._checkpoints, checkpoints
        return busy + (1 if before is not None and checkpoints > before else 0)

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                connect.close(self._connection)
            self._connection = None


def _array(numbers: Collection[int]) -> str:
    return "{" + ",".join(str(int(n)) for n in numbers) + "}"
