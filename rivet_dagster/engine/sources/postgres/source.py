"""PostgreSQL as a source of the engine: facts for planning, one snapshot a run, readers for workers."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import cached_property
from typing import Any

import psycopg
from msgspec.structs import replace

from rivet_dagster.engine.errors import EnvironmentFault, RefusalError, RivetError, TransientError
from rivet_dagster.engine.plan.units import WorkUnit
from rivet_dagster.engine.sources.base import (
    Cursor,
    CursorBounds,
    LateBounds,
    Settle,
    SourceCapabilities,
    SourceFacts,
)
from rivet_dagster.engine.sources.postgres import bounds, catalog, connect, late, writers
from rivet_dagster.engine.sources.postgres.connect import PostgresConnector, SnapshotHolder
from rivet_dagster.engine.sources.postgres.facts import require_readable, source_facts
from rivet_dagster.engine.sources.postgres.order import ReadOptions, ReadOrder, read_columns
from rivet_dagster.engine.sources.postgres.overrides import ColumnRules
from rivet_dagster.engine.sources.postgres.predicate import Origin, scope_sql, unit_from_where
from rivet_dagster.engine.sources.postgres.quote import quote_ident, quote_relation
from rivet_dagster.engine.sources.postgres.read import PostgresReader
from rivet_dagster.engine.sources.postgres.shape import Shape, described
from rivet_dagster.engine.sources.postgres.sqlstate import classify
from rivet_dagster.engine.sources.postgres.types import require_supported
from rivet_dagster.engine.sources.postgres.watch import PostgresWatch
from rivet_dagster.engine.types.aggregates import Aggregates
from rivet_dagster.engine.types.decision import Column

CAPABILITIES = SourceCapabilities(engine="postgres", exported_snapshot=True, page_ranges=True)

_OLDEST = 120_000
_RECOUNTS = 3
_SAMPLE_ROWS = 30_000
_SAMPLE_PAGES = 300
_WALKED_ROWS = 200_000  # entries of an index in one statement
_ENDLESS = {"date", "timestamp", "timestamptz"}
_NAN = {"float4", "float8", "numeric"}


class PostgresSource:
    """One export's source. ``connector`` is asked for on first use: definitions load without the password
    in the environment."""

    capabilities = CAPABILITIES

    def __init__(
        self,
        export: str,
        origin: Origin,
        connector: Callable[[], PostgresConnector],
        rules: ColumnRules | None = None,
    ) -> None:
        self.export = export
        self.rules = rules or ColumnRules()
        self.origin = origin
        self._new_connector = connector

    @cached_property
    def connector(self) -> PostgresConnector:
        return self._new_connector()

    @contextlib.contextmanager
    def planner(
        self, *, snapshot: bool, readers: int = 0, meanwhile: Callable[[], None] | None = None
    ) -> Iterator[PostgresPlanner]:
        """A planning connection; with ``snapshot`` it also holds the run's exported snapshot.

        While the server looks into its catalog, a thread opens connections for ``readers`` and then
        does what is to be done ``meanwhile``."""
        with contextlib.closing(self.connector):
            with self.faults():
                planner = PostgresPlanner(self, snapshot=snapshot, ahead=(readers, meanwhile))
            with contextlib.closing(planner):
                yield planner

    @contextlib.contextmanager
    def faults(self) -> Iterator[None]:
        """Turn psycopg's errors into the engine's."""
        try:
            yield
        except psycopg.Error as error:
            raise classify(error, export=self.export) from error
        except RivetError as error:
            error.export = error.export or self.export
            raise

    def readers(
        self, planner: PostgresPlanner, file_format: str, options: ReadOptions, *, snapshot: str | None = None
    ) -> Callable[[], PostgresReader]:
        """A factory for the workers' readers. What it needs of the planner is asked here, once, because
        a connection serves one thread.

        snapshot: one that another process holds and every unit is read from; else the planner's own.
        """
        order = ReadOrder(
            self.export,
            planner.origin,
            read_columns(planner.facts.columns, file_format),
            planner.shape(file_format),
            options,
            snapshot or planner.snapshot_id(),
            planner.oids(),
            planner._server.in_recovery,
        )
        connector = self.connector
        # planning may have taken another snapshot since
        return lambda: PostgresReader(connector, replace(order, snapshot=planner.snapshot_id()))

    def watch(self, *, weighs: bool) -> PostgresWatch:
        """Nothing is connected before its first look."""
        return PostgresWatch(self.connector, weighs=weighs)

    def file_columns(self, columns: tuple[Column, ...], file_format: str) -> tuple[Column, ...]:
        return read_columns(columns, file_format)


class PostgresPlanner:
    """Answers what planning asks, inside one transaction, which lives as long as the run needs it."""

    capabilities = CAPABILITIES
    #: How long a cursor waits for the transactions of others; None: as long as a run does.
    patience_s: float | None = None

    def __init__(
        self,
        source: PostgresSource,
        *,
        snapshot: bool,
        ahead: tuple[int, Callable[[], None] | None] = (0, None),
    ) -> None:
        self._source = source
        self._scope: str | None = None
        self._holder: SnapshotHolder | None = None
        self._connection: psycopg.Connection[Any]
        if snapshot:
            self._holder = SnapshotHolder(source.connector)
            self._connection = self._holder.connection
        else:
            self._connection = source.connector.connect()
        if any(ahead):
            source.connector.prepare(*ahead)
        try:
            self.relation: catalog.Relation | None = None
            with self._asking():
                self.facts = self._read_facts()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._holder is not None:
            self._holder.close()
        connect.close(self._connection)

    def snapshot_id(self) -> str | None:
        return self._holder.snapshot if self._holder else None

    @property
    def origin(self) -> Origin:
        """What is read, its schema resolved: workers do not depend on a search_path."""
        if self.relation is None:
            return self._source.origin
        return Origin(self.relation.schema, self.relation.name, operators=self.relation.type_schemas)

    def shape(self, file_format: str) -> Shape:
        """Of the read, as the server's parser sees it now."""
        columns = read_columns(self.facts.columns, file_format)
        with self._asking():
            found = described(self._connection.pgconn, columns, self._from())
            attnums = {(table, i): number for i, (table, number) in enumerate(found.places)}
            if self.relation is not None:
                oids = [leaf.oid for leaf in self.relation.leaves]
                attnums |= catalog.attnums(self._connection, oids, [c.name for c in columns])
        return replace(found, attnums=attnums)

    def oids(self) -> dict[str, int]:
        """Quoted name -> oid of what the plan was made for: a table of the same name may take its place."""
        if self.relation is None:
            return {}
        found = {quote_relation(leaf.schema, leaf.name): leaf.oid for leaf in self.relation.leaves}
        return {**found, self.relation.sql: self.relation.oid}

    def text_bounds(self, column: str) -> tuple[str, str] | None:
        """(min, max) of a column as the server's text, None when it has no value."""
        name = quote_ident(column)
        row = self._query(f"SELECT min({name})::text, max({name})::text FROM {self._from()}")
        return None if row is None or row[0] is None else (str(row[0]), str(row[1]))

    def integer_bounds(self, column: str) -> tuple[int, int] | None:
        """(min, max) of an integer column, None when it has no value."""
        found = self.text_bounds(column)
        if found is None:
            return None
        try:
            return int(found[0]), int(found[1])
        except ValueError as error:
            raise RefusalError(
                f"bounds of '{column}' are not integers", code="RIVET_PLAN_BOUNDS_UNREADABLE"
            ) from error

    def has_nulls(self, column: str) -> bool:
        return bool(
            self._one(f"SELECT EXISTS (SELECT 1 FROM {self._from()} WHERE {quote_ident(column)} IS NULL)")
        )

    def holds_rows(self, units: Iterable[WorkUnit]) -> bool:
        """Whether one of the units has a row; asks no further than the first that has."""
        for unit in units:
            source, condition, _ = unit_from_where(unit, self.origin)
            if self._one(f"SELECT EXISTS (SELECT 1 FROM {source} WHERE {condition})"):
                return True
        return False

    def within(self, unit: WorkUnit) -> PostgresPlanner:
        """The same questions about the rows of ``unit`` alone, on the same connection."""
        scoped = copy.copy(self)
        scoped._scope = scope_sql(unit, self.origin)
        scoped.facts = replace(self.facts, heaps=(), indexed=frozenset())
        return scoped

    def spans(self, column: str, granularity: str, low: str, high: str) -> list[str]:
        """See ``bounds.spans``: which days, months or years hold a row."""
        statement = bounds.spans(self._from(), self.facts, column, granularity, low, high)
        return [str(row[0]) for row in self._rows(statement)]

    def key_boundaries(
        self, columns: Sequence[str], ranges: int, upto: Sequence[str] | None = None, *, pages: int = 0
    ) -> list[tuple[str, ...]]:
        """At most ``ranges - 1`` ascending values of the key that split the table evenly.

        Sampled by block, sorted by the server, so the columns' own order and collation decide.
        ``upto``: the largest one wanted. pages: to sample for each range at least.
        """
        if ranges <= 1 or self.relation is None:
            return []
        rows, wanted = self.facts.est_rows or 0, max(_SAMPLE_PAGES, pages * ranges)
        share = max(
            _SAMPLE_ROWS / rows if rows else 0.0,
            wanted / max(self.relation.pages, 1),
            10 * ranges / max(rows, 1),
        )
        types = [found.native_type if (found := self.facts.column(c)) else "" for c in columns]
        percent = min(100.0, 100.0 * share)
        statement = bounds.sampled_boundaries(self._from(), columns, types, ranges, percent, upto)
        return [tuple(str(value) for value in row) for row in self._rows(statement)]

    def index_cuts(self, column: str, rows: int, after: str, upto: str) -> list[str]:
        """The value of every ``rows``-th row of (after, upto) in the order of an indexed column.

        Walks the index in statements of bounded length; equal values come once.
        """
        found: list[str] = []
        steps = max(1, _WALKED_ROWS // rows)
        while True:
            start = found[-1] if found else after
            statement = bounds.walked_cuts(self._from(), column, rows, start, upto, steps)
            with self._asking():
                self._connection.execute(bounds.ALONG_INDEX)
                cuts = [str(row[0]) for row in self._connection.execute(statement.encode())]
            found += cuts
            if len(cuts) < steps:
                return found

    def counted_keys(
        self, columns: Sequence[str], rows: int, after: Sequence[str], upto: Sequence[str]
    ) -> list[tuple[str, ...]]:
        """Every ``rows``-th value of a unique key in (after, upto], without the last one: exact."""
        statement = bounds.counted_keys(self._from(), columns, rows, after, upto)
        return [tuple(str(value) for value in row) for row in self._rows(statement)]

    def row_boundaries(self, column: str, rows: int) -> list[str]:
        """Values of every ``rows``-th row in the order of ``column``, NULLs aside: exact, one full sort."""
        statement = bounds.counted_boundaries(self._from(), column, rows)
        return [str(row[0]) for row in self._rows(statement)]

    def has_order(self, column: str) -> bool:
        """See ``bounds.has_order``."""
        found = self.facts.column(column)
        return bounds.has_order(self._rows, self._from(), column, found.native_type if found else "")

    def cursor_bounds(
        self, cursor: Cursor, after: str | None, settle: Settle | None, *, wait: bool = False
    ) -> CursorBounds:
        """See ``bounds.cursor_bounds``: how far this snapshot, or with ``wait`` the next one, may be read."""
        cap, facts = None, self.facts
        if wait and settle is None and facts.unseen is None:
            last = bounds.last_value(self._query, self._from(), cursor, after)
            cap = None if last is None else self._wait(cursor, last)
        return bounds.cursor_bounds(self._query, self._from(), facts, cursor, after, settle, cap)

    def _wait(self, cursor: Cursor, last: str) -> writers.Cap:
        found, relations = self.relation, None
        if found is not None and self.facts.draws(cursor):
            oids = [leaf.oid for leaf in found.leaves]
            relations = [found.oid, *oids, *found.sequences[cursor.key[-1]]]
        released = contextlib.nullcontext() if self._holder is None else self._holder.released()

        def rows(statement: str) -> list[tuple[Any, ...]]:
            with self._source.connector.transaction(self._connection):
                return [tuple(row) for row in self._connection.execute(statement.encode())]

        with self._source.faults(), released:
            return writers.wait_for_writers(rows, last, relations, self.patience_s)

    def late_bounds(
        self, cursor: Cursor, watermark: str | None, seconds: int, seen: Mapping[str, Any] | None
    ) -> LateBounds:
        """See ``late.late_bounds``: how far row versions may be read."""
        late.require_versions(self.relation, self._server)
        ask, source = self._query, self._from()
        return late.late_bounds(ask, source, self.facts, self._server, cursor, watermark, seconds, seen)

    def today(self) -> int:
        """The ordinal of the UTC day by the source's clock."""
        return date.fromisoformat(str(self._one("SELECT (now() AT TIME ZONE 'UTC')::date"))).toordinal()

    @property
    def encoding(self) -> str:
        return self._server.encoding

    def aggregate(
        self, unit: WorkUnit, columns: tuple[Column, ...], digest: Sequence[str] = ()
    ) -> Aggregates | None:
        """See ``recount.recount``: the unit's rows as they are now; None when that cannot be told.

        Raises TransientError when they are rewritten (TRUNCATE, ALTER) each time they are counted.
        """
        from rivet_dagster.engine.sources.postgres.recount import RewrittenError, recount

        for _ in range(_RECOUNTS):
            with contextlib.suppress(RewrittenError), self._asking():
                return recount(self._connection, unit, columns, self.origin, self._server, digest)
        raise TransientError(
            "a table was rewritten, truncated or replaced each time it was compared",
            code="RIVET_SOURCE_CONFLICT",
            export=self._source.export,
        )

    def _from(self) -> str:
        return self._scope or self.origin.from_sql()

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Ask something, limited in time like a read. No lock outlives it, not even beside a snapshot that
        is held for the whole run: a migration would wait for it, and everybody else for the migration."""
        connection = self._connection
        path = None if self.relation is None else self.origin.search_path
        with self._source.faults():
            if self._holder is not None:
                with self._holder.turn, connection.transaction(force_rollback=True):
                    if path is not None:
                        connection.execute(f"SET LOCAL search_path = {path}".encode())
                    yield
            else:
                with self._source.connector.transaction(connection, search_path=path):
                    yield

    def _rows(self, statement: str) -> list[tuple[Any, ...]]:
        with self._asking():
            return [tuple(row) for row in self._connection.execute(statement)]

    def _query(self, statement: str) -> tuple[Any, ...] | None:
        rows = self._rows(statement)
        return rows[0] if rows else None

    def _one(self, statement: str) -> Any:
        row = self._query(statement)
        return None if row is None else row[0]

    def _read_facts(self) -> SourceFacts:
        origin, overrides = self._source.origin, self._source.rules.overrides
        server = self._server = catalog.server_facts(self._connection)
        if server.version < _OLDEST:
            raise EnvironmentFault(
                f"the server is PostgreSQL {server.version // 10_000}",
                code="RIVET_SOURCE_VERSION_UNSUPPORTED",
            )
        if origin.query is not None:
            try:
                columns = catalog.describe_query(self._connection, origin.query, overrides=overrides)
            except psycopg.errors.InsufficientPrivilege:
                self._refuse_hidden_rows(f"SELECT 1 FROM {origin.from_sql()}")
                raise
            except psycopg.Error as error:
                raise classify(error, export=self._source.export, phase="describe") from error
            require_supported(columns, what=f"export '{self._source.export}'")
            self._refuse_hidden_rows(f"SELECT 1 FROM {origin.from_sql()}")
            return source_facts(columns, None, server)
        assert origin.table is not None
        relation = catalog.describe_table(
            self._connection, origin.schema, origin.table, server=server, overrides=overrides
        )
        require_readable(relation)
        require_supported(relation.columns, what=relation.sql)
        if relation.kind == "v":
            self._refuse_hidden_rows(f"SELECT 1 FROM {relation.sql}")
        self.relation = relation
        return source_facts(relation.columns, relation, server)

    def _refuse_hidden_rows(self, select: str) -> None:
        if catalog.blocked_by_row_security(self._connection, select):
            raise RefusalError(
                "row-level security hides rows below this view or query from this role",
                code="RIVET_SOURCE_ROW_SECURITY",
            )
