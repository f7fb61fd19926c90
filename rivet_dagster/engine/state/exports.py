"""What outlives a run of an export: cursor, accepted schema, boundaries, figures."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal

from rivet_dagster.engine.packing import Past
from rivet_dagster.engine.redact import redact
from rivet_dagster.engine.state.connection import Connection, Row, insertion, upsertion
from rivet_dagster.engine.state.database import Database, to_datetime, to_ms
from rivet_dagster.engine.state.lease import check_fence
from rivet_dagster.engine.state.models import Boundary, CursorRow, Lease, Progression, RunAggregate
from rivet_dagster.engine.state.patience import Asked, repeatable
from rivet_dagster.engine.state.units import dump_json

Key = tuple[str, str]  # export, prefix
Side = Literal["committed", "verified"]

_KEY: Final = ("export_name", "prefix")
_AT_KEY: Final = "WHERE export_name = :export AND prefix = :prefix"
_CURSOR: Final = f"""
    SELECT last_cursor_value, cursor_column, cursor_type, stream, last_run_id, last_run_at
    FROM export_state {_AT_KEY}"""
_PROGRESSION: Final = f"""
    SELECT last_committed_strategy, last_committed_cursor, last_committed_chunk_index,
        last_committed_run_id, last_committed_at,
        last_verified_strategy, last_verified_cursor, last_verified_chunk_index,
        last_verified_run_id, last_verified_at
    FROM export_progression {_AT_KEY}"""
_METRICS: Final = """
    SELECT id, run_id, export_name, run_at, status, mode, duration_ms, total_rows, files_produced,
        bytes_written, bytes_read, retries, peak_rss_mb, longest_chunk_ms, cursor_min, cursor_max,
        error_json, details_json
    FROM export_metrics WHERE export_name = :export ORDER BY id DESC LIMIT :most"""
#: the last run that succeeded counts; without one, how long a failed one lasted at least
_PASTS: Final = """
    SELECT m.export_name, m.status, m.duration_ms, m.total_rows, m.peak_rss_mb
    FROM export_metrics m JOIN (
        SELECT export_name, status, max(id) AS id FROM export_metrics
        WHERE status IN ('completed', 'failed') GROUP BY export_name, status
    ) newest ON newest.id = m.id
    ORDER BY m.status DESC"""


#: What a run that ended well says beside its figures.
_DETAILS: Final = ("format", "schema_fingerprint", "nulled", "quality", "drift", "folder", "pace")


class ExportStore(Asked):
    """Cursor, schema, progression, metrics; part of StateStore."""

    _db: Database

    @repeatable
    def cursor(self, export: str, prefix: str) -> CursorRow | None:
        """Where incremental reading of ``export`` into ``prefix`` stands, None before its first run."""
        with self._db.single() as connection:
            row = connection.first(_CURSOR, export=export, prefix=prefix)
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
            connection.execute(f"DELETE FROM export_progression {_AT_KEY}", export=export, prefix=prefix)
            return connection.execute(f"DELETE FROM export_state {_AT_KEY}", export=export, prefix=prefix) > 0

    @repeatable
    def accepted_schema(self, export: str) -> str | None:
        """The columns (JSON) of the last run that completed."""
        query = "SELECT columns_json FROM export_schema WHERE export_name = :export"
        with self._db.single() as connection:
            found: str | None = connection.scalar(query, export=export)
        return found

    @repeatable
    def widths(self, export: str) -> dict[str, int] | None:
        """Bytes of the longest value of each text or binary column so far, None before the first run."""
        query = "SELECT widths_json FROM export_shape WHERE export_name = :export"
        with self._db.single() as connection:
            found = connection.scalar(query, export=export)
        return None if found is None else dict(json.loads(found))

    @repeatable
    def progression(self, export: str, prefix: str) -> Progression:
        """Advisory boundaries (PG7): nothing may depend on them."""
        with self._db.single() as connection:
            return _read_progression(connection, (export, prefix))

    @repeatable
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
                _write_boundary(connection, key, "verified", boundary)
            return True

    @repeatable
    def metrics(self, export: str, limit: int = 20) -> tuple[Mapping[str, Any], ...]:
        """Figures of the last runs of ``export``, newest first; ``run_at`` is a UTC datetime."""
        with self._db.single() as connection:
            return tuple(_metrics_row(row) for row in connection.rows(_METRICS, export=export, most=limit))

    @repeatable
    def pasts(self, exports: Collection[str]) -> dict[str, Past]:
        """What the last runs of ``exports`` took, of those that ran."""
        wanted, found = frozenset(exports), dict[str, Past]()
        with self._db.single() as connection:
            for row in connection.rows(_PASTS):
                if row.export_name in wanted:
                    seconds = None if row.duration_ms is None else row.duration_ms / 1000
                    found[row.export_name] = Past(seconds, row.total_rows, row.peak_rss_mb)
        return found

    @repeatable
    def record_aggregate(self, aggregate: RunAggregate) -> None:
        """Keep the result of one invocation over one or more exports; a second time changes nothing."""
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
            connection.execute(f"{insertion('run_aggregate', row)} ON CONFLICT DO NOTHING", **row)

    @repeatable
    def aggregates(self, limit: int = 20) -> tuple[dict[str, Any], ...]:
        """Results of the last invocations, newest first, with their entries as ``per_export``."""
        query = "SELECT * FROM run_aggregate ORDER BY started_at DESC LIMIT :limit"
        with self._db.single() as connection:
            return tuple(_aggregate_row(row) for row in connection.rows(query, limit=limit))


def save_cursor(connection: Connection, key: Key, run_id: str, cursor: CursorRow) -> None:
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
    connection.execute(upsertion("export_state", _KEY, row, "last_run_at"), **row)


def save_schema(connection: Connection, export: str, run_id: str, columns_json: str) -> None:
    row = {"export_name": export, "columns_json": columns_json, "run_id": run_id}
    connection.execute(upsertion("export_schema", _KEY[:1], row, "updated_at"), **row)


def save_widths(connection: Connection, export: str, run_id: str, widths: Mapping[str, int]) -> None:
    row = {"export_name": export, "widths_json": dump_json(dict(widths)), "run_id": run_id}
    connection.execute(upsertion("export_shape", _KEY[:1], row, "updated_at"), **row)


def advance_committed(connection: Connection, key: Key, boundary: Boundary) -> None:
    """Move the committed boundary forward, never back (PG3)."""
    known = _read_progression(connection, key, lock=True).committed
    if known is None or not _reaches(known, boundary):
        _write_boundary(connection, key, "committed", boundary)


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
    """Numbers by value when both are numbers, else texts by their UTF-8 bytes (PG3).

    Keys of several columns, which are stored as JSON arrays, go column by column.
    """
    one, other = _key(left), _key(right)
    if one is not None and other is not None and len(one) == len(other):
        return next((cursor_before(a, b) for a, b in zip(one, other, strict=True) if a != b), False)
    numbers = (_number(left), _number(right))
    if numbers[0] is not None and numbers[1] is not None:
        return numbers[0] < numbers[1]
    return left.encode() < right.encode()


def _key(value: str) -> list[str] | None:
    if not value.startswith("["):
        return None
    try:
        found = json.loads(value)
    except ValueError:
        return None
    return found if isinstance(found, list) and all(isinstance(text, str) for text in found) else None


def _number(value: str) -> Decimal | None:
    try:
        number = Decimal(value)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _read_progression(connection: Connection, key: Key, *, lock: bool = False) -> Progression:
    query = _PROGRESSION + (connection.dialect.for_update if lock else "")
    row = connection.first(query, export=key[0], prefix=key[1])
    if row is None:
        return Progression(None, None)
    return Progression(_boundary(row, "committed"), _boundary(row, "verified"))


def _boundary(row: Row, side: Side) -> Boundary | None:
    fields = {
        name: getattr(row, f"last_{side}_{name}")
        for name in ("strategy", "run_id", "cursor", "chunk_index", "at")
    }
    if fields["strategy"] is None:
        return None
    return Boundary(**{**fields, "at": to_datetime(fields["at"])})


def _write_boundary(connection: Connection, key: Key, side: Side, boundary: Boundary) -> None:
    row = {
        "export_name": key[0],
        "prefix": key[1],
        f"last_{side}_strategy": boundary.strategy,
        f"last_{side}_cursor": boundary.cursor,
        f"last_{side}_chunk_index": boundary.chunk_index,
        f"last_{side}_run_id": boundary.run_id,
    }
    connection.execute(upsertion("export_progression", _KEY, row, f"last_{side}_at"), **row)


def _aggregate_row(row: Row) -> dict[str, Any]:
    found = row._asdict()
    for name in ("started_at", "finished_at"):
        found[name] = to_datetime(found[name])
    entries = json.loads(found.pop("details_json"))
    return {**found, "per_export": entries}


def _metrics_row(row: Row) -> dict[str, Any]:
    found = row._asdict()
    details = json.loads(found.pop("details_json"))
    error = found.pop("error_json")
    found["run_at"] = to_datetime(found["run_at"])
    every = dict.fromkeys(_DETAILS)
    return {**every, **details, **found, "error": None if error is None else json.loads(error)}
