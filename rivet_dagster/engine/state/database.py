"""Connections and transactions; the only module that knows how the two backends differ in them."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Table,
    Text,
    any_,
    bindparam,
    create_engine,
    event,
    func,
    literal_column,
    select,
)
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.types import BigInteger

from rivet_dagster.engine.errors import EnvironmentFault
from rivet_dagster.engine.state.location import StateLocation
from rivet_dagster.engine.state.translate import translated

BUSY_TIMEOUT_S: Final = 10
_POOL: Final = {"pool_size": 4, "max_overflow": 12, "pool_timeout": 10}
_NO_BEGIN: Final = "rivet_no_begin"

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
#: libpq: notice a dead server, or a cut network, in about half a minute
_PG_CONNECT: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


class Database:
    """A pool of connections to one state. Threads share it; a forked child must open its own."""

    def __init__(self, location: StateLocation) -> None:
        self.location = location
        self.backend: Literal["sqlite", "postgresql"] = location.backend
        if location.backend == "sqlite":
            self._engine = _sqlite_engine(location)
            self._single = self._engine.execution_options(**{_NO_BEGIN: True})
        else:
            self._engine = _postgres_engine(location)
            self._single = self._engine.execution_options(isolation_level="AUTOCOMMIT")

    def close(self) -> None:
        self._engine.dispose()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A write transaction, committed at the end of the block. SQLite: the write lock is taken at once."""
        with translated(self.location.display), self._engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def single(self) -> Iterator[Connection]:
        """For one statement that is atomic by itself, or reads: no BEGIN and COMMIT around it."""
        with translated(self.location.display), self._single.connect() as connection:
            yield connection

    def now(self) -> ColumnElement[int]:
        """Milliseconds since 1970 in a statement: the server's clock, or a parameter ``now``."""
        if self.backend == "postgresql":
            return literal_column("(extract(epoch FROM clock_timestamp()) * 1000)::bigint", BigInteger)
        return bindparam("now", type_=BigInteger)

    def clock(self) -> dict[str, int]:
        """The parameters that ``now()`` needs in a statement: none where the server has the clock."""
        return {} if self.backend == "postgresql" else {"now": host_ms()}

    def insert(self, table: Table) -> Any:
        """An INSERT that knows ON CONFLICT (both backends spell it alike)."""
        if self.backend == "postgresql":
            from sqlalchemy.dialects.postgresql import insert as postgres_insert

            return postgres_insert(table)
        from sqlalchemy.dialects.sqlite import insert as sqlite_insert

        return sqlite_insert(table)

    def among(self, column: ColumnElement[int], name: str) -> ColumnElement[bool]:
        """``column`` is one of parameter ``name`` (from ``integers``): one text for any number of them."""
        if self.backend == "postgresql":
            return column == any_(bindparam(name, type_=ARRAY(BigInteger)))
        elements = func.json_each(bindparam(name, type_=Text)).table_valued("value")
        return column.in_(select(elements.c.value))

    def integers(self, values: Collection[int]) -> Any:
        """The value of a parameter of ``among``."""
        return list(values) if self.backend == "postgresql" else json.dumps(list(values))


def host_ms() -> int:
    return time.time_ns() // 1_000_000


def to_datetime(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def to_ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _sqlite_engine(location: StateLocation) -> Engine:
    assert location.path is not None
    try:
        location.path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(
            f"state {location.display}: its directory cannot be made ({type(error).__name__})",
            code="RIVET_STATE_NOT_WRITABLE",
        ) from error
    engine = create_engine(
        URL.create("sqlite", database=str(location.path)),
        connect_args={"timeout": BUSY_TIMEOUT_S},
        hide_parameters=True,
        **cast(Any, _POOL),
    )
    event.listen(engine, "connect", _on_sqlite_connect)
    event.listen(engine, "begin", _on_sqlite_begin)
    return engine


def _on_sqlite_connect(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where we say, not where the module guesses
    cursor = connection.cursor()
    try:
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA synchronous = FULL")  # a commit outlives a power cut: files follow it
        _switch_to_wal(cursor)
    finally:
        cursor.close()


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


def _on_sqlite_begin(connection: Connection) -> None:
    if not connection.get_execution_options().get(_NO_BEGIN):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _postgres_engine(location: StateLocation) -> Engine:
    assert location.url is not None
    given = location.url.query
    connect_args: dict[str, Any] = {k: v for k, v in _PG_CONNECT.items() if k not in given}
    connect_args["prepare_threshold"] = None  # a pooler between us and the server may not keep them
    engine = create_engine(
        location.url,
        connect_args=connect_args,
        hide_parameters=True,
        pool_recycle=300,  # firewalls forget idle connections
        **cast(Any, _POOL),
    )
    event.listen(engine, "connect", _on_postgres_connect)
    return engine


def _on_postgres_connect(connection: Any, _record: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_PG_SESSION)
    connection.commit()
