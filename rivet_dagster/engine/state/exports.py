"""What outlives a run of an export: cursor, accepted schema, boundaries, figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from sqlalchemy import Row, Table, delete, insert, select
from sqlalchemy.engine import Connection

from rivet_dagster.engine.redact import redact
from rivet_dagster.engine.state.database import Database, to_datetime, to_ms
from rivet_dagster.engine.state.lease import check_fence
from rivet_dagster.engine.state.models import Boundary, CursorRow, Lease, Progression, RunAggregate
from rivet_dagster.engine.state.schema import (
    export_metrics,
    export_progression,
    export_schema,
    export_shape,
    export_state,
    run_aggregate,
)
from rivet_dagster.engine.state.units import dump_json

Key = tuple[str, str]  # export, prefix
Side = Literal["committed", "verified"]


class ExportStore:
    """Cursor, schema, progression, metrics; part of StateStore."""

    _db: Database

    def cursor(self, export: str, prefix: str) -> CursorRow | None:
        """Where incremental reading of ``export`` into ``prefix`` stands, None before its first run."""
        query = select(export_state).where(*_at(export_state, (export, prefix)))
        with self._db.single() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            return None
        return CursorRow(
            value=row.last_cursor_value,
            column=row.cursor_column,
            type=row.cursor_type,
            stream=row.stream,
            run_id=row.last_run_id,
            last_run_at=to_datetime(row.last_run_at),
        )

    def reset_cursor(self, export: str, prefix: str, lease: Lease) -> bool:
        """Forget the cursor and the boundaries: the next run reads everything. False: there was none."""
        with self._db.transaction() as connection:
            check_fence(connection, lease)
            connection.execute(delete(export_progression).where(*_at(export_progression, (export, prefix))))
            gone = connection.execute(delete(export_state).where(*_at(export_state, (export, prefix))))
            return gone.rowcount > 0

    def accepted_schema(self, export: str) -> str | None:
        """The columns (JSON) of the last run that completed."""
        query = select(export_schema.c.columns_json).where(export_schema.c.export_name == export)
        with self._db.single() as connection:
            return connection.execute(query).scalar_one_or_none()

    def widths(self, export: str) -> dict[str, int] | None:
        """Bytes of the longest value of each text or binary column so far, None before the first run."""
        query = select(export_shape.c.widths_json).where(export_shape.c.export_name == export)
        with self._db.single() as connection:
            found = connection.execute(query).scalar_one_or_none()
        return None if found is None else dict(json.loads(found))

    def progression(self, export: str, prefix: str) -> Progression:
        """Advisory boundaries (PG7): nothing may depend on them."""
        with self._db.single() as connection:
            return _read_progression(connection, (export, prefix))

    def set_verified(
        self, export: str, prefix: str, boundary: Boundary, *, mismatches: int, unknowns: int
    ) -> bool:
        """Record how far the data was compared with the source. False: the claim does not hold.

        It holds with no mismatch and no unknown (PG5), up to what is committed (PG6); a boundary
        before the recorded one changes nothing.
        """
        if mismatches or unknowns:
            return False
        key = (export, prefix)
        with self._db.transaction() as connection:
            known = _read_progression(connection, key, lock=True)
            if known.committed is None or not _reaches(known.committed, boundary):
                return False
            if known.verified is None or not _reaches(known.verified, boundary):
                _write_boundary(connection, self._db, key, "verified", boundary)
            return True

    def metrics(self, export: str, limit: int = 20) -> tuple[Mapping[str, Any], ...]:
        """Figures of the last runs of ``export``, newest first; ``run_at`` is a UTC datetime."""
        query = (
            select(export_metrics)
            .where(export_metrics.c.export_name == export)
            .order_by(export_metrics.c.id.desc())
            .limit(limit)
        )
        with self._db.single() as connection:
            return tuple(_metrics_row(row) for row in connection.execute(query))

    def record_aggregate(self, aggregate: RunAggregate) -> None:
        """Keep the result of one invocation over one or more exports."""
        started, finished = to_ms(aggregate.started_at), to_ms(aggregate.finished_at)
        row = {
            "run_aggregate_id": aggregate.run_aggregate_id,
            "started_at": started,
            "finished_at": finished,
            "duration_ms": finished - started,
            "config_path": aggregate.config_path,
            "parallel_mode": aggregate.parallel_mode,
            "total_exports": aggregate.total_exports,
            "success_count": aggregate.success_count,
            "failed_count": aggregate.failed_count,
            "skipped_count": aggregate.skipped_count,
            "total_rows": aggregate.total_rows,
            "total_files": aggregate.total_files,
            "total_bytes": aggregate.total_bytes,
            "details_json": redact(dump_json([dict(entry) for entry in aggregate.details])),
        }
        with self._db.transaction() as connection:
            connection.execute(insert(run_aggregate), row)

    def aggregates(self, limit: int = 20) -> tuple[dict[str, Any], ...]:
        """Results of the last invocations, newest first, with their entries as ``per_export``."""
        query = select(run_aggregate).order_by(run_aggregate.c.started_at.desc()).limit(limit)
        with self._db.single() as connection:
            return tuple(_aggregate_row(row) for row in connection.execute(query))


def save_cursor(connection: Connection, database: Database, key: Key, run_id: str, cursor: CursorRow) -> None:
    """Within the transaction that completes the run, hence after all its parts (I3)."""
    row = {
        "export_name": key[0],
        "prefix": key[1],
        "last_cursor_value": cursor.value,
        "cursor_column": cursor.column,
        "cursor_type": cursor.type,
        "stream": cursor.stream,
        "last_run_id": run_id,
    }
    _upsert(connection, database, export_state, row, "last_run_at")


def save_schema(
    connection: Connection, database: Database, export: str, run_id: str, columns_json: str
) -> None:
    row = {"export_name": export, "columns_json": columns_json, "run_id": run_id}
    _upsert(connection, database, export_schema, row, "updated_at")


def save_widths(
    connection: Connection, database: Database, export: str, run_id: str, widths: Mapping[str, int]
) -> None:
    row = {"export_name": export, "widths_json": dump_json(dict(widths)), "run_id": run_id}
    _upsert(connection, database, export_shape, row, "updated_at")


def advance_committed(connection: Connection, database: Database, key: Key, boundary: Boundary) -> None:
    """Move the committed boundary forward, never back (PG3)."""
    known = _read_progression(connection, key, lock=True).committed
    if known is None or not _reaches(known, boundary):
        _write_boundary(connection, database, key, "committed", boundary)


def _reaches(known: Boundary, wanted: Boundary) -> bool:
    """``known`` is at ``wanted`` or beyond it.

    Boundaries of different kinds, or chunk indexes of different plans, have no order: the later
    recorded one is the one that means something.
    """
    if known.strategy != wanted.strategy:
        return False
    if known.strategy == "chunk":
        assert known.chunk_index is not None
        assert wanted.chunk_index is not None
        return known.run_id == wanted.run_id and known.chunk_index >= wanted.chunk_index
    assert known.cursor is not None
    assert wanted.cursor is not None
    return not cursor_before(known.cursor, wanted.cursor)


def cursor_before(left: str, right: str) -> bool:
    """Numbers by value when both are numbers, else texts by their UTF-8 bytes (PG3)."""
    numbers = (_number(left), _number(right))
    if numbers[0] is not None and numbers[1] is not None:
        return numbers[0] < numbers[1]
    return left.encode() < right.encode()


def _number(value: str) -> Decimal | None:
    try:
        number = Decimal(value)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _read_progression(connection: Connection, key: Key, *, lock: bool = False) -> Progression:
    query = select(export_progression).where(*_at(export_progression, key))
    if lock:
        query = query.with_for_update()
    row = connection.execute(query).one_or_none()
    if row is None:
        return Progression(None, None)
    return Progression(_boundary(row, "committed"), _boundary(row, "verified"))


def _boundary(row: Row[Any], side: Side) -> Boundary | None:
    fields = {
        name: getattr(row, f"last_{side}_{name}")
        for name in ("strategy", "run_id", "cursor", "chunk_index", "at")
    }
    if fields["strategy"] is None:
        return None
    return Boundary(**{**fields, "at": to_datetime(fields["at"])})


def _write_boundary(
    connection: Connection, database: Database, key: Key, side: Side, boundary: Boundary
) -> None:
    row = {
        "export_name": key[0],
        "prefix": key[1],
        f"last_{side}_strategy": boundary.strategy,
        f"last_{side}_cursor": boundary.cursor,
        f"last_{side}_chunk_index": boundary.chunk_index,
        f"last_{side}_run_id": boundary.run_id,
    }
    _upsert(connection, database, export_progression, row, f"last_{side}_at")


def _upsert(
    connection: Connection, database: Database, table: Table, row: dict[str, Any], stamp: str
) -> None:
    """Insert ``row``, or replace the columns of the row with its key; column ``stamp`` gets the time."""
    key = [column.name for column in table.primary_key]
    statement = database.insert(table).values({stamp: database.now()})
    replaced = {name: statement.excluded[name] for name in [*row, stamp] if name not in key}
    statement = statement.on_conflict_do_update(index_elements=key, set_=replaced)
    connection.execute(statement, {**row, **database.clock()})


def _at(table: Table, key: Key) -> tuple[Any, Any]:
    return (table.c.export_name == key[0], table.c.prefix == key[1])


def _aggregate_row(row: Row[Any]) -> dict[str, Any]:
    found = dict(row._mapping)
    for name in ("started_at", "finished_at"):
        found[name] = to_datetime(found[name])
    return {**found, "per_export": json.loads(found.pop("details_json"))}


def _metrics_row(row: Row[Any]) -> dict[str, Any]:
    found = dict(row._mapping)
    details = json.loads(found.pop("details_json"))
    error = found.pop("error_json")
    found["run_at"] = to_datetime(found["run_at"])
    return {**details, **found, "error": None if error is None else json.loads(error)}
