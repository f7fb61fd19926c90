"""Reading units: short read-only transactions, COPY BINARY, decoded by the kernel into batches."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import pq
from psycopg.pq.abc import PGconn

from rivet_dagster.engine.errors import RefusalError, RivetError, TransientError, as_rivet_error
from rivet_dagster.engine.plan.units import WorkUnit
from rivet_dagster.engine.sources.postgres import connect
from rivet_dagster.engine.sources.postgres.connect import PostgresConnector
from rivet_dagster.engine.sources.postgres.decoder import CopyDecoder
from rivet_dagster.engine.sources.postgres.pieces import can_split, read_in_pieces
from rivet_dagster.engine.sources.postgres.predicate import (
    Origin,
    relation_sql,
    statements,
    unit_from_where,
)
from rivet_dagster.engine.sources.postgres.quote import quote_ident, quote_literal
from rivet_dagster.engine.sources.postgres.sqlstate import classify
from rivet_dagster.engine.types.decision import Column


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """max_rows/max_bytes: where a batch closes. throttle_ms per ``throttle_rows`` rows (0: none)."""

    max_rows: int
    max_bytes: int
    max_value_bytes: int
    throttle_ms: int = 0
    throttle_rows: int = 10_000


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """What the readers of one run share. type_oids: of the SELECT list when the run was planned.

    oids: quoted name -> oid of the relations of the plan. snapshot: None when each unit reads its own.
    standby: the server replays another one's changes. pieces: units (by index) that it has cancelled for
    that, to be read in pieces from then on.
    """

    export: str
    origin: Origin
    columns: tuple[Column, ...]
    type_oids: tuple[int, ...]
    options: ReadOptions
    snapshot: str | None
    oids: dict[str, int]
    standby: bool = False
    pieces: set[int] = field(default_factory=set)


_CANCELLED = "57014"  # query_canceled
_RECOVERY = "40001"  # of a read-only transaction: what a standby replays needed what the statement held

#: Whether a relation that this transaction has read lost its rows to the transaction's snapshot: TRUNCATE
#: and the ALTERs that rewrite a table are not MVCC-safe, the table just looks empty. pg_class is seen
#: through the snapshot, pg_relation_filenode looks at the present; the locks keep it as it is. What the
#: snapshot does not see at all was made later: harmless as an index or a partition, else a replacement.
REWRITTEN = """
SELECT EXISTS (
  SELECT FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_class c ON c.oid = l.relation
  WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.database <> 0
    AND CASE WHEN c.oid IS NOT NULL
      THEN c.relkind IN ('r', 'm') AND c.relfilenode NOT IN (0, pg_catalog.pg_relation_filenode(c.oid))
      ELSE pg_catalog.pg_partition_root(l.relation) IS NULL
        AND pg_catalog.pg_get_indexdef(l.relation) IS NULL END)"""


def _is_lost(error: psycopg.Error | RivetError) -> bool:
    """The connection broke without a word of the server."""
    away = isinstance(error, psycopg.OperationalError) or (
        isinstance(error, RivetError) and error.code == "RIVET_SOURCE_UNAVAILABLE"
    )
    return away and error.sqlstate is None


def select_list(columns: Sequence[Column]) -> str:
    """SELECT list of a read. A converted value goes by another name: ORDER BY must mean the column."""
    return ", ".join(
        c.select if c.select == quote_ident(c.name) else f'{c.select} AS "_rivet_{i}"'
        for i, c in enumerate(columns)
    )


def described_types(pgconn: PGconn, statement: str) -> tuple[int, ...]:
    """Type OIDs of the statement's output columns, as the server's parser sees them now."""
    prepared = pgconn.prepare(b"", statement.encode())
    if prepared.status != pq.ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(prepared)
    described = pgconn.describe_prepared(b"")
    return tuple(described.ftype(i) for i in range(described.nfields))


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

    def batches(self, unit: WorkUnit) -> Generator[pa.RecordBatch]:
        """Stream the unit. Batch borders depend on the rows alone, not on the statements; only those of
        a unit that a standby has cancelled before are where its pieces end."""
        self.nulled = {}
        splits = self._order.snapshot is None and can_split(unit)
        if splits and unit.index in self._order.pieces:
            options = self._order.options
            yield from self._paced(
                read_in_pieces(
                    unit, self._order.origin, self, max_rows=options.max_rows, max_bytes=options.max_bytes
                )
            )
            return
        try:
            yield from self._paced(self._whole(unit))
        except (psycopg.Error, RivetError) as error:
            if not splits or not self.is_conflict(error):
                raise
            self._order.pieces.add(unit.index)
            raise TransientError(
                f"unit {unit.index}: the standby's recovery cancelled the read; it is read in pieces now",
                code="RIVET_SOURCE_CONFLICT",
                export=self._order.export,
                sqlstate=_RECOVERY,
                counts=False,
            ) from error

    def _paced(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pace by rows, not by batches: a fixed pause a batch costs wide tables most of their time."""
        options = self._order.options
        for batch in batches:
            yield batch
            if options.throttle_ms:
                self.pause(options.throttle_ms / 1000 * batch.num_rows / options.throttle_rows)

    def _decoder(self) -> CopyDecoder:
        return CopyDecoder(
            self._order.columns,
            max_rows=self._order.options.max_rows,
            max_bytes=self._order.options.max_bytes,
            max_value_bytes=self._order.options.max_value_bytes,
            policies={c.name: "null" for c in self._order.columns if c.nulls_unfit},
        )

    def _whole(self, unit: WorkUnit) -> Iterator[pa.RecordBatch]:
        select = select_list(self._order.columns)
        decoder = self._decoder()
        for statement in statements(unit, select, self._order.origin):
            yield from self._run(unit, statement, decoder)
        last = decoder.flush()
        if last is not None:
            yield last
        self.nulled = decoder.nulled

    def fetch(self, unit: WorkUnit, max_bytes: int | None) -> list[pa.RecordBatch] | None:
        """See ``pieces.Connection``."""
        decoder = self._decoder()
        found: list[pa.RecordBatch] = []
        (statement,) = statements(unit, select_list(self._order.columns), self._order.origin)
        with contextlib.closing(self._run(unit, statement, decoder)) as batches:
            for batch in batches:
                found.append(batch)
                if max_bytes is not None and sum(b.nbytes for b in found) > max_bytes:
                    return None
        last = decoder.flush()
        for name, count in decoder.nulled.items():
            self.nulled[name] = self.nulled.get(name, 0) + count
        return found if last is None else [*found, last]

    def ask(self, statement: str) -> tuple[Any, ...] | None:
        """See ``pieces.Connection``."""
        with self._transaction() as connection:
            return connection.execute(statement.encode()).fetchone()

    def is_conflict(self, error: BaseException) -> bool:
        """A standby has cancelled the read for the sake of what it replays."""
        return getattr(error, "sqlstate", None) == _RECOVERY

    def pause(self, seconds: float) -> None:
        """Wait, but not while somebody waits for us."""
        self._asked.wait(seconds)

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
    def _transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """A transaction that ``give_way`` can end. Raises RIVET_SOURCE_YIELDED when it did."""
        if self._connection is None or self._connection.closed:
            self._connection = self._connector.connect()
        connection = self._connection
        self._asked.clear()
        began = False
        try:
            with self._connector.transaction(
                connection, snapshot=self._order.snapshot, search_path=self._order.origin.search_path
            ) as backend:
                self._backend, began = backend, True
                try:
                    yield connection
                finally:
                    with self._turn:
                        self._backend = None
        except (psycopg.Error, RivetError) as error:
            # the cancel may have met the last statement, or the commit
            if self._asked.is_set() and getattr(error, "sqlstate", None) == _CANCELLED:
                raise self._yielded() from error
            if self._order.standby and began and _is_lost(error):
                raise self._ended() from error
            raise

    def _ended(self) -> RivetError:
        """A standby ends the session of a transaction in its way that is between two statements; what it
        says meanwhile may be lost with the connection."""
        return TransientError(
            "the standby ended the session within a read",
            code="RIVET_SOURCE_CONFLICT",
            export=self._order.export,
            sqlstate=_RECOVERY,
        )

    def _yielded(self) -> RivetError:
        return TransientError(
            "the read gave way to a session that waits for a lock on the table",
            code="RIVET_SOURCE_YIELDED",
            export=self._order.export,
            counts=False,
        )

    def _run(
        self, unit: WorkUnit, statement: str, decoder: CopyDecoder
    ) -> Generator[pa.RecordBatch, None, None]:
        try:
            yield from self._copy(unit, statement, decoder)
        except (psycopg.DataError, psycopg.NotSupportedError) as error:
            if (refusal := self._unparseable(unit, error)) is None:
                raise
            raise refusal from error

    def _copy(self, unit: WorkUnit, statement: str, decoder: CopyDecoder) -> Iterator[pa.RecordBatch]:
        with self._transaction() as connection:
            self._check_shape(connection, statement)
            result = connection.pgconn.exec_(f"COPY ({statement}) TO STDOUT (FORMAT BINARY)".encode())
            if result.status != pq.ExecStatus.COPY_OUT:
                raise psycopg.errors.error_from_result(result)
            for batch in decoder.batches(connection.pgconn):
                yield batch
                if self._asked.is_set():  # the server may be waiting for us to read, and not see the cancel
                    raise self._yielded()
            self._check_storage(connection, unit)

    def _check_shape(self, connection: psycopg.Connection[Any], statement: str) -> None:
        """Compare the statement's types with the plan's, under the lock that its parsing takes.

        A column that was retyped after planning could decode as something else of the same width.
        """
        found = described_types(connection.pgconn, statement)
        for column, have, want in zip(self._order.columns, found, self._order.type_oids, strict=True):
            if have != want:
                raise TransientError(
                    f"column '{column.name}' changed its type after planning",
                    code="RIVET_SOURCE_SCHEMA_CHANGED",
                    export=self._order.export,
                    field=column.name,
                )

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
            self.cancel()
            return first

    def cancel(self) -> None:
        connection = self._connection
        if connection is not None and not connection.closed:
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=5)

    def close(self) -> None:
        """Give the connection up; the next unit opens another."""
        if self._connection is not None:
            connect.close(self._connection)
            self._connection = None
