"""Driver errors -> the error tree, by type, SQLite result code and SQLSTATE; never by their text."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Final

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from rivet_dagster.engine.errors import EnvironmentFault, InternalError, RivetError, TransientError

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


@contextlib.contextmanager
def translated(place: str) -> Iterator[None]:
    """Driver errors of the block as RivetError. ``place`` names the state, without secrets."""
    try:
        yield
    except SQLAlchemyError as error:
        raise translate(error, place) from error


def translate(error: Exception, place: str) -> RivetError:
    """The RivetError for an error of SQLAlchemy, sqlite3 or psycopg."""
    original: BaseException | None = error
    if isinstance(error, DBAPIError):
        original = error.orig
    if isinstance(original, sqlite3.Error):
        return _from_sqlite(original, place)
    if isinstance(error, PoolTimeout):
        return TransientError(f"state {place}: every connection is in use", code="RIVET_STATE_UNAVAILABLE")
    return _from_postgres(error, original, place)


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


def _from_postgres(error: Exception, original: BaseException | None, place: str) -> RivetError:
    import psycopg

    sqlstate = getattr(original, "sqlstate", None)
    what = type(original or error).__name__
    text = f"state {place}: {what}" + (f" {sqlstate}" if sqlstate else "")
    if sqlstate is not None and sqlstate.startswith(_PG_DENIED):
        return EnvironmentFault(text, code="RIVET_STATE_NOT_WRITABLE", sqlstate=sqlstate)
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    if sqlstate is None and isinstance(original, psycopg.OperationalError | psycopg.InterfaceError):
        lost = True  # no server answered: refused, timed out, cut off, or a start that it denied
    if lost or (sqlstate is not None and sqlstate.startswith(_PG_TRANSIENT)):
        return TransientError(text, code="RIVET_STATE_UNAVAILABLE", sqlstate=sqlstate)
    return InternalError(text, sqlstate=sqlstate)
