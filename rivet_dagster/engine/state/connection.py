"""Statements in plain SQL over the two drivers: ``:name`` parameters, rows with attributes.

``:now`` is the time in milliseconds since 1970, and nobody passes it: the server's clock on
PostgreSQL, this host's on SQLite.
"""

from __future__ import annotations

import functools
import re
import time
from collections import namedtuple
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

#: A row: its columns are attributes.
Row = Any
Parameters = Mapping[str, Any]

_SERVER_CLOCK: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
#: literals and quoted names, casts, parameters, percent signs
_TOKEN: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|::|:(?P<name>[A-Za-z_]\w*)|%""")


class Dialect(Protocol):
    """Where the statements of the two backends differ."""

    for_update: str
    skip_locked: str
    #: keeps a row's key from being taken over, and lets others do the same
    key_share: str
    #: which of parameter ``names`` are tables, column ``name``
    existing_tables: str

    def among(self, column: str, name: str, kind: str = "bigint") -> str:
        """The condition that ``column`` is one of parameter ``name``, which ``array`` made."""
        ...

    def array(self, values: Collection[Any]) -> Any: ...

    def run(self, raw: Any, sql: str, parameters: Parameters) -> Any:
        """A DB-API cursor after the statement."""
        ...

    def run_many(self, raw: Any, sql: str, parameters: Sequence[Parameters]) -> None: ...


class Connection:
    """A connection of the pool, for the time of a block. Not for two threads at once."""

    def __init__(self, raw: Any, dialect: Dialect) -> None:
        self.raw = raw
        self.dialect = dialect

    def rows(self, sql: str, **parameters: Any) -> list[Row]:
        cursor = self.dialect.run(self.raw, sql, parameters)
        make = _row_type(tuple(column[0] for column in cursor.description))._make
        return [make(values) for values in cursor.fetchall()]

    def first(self, sql: str, **parameters: Any) -> Row | None:
        found = self.rows(sql, **parameters)
        return found[0] if found else None

    def scalar(self, sql: str, **parameters: Any) -> Any:
        """The first column of the first row, None without any."""
        found = self.dialect.run(self.raw, sql, parameters).fetchall()
        return found[0][0] if found else None

    def execute(self, sql: str, **parameters: Any) -> int:
        """How many rows it touched."""
        return int(self.dialect.run(self.raw, sql, parameters).rowcount)

    def execute_many(self, sql: str, parameters: Sequence[Parameters]) -> None:
        """The statement once for each of ``parameters``, of which there may be none."""
        if len(parameters) == 1:
            self.dialect.run(self.raw, sql, parameters[0])
        elif parameters:
            self.dialect.run_many(self.raw, sql, parameters)


def insertion(table: str, columns: Iterable[str], *stamps: str) -> str:
    """An INSERT of parameters that are named like their columns; ``stamps`` get the time."""
    return _insertion(table, tuple(columns), stamps)


def upsertion(table: str, key: Sequence[str], columns: Iterable[str], *stamps: str) -> str:
    """Like ``insertion``; of a row that is there under ``key`` the other columns are replaced."""
    names = tuple(columns)
    replaced = ", ".join(f"{name} = excluded.{name}" for name in (*names, *stamps) if name not in key)
    return f"{_insertion(table, names, stamps)} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {replaced}"


@functools.cache
def _insertion(table: str, columns: tuple[str, ...], stamps: tuple[str, ...]) -> str:
    values = [*(f":{name}" for name in columns), *(":now" for _ in stamps)]
    return f"INSERT INTO {table} ({', '.join((*columns, *stamps))}) VALUES ({', '.join(values)})"


@functools.cache
def for_psycopg(sql: str) -> str:
    """``sql`` with psycopg's placeholders, and the server's clock. Knows no E'' strings and no $$."""
    return _TOKEN.sub(_psycopg_token, sql)


def _psycopg_token(found: re.Match[str]) -> str:
    name = found["name"]
    if name is None:
        return found[0].replace("%", "%%")
    return _SERVER_CLOCK if name == "now" else f"%({name})s"


@functools.cache
def _row_type(names: tuple[str, ...]) -> Any:
    return namedtuple("Row", names, rename=True)


def host_ms() -> int:
    return time.time_ns() // 1_000_000
