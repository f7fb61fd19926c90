"""From psycopg's exceptions to the engine's errors: by SQLSTATE and exception type, never by text.

libpq hides the SQLSTATE of a connection that the server turned down. ``classify`` then connects once
more with libpq's protocol trace on and reads the code from the server's ErrorResponse, so a wrong
password is told apart from a server that is away whatever language the server speaks.
"""

from __future__ import annotations

import os
import re
import select
import time
from typing import Final, Literal

import psycopg
from msgspec import Struct
from psycopg import pq
from psycopg.conninfo import make_conninfo
from psycopg.pq.abc import PGconn

from rivet_dagster.engine.errors import (
    EnvironmentFault,
    InternalError,
    RefusalError,
    RivetError,
    TransientError,
    UsageError,
)

#: What was being done: reading rows, parsing a user's query, or joining an exported snapshot.
Phase = Literal["read", "describe", "snapshot"]

_PROBE_SECONDS: Final = 10.0
_STATEMENT_SHOWN: Final = 500


class Verdict(Struct, frozen=True):
    """error: class of the tree. code: of the registry. wait_s: beyond the backoff, before a retry."""

    error: type[RivetError]
    code: str
    wait_s: float = 0.0
    stops_run: bool = True


_AWAY: Final = Verdict(TransientError, "RIVET_SOURCE_UNAVAILABLE")
_SHORT_OF_ROOM: Final = Verdict(TransientError, "RIVET_SOURCE_UNAVAILABLE", 5)
_CONFLICT: Final = Verdict(TransientError, "RIVET_SOURCE_CONFLICT", 1)
_FAILED: Final = Verdict(EnvironmentFault, "RIVET_SOURCE_QUERY_FAILED")
_SNAPSHOT_LOST: Final = Verdict(TransientError, "RIVET_SOURCE_SNAPSHOT_LOST")
_NO_TABLE: Final = Verdict(RefusalError, "RIVET_SOURCE_TABLE_NOT_FOUND")
_NO_DATABASE: Final = Verdict(EnvironmentFault, "RIVET_SOURCE_DATABASE_NOT_FOUND")
_CHANGED: Final = Verdict(TransientError, "RIVET_SOURCE_SCHEMA_CHANGED")
_TIMEOUT: Final = Verdict(EnvironmentFault, "RIVET_SOURCE_STATEMENT_TIMEOUT")
_DENIED: Final = Verdict(EnvironmentFault, "RIVET_SOURCE_PERMISSION_DENIED")
_ROWS_HIDDEN: Final = Verdict(RefusalError, "RIVET_SOURCE_ROW_SECURITY")
_VALUE: Final = Verdict(RefusalError, "RIVET_SOURCE_VALUE_UNREPRESENTABLE", stops_run=False)
_NO_TLS: Final = Verdict(EnvironmentFault, "RIVET_SOURCE_TLS_FAILED")

#: SQLSTATE -> verdict. A code that is not here is judged by its class, the first two characters.
VERDICTS: Final[dict[str, Verdict]] = {
    "22021": _VALUE,  # character_not_in_repertoire
    "22P05": _VALUE,  # untranslatable_character: the text has no UTF-8 form
    "25P03": _AWAY,  # idle_in_transaction_session_timeout: the connection is gone
    "25P04": _TIMEOUT,  # transaction_timeout
    "3D000": _NO_DATABASE,
    "3F000": _NO_TABLE,  # invalid_schema_name
    "42501": _DENIED,
    "42703": _CHANGED,  # undefined_column: it was there when the plan was made
    "42704": _CHANGED,  # undefined_object: a type was dropped
    "42846": _CHANGED,  # cannot_coerce
    "42883": _CHANGED,  # undefined_function
    "42P01": _NO_TABLE,
    "53300": Verdict(TransientError, "RIVET_SOURCE_UNAVAILABLE", 15),  # too_many_connections
    "55006": _CONFLICT,  # object_in_use
    "55P03": Verdict(TransientError, "RIVET_SOURCE_CONFLICT"),  # lock_not_available: lock_timeout has waited
    "57014": _TIMEOUT,  # query_canceled: by statement_timeout or by a person; neither asks for a retry
    "57P01": Verdict(TransientError, "RIVET_SOURCE_UNAVAILABLE", 15),  # admin_shutdown
    "57P02": Verdict(TransientError, "RIVET_SOURCE_UNAVAILABLE", 15),  # crash_shutdown
    "57P03": Verdict(TransientError, "RIVET_SOURCE_UNAVAILABLE", 15),  # cannot_connect_now
    "57P04": _NO_DATABASE,  # database_dropped
    "57P05": _AWAY,  # idle_session_timeout
    "72000": _SNAPSHOT_LOST,  # snapshot_too_old
}

CLASS_VERDICTS: Final[dict[str, Verdict]] = {
    "08": _AWAY,
    "28": Verdict(EnvironmentFault, "RIVET_SOURCE_AUTH_FAILED"),
    "40": _CONFLICT,
    "53": _SHORT_OF_ROOM,
}

#: SET TRANSACTION SNAPSHOT of one that ended: unknown id (up to 15, from 16), owner gone.
_SNAPSHOT_CODES: Final = frozenset({"22023", "42704", "55000"})

#: A user's query that the server does not understand: the config is wrong.
_QUERY_CLASSES: Final = frozenset({"42", "22", "0A", "2B", "26"})


