"""Reading units: short read-only transactions, COPY BINARY, decoded by the kernel into batches."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import pq

from rivet_dagster.engine.errors import RefusalError, RivetError, TransientError, as_rivet_error
from rivet_dagster.engine.plan.units import UnitKind, WorkUnit
from rivet_dagster.engine.sources.postgres import connect, endings
from rivet_dagster.engine.sources.postgres.connect import PostgresConnector
from rivet_dagster.engine.sources.postgres.decoder import CopyDecoder
from rivet_dagster.engine.sources.postgres.order import ReadOrder
from rivet_dagster.engine.sources.postgres.pace import Deadline
from rivet_dagster.engine.sources.postgres.pieces import can_split, read_in_pieces
from rivet_dagster.engine.sources.postgres.predicate import (
    page_statement,
    page_tiles,
    relation_sql,
    statement_sql,
    stretches,
    unit_from_where,
)
from rivet_dagster.engine.sources.postgres.quote import quote_literal
from rivet_dagster.engine.sources.postgres.shape import described, select_list
from rivet_dagster.engine.sources.postgres.sqlstate import classify
from rivet_dagster.engine.types.decision import Column

#: Whether a relation that this transaction has read lost its rows to the transaction's snapshot: TRUNCATE
#: and the ALTERs that rewrite a table are not MVCC-safe, the table just looks empty. pg_class is seen
#: through the snapshot, pg_relation_filenode looks at the present; the locks keep it as it is. What the
#: snapshot does not see at all was made later: harmless as an index or a partition, else a replacement.
REWRITTEN: Final = """
SELECT EXISTS (
  SELECT FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_class c ON c.oid = l.relation
  WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.database <> 0
    AND CASE WHEN c.oid IS NOT NULL
      THEN c.relkind IN ('r', 'm') AND c.relfilenode NOT IN (0, pg_catalog.pg_relation_filenode(c.oid))
      ELSE pg_catalog.pg_partition_root(l.relation) IS NULL
        AND pg_catalog.pg_get_indexdef(l.relation) IS NULL END)"""


class PostgresReader:
    """One worker's connection. Opened on first use, opened again after an error."""

    def __init__(self, connector: PostgresConnector, order: ReadOrder) -> None:
        self._connector = connector
        self._order = order
        self._connection: psycopg.Connection[Any] | None = None
        #: values of the last unit that the policy ``null`` replaced, by column
        self.nulled: dict[str, int] = {}
        # held while a statement is asked to end, so that the cancel never meets another one
        self._turn = threading.Lock()
        self._backend: int | None = None
        self._asked = threading.Event()
        self._late = threading.Event()  # the statement has used up its time
        self._stopped = threading.Event()
        self._wake = threading.Event()  # whoever pauses
        self._began = 0.0
        self._pages = 0

    def batches(self, unit: WorkUnit) -> Generator[pa.RecordBatch]:
        """Stream the unit. Batch borders depend on the rows alone, not on the statements; only those of
        a unit that had to be cut in pieces are where its pieces end."""
        self.nulled = {}
        self._pages = 0
        in_pieces = can_split(unit) and unit.index in self._order.pieces
        try:
            if in_pieces:
                yield from self._in_pieces(unit)
            elif unit.kind is UnitKind.PAGES:
                yield from self._by_pages(unit)
            else:
                yield from self._whole(unit)
        except (psycopg.Error, RivetError) as error:
            told = endings.told(self._order, unit, error, in_pieces=in_pieces, pages=self._pages)
            if told is error:
                raise
            raise told from error

    def _decoder(self) -> CopyDecoder:
        return CopyDecoder(
            self._order.columns,
            max_rows=self._order.options.max_rows,
            max_bytes=self._order.options.max_bytes,
            max_value_bytes=self._order.options.max_value_bytes,
            policies={c.name: "null" for c in self._order.columns if c.nulls_unfit},
        )

    def _select(self) -> str:
        return select_list(self._order.columns)

    def _by_pages(self, unit: WorkUnit) -> Iterator[pa.RecordBatch]:
        """Statement by statement, with the pauses between them: none is open while we pause."""
        order, decoder = self._order, self._decoder()
        end = unit.spec["pages"] if unit.spec["last"] is None else unit.spec["last"]
        most = order.step(max(1, min(unit.spec["step"], end - unit.spec["first"])))

        def pages(read: int) -> int:
            self._pages = order.options.pages(most, decoder.rows, read)
            return self._pages

        for first, last in page_tiles(unit.spec, pages):
            before = decoder.rows
            statement = page_statement(unit, self._select(), order.origin, first, last)
            yield from self._run(unit, statement, decoder)
            self._pause_for(decoder.rows - before)
        yield from self._rest(decoder)

    def _whole(self, unit: WorkUnit) -> Iterator[pa.RecordBatch]:
        decoder = self._decoder()
        for part in stretches(unit):
            statement = statement_sql(part, self._select(), self._order.origin)
            yield from self._run(unit, statement, decoder, pauses=bool(self._order.options.throttle_ms))
        for batch in self._rest(decoder):
            yield batch
            self._pause_for(batch.num_rows)

    def _rest(self, decoder: CopyDecoder) -> Iterator[pa.RecordBatch]:
        last = decoder.flush()
        if last is not None:
            yield last
        for name, count in decoder.nulled.items():
            self.nulled[name] = self.nulled.get(name, 0) + count

    def _in_pieces(self, unit: WorkUnit) -> Iterator[pa.RecordBatch]:
        order, options = self._order, self._order.options
        for batch in read_in_pieces(
            unit, order.origin, self, max_rows=options.max_rows, max_bytes=options.max_bytes
        ):
            yield batch
            self._pause_for(batch.num_rows)

    def fetch(self, unit: WorkUnit, max_bytes: int | None) -> list[pa.RecordBatch] | None:
        """See ``pieces.Connection``."""
        decoder = self._decoder()
        found: list[pa.RecordBatch] = []
        statement = statement_sql(unit, self._select(), self._order.origin)
        with contextlib.closing(self._run(unit, statement, decoder)) as batches:
            for batch in batches:
                found.append(batch)
                if max_bytes is not None and sum(b.nbytes for b in found) > max_bytes:
                    return None
        return [*found, *self._rest(decoder)]

    def ask(self, statement: str) -> tuple[Any, ...] | None:
        """See ``pieces.Connection``."""
        try:
            with self._transaction() as connection:
                return connection.execute(statement.encode()).fetchone()
        except TransientError as error:
            if not endings.by_timeout(error):
                raise
            why = "the next piece has no index to be found by"  # smaller ones would not make that cheaper
            raise endings.too_late(error, why, self._order.export) from error

    def is_conflict(self, error: BaseException) -> bool:
        """See ``pieces.Connection``."""
        return endings.by_recovery(error) or endings.by_timeout(error)

    def pause(self, seconds: float) -> None:
        """Wait, but not while somebody waits for us."""
        self._wake.wait(seconds)

    def _pause_for(self, rows: int) -> None:
        if seconds := self._order.options.pause_s(rows):
            self.pause(seconds)

    def _unparseable(self, unit: WorkUnit, error: psycopg.Error) -> RefusalError | None:
        """Which column holds the text that the server could not parse: it says the value, not the name.

        The unit is asked again, one column at a time; only what failed already costs that.
        """
        guilty = next((c for c in self._order.columns if c.parses and self._fails(unit, c)), None)
        if guilty is None:  # the query's own doing
            return None
        return RefusalError(
            f"column {guilty.name!r}: a value has no form in the declared type {guilty.arrow}",
            code="RIVET_SOURCE_VALUE_UNREPRESENTABLE",
            field=guilty.name,
            sqlstate=error.sqlstate,
            stops_run=False,
        )

    def _fails(self, unit: WorkUnit, column: Column) -> bool:
        source, condition, _ = unit_from_where(unit, self._order.origin)
        statement = f"SELECT count({column.select}) FROM {source} WHERE {condition}"
        path = self._order.origin.search_path
        with contextlib.closing(self._connector.connect()) as connection:
            try:
                with self._connector.transaction(connection, search_path=path):
                    connection.execute(statement.encode())
            except (psycopg.DataError, psycopg.NotSupportedError):
                return True
            except psycopg.Error:
                return False
        return False

    @contextlib.contextmanager
    def _transaction(self, *, paused: bool = False) -> Iterator[psycopg.Connection[Any]]:
        """A transaction that ``give_way`` can end. Raises RIVET_SOURCE_YIELDED when it did, and
        TransientError RIVET_SOURCE_STATEMENT_TIMEOUT when a statement took too long.

        paused: see ``ReadOptions.limits``."""
        if fresh := self._connection is None or self._connection.closed:
            self._connection = self._connector.connect()
        connection = self._connection
        self._asked.clear()
        self._late.clear()
        self._wake.clear()
        if self._stopped.is_set():
            raise endings.cancelled(self._order.export)
        began = False
        try:
            with self._connector.transaction(
                connection,
                snapshot=self._order.snapshot,
                search_path=self._order.origin.search_path,
                limits=self._order.options.limits(self._connector.limits, paused=paused),
                widen=fresh,
            ) as backend:
                self._backend, began = backend, True
                self._began = time.monotonic()
                try:
                    yield connection
                finally:
                    with self._turn:
                        self._backend = None
        except (psycopg.Error, RivetError) as error:
            if getattr(error, "sqlstate", None) == endings.CANCELLED:
                raise self._cancelled_by(paused=paused) from error
            if self._order.standby and began and endings.is_lost(error):
                raise endings.session_ended(self._order.export) from error
            raise

    def _cancelled_by(self, *, paused: bool) -> RivetError:
        """Whose cancel the server speaks of, which has one SQLSTATE for all of them.

        That of ``give_way`` may have met the last statement, or the commit."""
        limit_ms = self._connector.limits.statement_timeout_ms
        if self._asked.is_set():
            return endings.yielded(self._order.export)
        # the server's clock began after ours, so whoever comes before the limit is not its timeout
        timed_out = limit_ms and not paused and time.monotonic() - self._began >= limit_ms / 1000
        if self._late.is_set() or timed_out:
            return endings.late(self._order.export, limit_ms)
        return endings.cancelled(self._order.export)

    def _run(
        self, unit: WorkUnit, statement: str, decoder: CopyDecoder, *, pauses: bool = False
    ) -> Generator[pa.RecordBatch, None, None]:
        try:
            yield from self._copy(unit, statement, decoder, pauses=pauses)
        except (psycopg.DataError, psycopg.NotSupportedError) as error:
            if (refusal := self._unparseable(unit, error)) is None:
                raise
            raise refusal from error

    def _copy(
        self, unit: WorkUnit, statement: str, decoder: CopyDecoder, *, pauses: bool
    ) -> Iterator[pa.RecordBatch]:
        """pauses: within the statement, because it cannot be cut; they do not count as its time."""
        with self._transaction(paused=pauses) as connection:
            self._check_shape(connection, unit)
            self._began = time.monotonic()
            limit_ms = self._connector.limits.statement_timeout_ms if pauses else 0
            with Deadline(limit_ms / 1000, self._time_is_up) as deadline:
                result = connection.pgconn.exec_(f"COPY ({statement}) TO STDOUT (FORMAT BINARY)".encode())
                if result.status != pq.ExecStatus.COPY_OUT:
                    raise psycopg.errors.error_from_result(result)
                for batch in decoder.batches(connection.pgconn):
                    yield batch
                    if pauses:
                        with deadline.paused():
                            self._pause_for(batch.num_rows)
                    if self._asked.is_set():  # the server may wait for us to read, and not see the cancel
                        raise endings.yielded(self._order.export)
            self._began = time.monotonic()
            self._check_storage(connection, unit)

    def _check_shape(self, connection: psycopg.Connection[Any], unit: WorkUnit) -> None:
        """Compare the read's shape with the plan's, under the lock that its parsing takes.

        A column that was retyped after planning could decode as something else of the same width.
        """
        source, _, _ = unit_from_where(unit, self._order.origin)
        found = described(connection.pgconn, self._order.columns, source)
        self._order.shape.require(found, self._order.columns)

    def _check_storage(self, connection: psycopg.Connection[Any], unit: WorkUnit) -> None:
        """Raise TransientError when what was read is not what the snapshot holds. The locks still hold."""
        relation = relation_sql(unit, self._order.origin)
        planned = self._order.oids.get(relation) if self._order.snapshot else None
        same = "TRUE"
        if planned is not None:
            same = f"pg_catalog.to_regclass({quote_literal(relation)})::oid = {planned}"
        row = connection.execute(f"{REWRITTEN}, {same}").fetchone()
        if row is None or row[0] or not row[1]:
            raise TransientError(
                f"{relation or 'a table of the query'} was rewritten, truncated or replaced "
                "after the snapshot that is read",
                # a snapshot of the unit's own is a new one at its next attempt
                code="RIVET_SOURCE_SNAPSHOT_LOST" if self._order.snapshot else "RIVET_SOURCE_CONFLICT",
                export=self._order.export,
            )

    def classify(self, error: BaseException) -> RivetError:
        """The error tree's form of ``error``. Any thread may ask."""
        if isinstance(error, psycopg.Error):
            classified = classify(error, export=self._order.export)
            if classified.sqlstate in {"42P01", "42703", "3F000"}:
                # planned a moment ago: it was dropped or renamed since
                return TransientError(
                    classified.message,
                    code="RIVET_SOURCE_SCHEMA_CHANGED",
                    export=self._order.export,
                    sqlstate=classified.sqlstate,
                )
            return classified
        if isinstance(error, RefusalError):
            error.stops_run = error.code not in {
                "RIVET_SOURCE_VALUE_UNREPRESENTABLE",
                "RIVET_VALUE_TOO_LARGE",
            }
        wrapped = as_rivet_error(error)
        wrapped.export = wrapped.export or self._order.export
        return wrapped

    @property
    def backend(self) -> int | None:
        """The server's process that a transaction of ours is open in."""
        return self._backend

    def give_way(self, backend: int) -> bool:
        """End the transaction that is open in ``backend``, from another thread; nothing if it is over.

        Asking again cancels again: the server may not have been able to listen. True the first time.
        """
        with self._turn:
            if self._backend != backend:
                return False
            first = not self._asked.is_set()
            self._asked.set()
            self._wake.set()
            self._cancel_statement()
            return first

    def _time_is_up(self) -> None:
        with self._turn:
            self._late.set()
            self._cancel_statement()

    def cancel(self) -> None:
        """Break the read that is under way, and begin no other statement."""
        self._stopped.set()
        self._wake.set()
        self._cancel_statement()

    def _cancel_statement(self) -> None:
        connection = self._connection
        if connection is not None and not connection.closed:
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=5)

    def close(self) -> None:
        """Give the connection up; the next unit opens another."""
        if self._connection is not None:
            connect.close(self._connection)
            self._connection = None
