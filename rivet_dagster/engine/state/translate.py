"""Driver errors -> the error tree, by type, SQLite result code and SQLSTATE; never by their text."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Final

from rivet_dagster.engine.errors import EnvironmentFault, InternalError, RivetError, TransientError
from rivet_dagster.engine.state.pool import PoolExhaustedError

if TYPE_CHECKING:
    import psycopg

_SQLITE_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_INTERRUPT})
_SQLITE_DENIED: Final = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOLFS,
    }
)
_SQLITE_BROKEN: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

#: SQLSTATEs, or their two-character classes, that the next attempt may not meet again
_PG_TRANSIENT: Final = (
    "08",  # connection exceptions
    "40",  # serialization failure, deadlock
    "53200",  # out of memory
    "53300",  # too many connections
    "55P03",  # lock not available in time
    "55006",  # object in use
    "57014",  # query cancelled
    "57P",  # shutdown, crash, starting up, idle session ended
    "25P03",  # idle in transaction for too long
    "25P04",  # transaction for too long
    "58030",  # I/O error
)
_PG_DENIED: Final = (
    "25006",  # read-only transaction
    "28",  # authentication
    "3D000",  # no such database
    "3F000",  # no schema to create in
    "42501",  # no privilege
    "53100",  # disk full
)


def translate(error: Exception, place: str, *, lost: bool = False) -> RivetError:
    """The RivetError for one of sqlite3, psycopg or the pool.

    place: the state's name, without secrets. lost: the connection ended with the error.
    """
    if isinstance(error, PoolExhaustedError):
        return TransientError(f"state {place}: every connection is in use", code="RIVET_STATE_UNAVAILABLE")
    if isinstance(error, sqlite3.Error):
        return _from_sqlite(error, place)
    return _from_postgres(error, place, lost=lost)


def _from_sqlite(error: sqlite3.Error, place: str) -> RivetError:
    # absent on errors that the module raises by itself, such as the use of a closed connection
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if primary in _SQLITE_BUSY:
        return TransientError(f"state {place}: {name}", code="RIVET_STATE_UNAVAILABLE")
    if primary in _SQLITE_DENIED:
        return EnvironmentFault(f"state {place}: {name}", code="RIVET_STATE_NOT_WRITABLE")
    if primary in _SQLITE_BROKEN:
        return EnvironmentFault(f"state {place}: {name}", code="RIVET_STATE_CORRUPT")
    return InternalError(f"state {place}: {name}")


def _from_postgres(error: Exception, place: str, *, lost: bool) -> RivetError:
    import psycopg

    sqlstate, denied = getattr(error, "sqlstate", None), False
    if sqlstate is None and isinstance(error, psycopg.OperationalError):
        sqlstate, denied = _of_login(error)
    text = f"state {place}: {type(error).__name__}" + (f" {sqlstate}" if sqlstate else "")
    if denied or (sqlstate is not None and sqlstate.startswith(_PG_DENIED)):
        return EnvironmentFault(text, code="RIVET_STATE_NOT_WRITABLE", sqlstate=sqlstate)
    if sqlstate is None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        lost = True  # no server answered: refused, timed out, cut off, or a start that it denied
    if lost or (sqlstate is not None and sqlstate.startswith(_PG_TRANSIENT)):
        return TransientError(text, code="RIVET_STATE_UNAVAILABLE", sqlstate=sqlstate)
    return InternalError(text, sqlstate=sqlstate)


def _of_login(error: psycopg.OperationalError) -> tuple[str | None, bool]:
    """(SQLSTATE, denied without one) of a server that answered a connection; libpq keeps neither.

    Only where it came to a password: a server that is away is not asked a second time.
    """
    from rivet_dagster.engine.sources.postgres.sqlstate import probe

    failed = error.pgconn
    if failed is None or not (failed.used_password or failed.needs_password):
        return None, False
    sqlstate, verdict = probe(failed)
    return sqlstate, verdict is not None
