"""What a database has to export: every table that the catalog lists, with its facts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, LiteralString

import psycopg
from msgspec import Struct

from rivet_dagster.engine.errors import UsageError
from rivet_dagster.engine.sources.postgres import catalog
from rivet_dagster.engine.sources.postgres.catalog import Relation, ServerFacts
from rivet_dagster.engine.sources.postgres.connect import PostgresConnector
from rivet_dagster.engine.sources.postgres.quote import quote_ident, quote_relation
from rivet_dagster.engine.sources.postgres.sqlstate import classify

# partitions are read through their parent; what an extension owns is not the user's data
_LISTED: Final[LiteralString] = """
SELECT n.nspname, c.relname, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'm', 'v', 'f') AND NOT c.relispartition AND c.relpersistence <> 't'
  AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                    AND d.deptype = 'e')
ORDER BY n.nspname, c.relname
"""
_NOT_READ: Final = {"v": "a view", "f": "a foreign table"}


class Found(Struct, frozen=True):
    """A table. span: distance of its integer key's ends plus 1, where it was asked for."""

    relation: Relation
    span: int | None = None


class Skipped(Struct, frozen=True):
    """What is not proposed for export. name: ``schema.table``."""

    name: str
    reason: str


class Survey(Struct, frozen=True):
    server: ServerFacts
    tables: tuple[Found, ...]
    skipped: tuple[Skipped, ...]


def survey(
    connector: PostgresConnector,
    wanted: Callable[[str, str], bool],
    *,
    span_from_bytes: int,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Survey:
    """Facts of each table that ``wanted(schema, table)``; reads the catalog, and key ends of large tables.

    span_from_bytes: from this size on the ends of an integer primary key are asked for. tell: called
    with how many tables are done, and of how many.
    """
    connection = connector.connect()
    with contextlib.closing(connection), _faults():
        with connector.transaction(connection, search_path=None):
            server = catalog.server_facts(connection)
            rows = [tuple(map(str, row)) for row in connection.execute(_LISTED)]
        listed = [row for row in rows if wanted(row[0], row[1])]
        tables: list[Found] = []
        skipped: list[Skipped] = []
        for done, (schema, name, kind) in enumerate(listed):
            tell(done, len(listed))
            if kind in _NOT_READ:
                skipped.append(Skipped(f"{schema}.{name}", _NOT_READ[kind]))
                continue
            try:
                with connector.transaction(connection, search_path=None):
                    relation = catalog.describe_table(connection, schema, name, server=server)
            except UsageError as error:
                skipped.append(Skipped(f"{schema}.{name}", error.message))
                continue
            span = _span(connector, connection, relation) if relation.bytes >= span_from_bytes else None
            tables.append(Found(relation, span))
    return Survey(server, tuple(tables), tuple(skipped))


def integer_key(relation: Relation) -> str | None:
    """The primary key when it is one integer column."""
    if len(relation.primary_key) != 1:
        return None
    column = relation.column(relation.primary_key[0])
    return column.name if column is not None and column.integer else None


def _span(
    connector: PostgresConnector, connection: psycopg.Connection[Any], relation: Relation
) -> int | None:
    key = integer_key(relation)
    if key is None or not relation.can_select or relation.rows_hidden:
        return None
    name = quote_ident(key)
    statement = (
        f"SELECT max({name})::numeric - min({name}) + 1 FROM {quote_relation(relation.schema, relation.name)}"
    )
    try:
        with connector.transaction(connection, search_path=None):
            row = connection.execute(statement.encode()).fetchone()
    except psycopg.Error:  # slow or locked: the proposal is made without it
        return None
    return None if row is None or row[0] is None else int(row[0])


@contextlib.contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise classify(error) from error


__all__ = ["Found", "Skipped", "Survey", "integer_key", "survey"]
