"""SQLAlchemy on a connection of ours: for migrations, and for whoever compares the schema.

Nothing else needs it: importing it costs more than the whole state work of a small run.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import create_engine
from sqlalchemy.engine import Connection as AlchemyConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from rivet_dagster.engine.state.connection import Connection

_SQLITE: Final[dict[str, Any]] = {"url": "sqlite://"}
_POSTGRES: Final[dict[str, Any]] = {"url": "postgresql+psycopg://", "use_native_hstore": False}


class _Lent:
    """A driver's connection that is not ended, nor its transaction, by whom it is lent to."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


@contextlib.contextmanager
def alchemy(connection: Connection) -> Iterator[AlchemyConnection]:
    """``connection``, in the transaction that it is in. Errors are the driver's own."""
    engine = create_engine(
        **(_SQLITE if isinstance(connection.raw, sqlite3.Connection) else _POSTGRES),
        creator=lambda: _Lent(connection.raw),
        poolclass=StaticPool,
        hide_parameters=True,
    )
    try:
        with engine.connect() as lent:
            yield lent
    except DBAPIError as error:
        raise (error.orig or error) from error
    finally:
        engine.dispose()
