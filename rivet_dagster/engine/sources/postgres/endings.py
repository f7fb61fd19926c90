"""Why a read ended before its time, and whether its unit can be read in another way at the next attempt."""

from __future__ import annotations

from typing import Final

import psycopg

from rivet_dagster.engine.errors import EnvironmentFault, RivetError, TransientError
from rivet_dagster.engine.plan.units import WorkUnit
from rivet_dagster.engine.sources.postgres.order import ReadOrder
from rivet_dagster.engine.sources.postgres.pieces import can_split

CANCELLED: Final = "57014"  # query_canceled
_RECOVERY: Final = "40001"  # of a read-only transaction: what a standby replays needed what it held
_TIMEOUT: Final = "RIVET_SOURCE_STATEMENT_TIMEOUT"
_SETTING: Final = "tuning.statement_timeout_s"


def is_lost(error: psycopg.Error | RivetError) -> bool:
    """The connection broke without a word of the server."""
    away = isinstance(error, psycopg.OperationalError) or (
        isinstance(error, RivetError) and error.code == "RIVET_SOURCE_UNAVAILABLE"
    )
    return away and error.sqlstate is None


def by_recovery(error: BaseException) -> bool:
    """A standby has cancelled the read for the sake of what it replays."""
    return getattr(error, "sqlstate", None) == _RECOVERY


def by_timeout(error: BaseException) -> bool:
    """A statement took too long: see ``late``."""
    return isinstance(error, TransientError) and error.code == _TIMEOUT


def session_ended(export: str) -> TransientError:
    """A standby ends the session of a transaction in its way that is between two statements; what it
    says meanwhile may be lost with the connection."""
    return TransientError(
        "the standby ended the session within a read",
        code="RIVET_SOURCE_CONFLICT",
        export=export,
        sqlstate=_RECOVERY,
    )


def yielded(export: str) -> TransientError:
    return TransientError(
        "the read gave way to a session that waits for a lock on the table",
        code="RIVET_SOURCE_YIELDED",
        export=export,
        counts=False,
    )


def cancelled(export: str) -> EnvironmentFault:
    """By a person or a tool at the server, or by the end of our own run."""
    return EnvironmentFault(
        "the statement was cancelled", code="RIVET_SOURCE_CANCELLED", export=export, sqlstate=CANCELLED
    )


def late(export: str, limit_ms: int) -> TransientError:
    """What less at a time may cure: see ``told``."""
    return TransientError(
        f"a statement took longer than {_SETTING} ({limit_ms / 1000:g} s)",
        code=_TIMEOUT,
        export=export,
        field=_SETTING,
        sqlstate=CANCELLED,
        counts=False,
    )


def too_late(error: RivetError, why: str, export: str) -> EnvironmentFault:
    """What another attempt would not cure."""
    return EnvironmentFault(
        f"{error.message}; {why}: raise it, or make the read cheaper (an index, a simpler query)",
        code=_TIMEOUT,
        export=export,
        field=_SETTING,
        sqlstate=CANCELLED,
    )


def told(
    order: ReadOrder, unit: WorkUnit, error: psycopg.Error | RivetError, *, in_pieces: bool, pages: int
) -> psycopg.Error | RivetError:
    """``error``, or that the unit is read with less at a time from now on, which ``order`` remembers.

    in_pieces: this attempt did so. pages: of the statement, 0 when it was not over pages.
    """
    splits = can_split(unit) and not in_pieces
    if isinstance(error, TransientError) and by_timeout(error):
        if pages > 1:
            order.too_many.append(pages)
            how = "fewer pages are read at a time now"
        elif splits:
            order.pieces.add(unit.index)
            how = "it is read in pieces now"
        else:
            return too_late(error, f"unit {unit.index} cannot be cut any further", order.export)
        code, state = _TIMEOUT, CANCELLED
        what = f"{error.message}; {how}"
    elif splits and order.snapshot is None and by_recovery(error):
        order.pieces.add(unit.index)
        code, state = "RIVET_SOURCE_CONFLICT", _RECOVERY
        what = "the standby's recovery cancelled the read; it is read in pieces now"
    else:
        return error
    return TransientError(
        f"unit {unit.index}: {what}", code=code, export=order.export, sqlstate=state, counts=False
    )
