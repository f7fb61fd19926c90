"""Reading units: short read-only transactions, COPY BINARY, decoded by the kernel into batches."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    """

    export: str
    origin: Origin
    columns: tuple[Column, ...]
    type_oids: tuple[int, ...]
    options: ReadOptions
    snapshot: str | None
    oids: dict[str, int]


#: Whether a relation that this transaction has read lost its rows to the transaction's snapshot: TRUNCATE
#: and the ALTERs that rewrite a table are not MVCC-safe, the table just looks empty. pg_class is seen
#: through the snapshot, pg_relation_filenode looks at the present; the locks keep it as it is. What the
#: snapshot does not see at all was made later: harmless as an index or a partition, else a replacement.
_REWRITTEN = """
SELECT EXISTS (
  SELECT FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_class c ON c.oid = l.relation
  WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.database <> 0
    AND CASE WHEN c.oid IS NOT NULL
      THEN c.relkind IN ('r', 'm') AND c.relfilenode NOT IN (0, pg_catalog.pg_relation_filenode(c.oid))
      ELSE pg_catalog.pg_partition_root(l.relation) IS NULL
        AND pg_catalog.pg_get_indexdef(l.relation) IS NULL END)"""


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

    def batches(self, unit: WorkUnit) -> Iterator[pa.RecordBatch]:
        """Stream the unit. Batch borders depend on the rows alone, not on the statements."""
        self.nulled = {}
        select = select_list(self._order.columns)
        decoder = CopyDecoder(
            self._order.columns,
            max_rows=self._order.options.max_rows,
            max_bytes=self._order.options.max_bytes,
            max_value_bytes=self._order.options.max_value_bytes,
            policies={c.name: "null" for c in self._order.columns if c.nulls_unfit},
        )
        for statement in statements(unit, select, self._order.origin):
            try:
                for batch in self._run(unit, statement, decoder):
                    yield batch
                    self._throttle(batch.num_rows)
            except (psycopg.DataError, psycopg.NotSupportedError) as error:
                if (refusal := self._unparseable(unit, error)) is None:
                    raise
                raise refusal from error
        last = decoder.flush()
        if last is not None:
            yield last
        self.nulled = decoder.nulled

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

    def _run(self, unit: WorkUnit, statement: str, decoder: CopyDecoder) -> Iterator[pa.RecordBatch]:
        if self._connection is None or self._connection.closed:
            self._connection = self._connector.connect()
        connection = self._connection
        with self._connector.transaction(
            connection, snapshot=self._order.snapshot, search_path=self._order.origin.search_path
        ):
            self._check_shape(connection, statement)
            result = connection.pgconn.exec_(f"COPY ({statement}) TO STDOUT (FORMAT BINARY)".encode())
            if result.status != pq.ExecStatus.COPY_OUT:
                raise psycopg.errors.error_from_result(result)
            yield from decoder.batches(connection.pgconn)
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
        row = connection.execute(f"{_REWRITTEN}, {same}").fetchone()
        if row is None or row[0] or not row[1]:
            raise TransientError(
                f"{relation or 'a table of the query'} was rewritten, truncated or replaced "
                "after the snapshot that is read",
                # a snapshot of the unit's own is a new one at its next attempt
                code="RIVET_SOURCE_SNAPSHOT_LOST" if self._order.snapshot else "RIVET_SOURCE_CONFLICT",
                export=self._order.export,
            )

    def _throttle(self, rows: int) -> None:
        """Pace by rows, not by batches: a fixed pause a batch costs wide tables most of their time."""
        if self._order.options.throttle_ms:
            time.sleep(self._order.options.throttle_ms / 1000 * rows / self._order.options.throttle_rows)

    def classify(self, error: BaseException) -> RivetError:
        """The error tree's form of ``error``; the connection is given up, the next unit opens one."""
        if self._connection is not None:
            connect.close(self._connection)
            self._connection = None
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

    def cancel(self) -> None:
        connection = self._connection
        if connection is not None and not connection.closed:
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=5)

    def close(self) -> None:
        if self._connection is not None:
            connect.close(self._connection)