def classify(
    exc: psycopg.Error,
    *,
    export: str | None = None,
    phase: Phase = "read",
    statement: str | None = None,
    rows_hidden: bool = False,
) -> RivetError:
    """The engine's error for a psycopg exception.

    statement: SQL that failed, shown shortened. rows_hidden: the catalog says that row-level security
    applies to this role, so a denial (42501) comes from ``row_security = off``. May connect to the
    server once more, for at most 10 s, when the exception is a refused connection.
    """
    state = exc.sqlstate
    verdict = None
    if state is None and _refused_connection(exc):
        state, verdict = probe(exc.pgconn)
    verdict = verdict or _verdict(exc, state, phase, rows_hidden=rows_hidden)
    return verdict.error(
        _message(exc, state, statement),
        code=verdict.code,
        export=export,
        sqlstate=state,
        field="query" if verdict.error is UsageError else None,
        stops_run=verdict.stops_run,
        retry_after_s=verdict.wait_s,
    )


def _verdict(exc: psycopg.Error, state: str | None, phase: Phase, *, rows_hidden: bool) -> Verdict:
    if state is None:
        return _without_state(exc)
    if phase == "snapshot" and state in _SNAPSHOT_CODES:
        return _SNAPSHOT_LOST
    if state == "42501" and rows_hidden:
        return _ROWS_HIDDEN
    if phase == "describe" and state[:2] in _QUERY_CLASSES and state not in {"42501", "42P01"}:
        return Verdict(UsageError, "RIVET_CONFIG_INVALID")
    return VERDICTS.get(state) or CLASS_VERDICTS.get(state[:2], _FAILED)


def _without_state(exc: psycopg.Error) -> Verdict:
    """The client's own exceptions: only a lost or refused connection is nobody's mistake."""
    # libpq's own results hold no code and are plain DatabaseErrors: the connection broke
    if (
        isinstance(exc, (psycopg.OperationalError, psycopg.InterfaceError))
        or type(exc) is psycopg.DatabaseError
    ):
        return _AWAY
    return Verdict(InternalError, "RIVET_INTERNAL")


def _message(exc: psycopg.Error, state: str | None, statement: str | None) -> str:
    """SQLSTATE, the server's primary message, the statement."""
    primary = exc.diag.message_primary or " ".join(str(exc).split()) or type(exc).__name__
    text = f"{state}: {primary}" if state else primary
    if statement is None:
        return text
    shown = " ".join(statement.split())
    if len(shown) > _STATEMENT_SHOWN:
        shown = shown[:_STATEMENT_SHOWN] + " ..."
    return f"{text} -- in: {shown}"


def _refused_connection(exc: psycopg.Error) -> bool:
    """An attempt that reached libpq and failed there; a timeout of ours is no answer of a server."""
    return exc.pgconn is not None and not isinstance(exc, psycopg.errors.ConnectionTimeout)


_SERVER_ERROR: Final = re.compile(r'^B\t\d+\tErrorResponse\t S "[^"]*" V "[A-Z]+" C "([0-9A-Z]{5})"', re.M)
_TLS_ANSWER: Final = re.compile(r"^B\t\d+\tSSLResponse", re.M)
_STARTED: Final = re.compile(r"^F\t\d+\tStartupMessage", re.M)


def probe(failed: PGconn | None) -> tuple[str | None, Verdict | None]:
    """Connect again as the failed attempt did: (SQLSTATE of the refusal, verdict without one).

    Three ends without a SQLSTATE are told apart: the server asked for a password and there was none;
    the two sides could not agree on TLS (none at the server, or a certificate that the client does
    not accept); everything else, which the caller judges.
    """
    trace = _traced_attempt(failed)
    if failed is None or trace is None:
        return None, None
    if answers := _SERVER_ERROR.findall(trace):
        return answers[-1], None
    if _TLS_ANSWER.search(trace) and not _STARTED.search(trace):
        return None, _NO_TLS
    return None, CLASS_VERDICTS["28"] if failed.needs_password else None


def _traced_attempt(failed: PGconn | None) -> str | None:
    """The protocol trace of one connection attempt, kept in memory: it can hold a password."""
    if failed is None or not hasattr(os, "memfd_create"):  # libpq's trace needs a descriptor
        return None
    options = {o.keyword.decode(): o.val.decode() for o in failed.info if o.val is not None}
    descriptor = os.memfd_create("rivet-connect-trace")
    try:
        attempt = pq.PGconn.connect_start(make_conninfo(**options).encode())
        try:
            attempt.trace(descriptor)
            attempt.set_trace_flags(pq.Trace.SUPPRESS_TIMESTAMPS)
            _drive(attempt)
            attempt.untrace()  # flushes
        finally:
            attempt.finish()
        with os.fdopen(os.dup(descriptor), "rb") as file:
            file.seek(0)
            return file.read().decode(errors="replace")
    except (psycopg.Error, OSError):
        return None
    finally:
        os.close(descriptor)


def _drive(attempt: PGconn) -> None:
    """Poll the attempt to its end, for at most ``_PROBE_SECONDS``."""
    deadline = time.monotonic() + _PROBE_SECONDS
    state: int = pq.PollingStatus.WRITING
    while (left := deadline - time.monotonic()) > 0:
        if state not in (pq.PollingStatus.READING, pq.PollingStatus.WRITING):
            return
        socket = attempt.socket
        reads, writes = ([socket], []) if state == pq.PollingStatus.READING else ([], [socket])
        select.select(reads, writes, [], left)
        state = attempt.connect_poll()
