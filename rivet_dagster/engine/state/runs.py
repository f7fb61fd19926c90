"""Runs: begun with their units, ended with cursor, schema, boundaries and figures in one transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rivet_dagster.engine.errors import BusyError, InternalError
from rivet_dagster.engine.plan.units import PartStats, WorkUnit
from rivet_dagster.engine.redact import redact
from rivet_dagster.engine.state.connection import Connection, Row, insertion, upsertion
from rivet_dagster.engine.state.database import Database, to_datetime
from rivet_dagster.engine.state.exports import advance_committed, save_cursor, save_schema, save_widths
from rivet_dagster.engine.state.lease import check_fence, fence, fence_params
from rivet_dagster.engine.state.models import (
    JournalEvent,
    JournalRow,
    Lease,
    PartRow,
    RunFinish,
    RunHeader,
    RunStatus,
)
from rivet_dagster.engine.state.patience import Asked, repeatable
from rivet_dagster.engine.state.units import (
    add_events,
    add_events_once,
    add_parts,
    dump_json,
    event_json,
    release_running,
    stats_json,
    task_row,
)

_METRIC_COLUMNS: Final = (
    "duration_ms",
    "total_rows",
    "files_produced",
    "bytes_written",
    "bytes_read",
    "retries",
    "peak_rss_mb",
    "longest_chunk_ms",
    "cursor_min",
    "cursor_max",
)
_RUN: Final = """
    SELECT run_id, export_name, prefix, mode, plan_hash, status, parent_run_id, consistency, schema_json,
        source_identity, max_chunk_attempts, holder, created_at, updated_at
    FROM chunk_run"""
_OPEN_RUN: Final = "SELECT run_id FROM chunk_run WHERE export_name = :export AND status = 'in_progress'"
_PARTS: Final = """
    SELECT run_id, export_name, chunk_index, file_name, row_count, bytes, fingerprint, md5, format,
        compression, attempt, checksums_json, origin_run_id, created_at, stats_json
    FROM file_log WHERE run_id = :run ORDER BY chunk_index, file_name"""
_PART_NAMES: Final = """
    SELECT file_log.file_name, chunk_run.run_id, chunk_run.status
    FROM file_log JOIN chunk_run ON chunk_run.run_id = file_log.run_id
    WHERE chunk_run.export_name = :export AND chunk_run.prefix = :prefix
    ORDER BY chunk_run.created_at, chunk_run.run_id"""
_JOURNAL: Final = "SELECT run_id, seq, at, event, json FROM run_journal WHERE run_id = :run ORDER BY seq"


_RUNS_WITH: Final = (
    "SELECT r.run_id, r.status FROM chunk_run r JOIN run_journal j ON j.run_id = r.run_id"
    " WHERE r.export_name = :export AND j.event = :event AND j.json = :json"
    " ORDER BY r.created_at DESC, r.run_id DESC"
)


class RunStore(Asked):
    """Begin, look up, finish; part of StateStore."""

    _db: Database

    @repeatable
    def begin_run(
        self,
        header: RunHeader,
        units: Sequence[WorkUnit],
        lease: Lease,
        *,
        completed: Mapping[int, Sequence[PartRow]] | None = None,
        events: Sequence[JournalEvent] = (),
    ) -> None:
        """Record a new run with all its units.

        completed: units (by index) that an earlier run did, with its parts; this run carries them.
        Raises BusyError: RIVET_STATE_LEASE_LOST, or RIVET_STATE_RUN_IN_PROGRESS when the export has
        an open run, which must be continued or interrupted first. Beginning this very run a second time
        changes nothing.
        """
        carried = completed or {}
        with self._db.transaction() as connection:
            check_fence(connection, lease)
            other = connection.scalar(_OPEN_RUN, export=header.export_name)
            if other == header.run_id:
                return
            if other is not None:
                text = f"run {other} is open"
                raise BusyError(text, code="RIVET_STATE_RUN_IN_PROGRESS", export=header.export_name)
            row = _header_row(header)
            connection.execute(insertion("chunk_run", row, "created_at", "updated_at"), **row)
            tasks = [_task(header.run_id, unit, carried.get(unit.index)) for unit in units]
            if tasks:
                connection.execute_many(insertion("chunk_task", tasks[0], "updated_at"), tasks)
            add_parts(connection, [_carried(header, part) for parts in carried.values() for part in parts])
            add_events(connection, header.run_id, events)

    def get_run(self, run_id: str) -> RunHeader | None:
        return self._one_run(f"{_RUN} WHERE run_id = :run", run=run_id)

    def open_run(self, export: str) -> RunHeader | None:
        """The run of ``export`` that is in progress (at most one is)."""
        return self.latest_run(export, statuses=("in_progress",))

    def latest_run(
        self, export: str, statuses: Sequence[RunStatus] = ("completed",), *, prefix: str | None = None
    ) -> RunHeader | None:
        """The run that began last among those of ``export`` with one of ``statuses``."""
        wanted = f"export_name = :export AND {self._db.dialect.among('status', 'statuses', 'text')}"
        parameters = {"export": export, "statuses": self._db.dialect.array(statuses)}
        if prefix is not None:
            wanted += " AND prefix = :prefix"
            parameters["prefix"] = prefix
        newest = "ORDER BY created_at DESC, run_id DESC LIMIT 1"
        return self._one_run(f"{_RUN} WHERE {wanted} {newest}", **parameters)

    @repeatable
    def runs(self, export: str, *, limit: int, open_only: bool = False) -> tuple[RunHeader, ...]:
        """The last runs of ``export``, newest first."""
        still = " AND status = 'in_progress'" if open_only else ""
        newest = "ORDER BY created_at DESC, run_id DESC LIMIT :limit"
        query = f"{_RUN} WHERE export_name = :export{still} {newest}"
        with self._db.single() as connection:
            return tuple(_header(row) for row in connection.rows(query, export=export, limit=limit))

    @repeatable
    def _one_run(self, query: str, /, **parameters: Any) -> RunHeader | None:
        with self._db.single() as connection:
            row = connection.first(query, **parameters)
        return None if row is None else _header(row)

    @repeatable
    def parts(self, run_id: str) -> tuple[PartRow, ...]:
        """The parts of a run, carried ones too, by unit and name."""
        with self._db.single() as connection:
            return tuple(part_row(row) for row in connection.rows(_PARTS, run=run_id))

    @repeatable
    def all_part_names(self, export: str, prefix: str) -> dict[str, tuple[str, RunStatus]]:
        """Every recorded part under ``prefix``: file name -> the last run that has it, and its status."""
        with self._db.single() as connection:
            rows = connection.rows(_PART_NAMES, export=export, prefix=prefix)
        return {row.file_name: (row.run_id, row.status) for row in rows}

    @repeatable
    def replaced_runs(self, export: str) -> frozenset[str]:
        """Runs of which a later, complete run replaced units and carried the others."""
        wanted = "export_name = :export AND status = 'completed' AND parent_run_id IS NOT NULL"
        with self._db.single() as connection:
            rows = connection.rows(f"{_RUN} WHERE {wanted}", export=export)
        return frozenset(row.parent_run_id for row in rows)

    @repeatable
    def journal(self, run_id: str) -> tuple[JournalRow, ...]:
        """The events of a run in the order in which they were recorded."""
        with self._db.single() as connection:
            return tuple(
                JournalRow(row.run_id, row.seq, to_datetime(row.at), row.event, json.loads(row.json))
                for row in connection.rows(_JOURNAL, run=run_id)
            )

    @repeatable
    def runs_with_event(self, export: str, event: JournalEvent) -> tuple[tuple[str, RunStatus], ...]:
        """(run id, status) of the runs of ``export`` that recorded ``event``, the latest first."""
        parameters = {"export": export, "event": event.event, "json": event_json(event)}
        with self._db.single() as connection:
            return tuple((row.run_id, row.status) for row in connection.rows(_RUNS_WITH, **parameters))

    @repeatable
    def add_journal(self, run_id: str, lease: Lease, events: Sequence[JournalEvent]) -> None:
        """Record events that go with no other change, once under each lease."""
        with self._db.transaction() as connection:
            check_fence(connection, lease)
            add_events_once(connection, run_id, lease, events)

    @repeatable
    def finish_run(self, run_id: str, lease: Lease, finish: RunFinish) -> None:
        """End a run: status, figures (I4), cursor (I3), schema, boundary and events, all or nothing.

        A run completes only when all its units have (I6; InternalError otherwise). Finishing again
        what was finished alike changes nothing. Raises BusyError (RIVET_STATE_LEASE_LOST).
        """
        with self._db.transaction() as connection:
            run = self._end(connection, run_id, lease, finish.status)
            if run is None:
                return
            if finish.status == "completed":
                _refuse_unfinished(connection, run_id)
            release_running(connection, run_id)
            where = (run.export_name, run.prefix)
            if finish.cursor is not None:
                save_cursor(connection, where, run_id, finish.cursor)
            if finish.schema_json is not None:
                save_schema(connection, run.export_name, run_id, finish.schema_json)
            if finish.widths is not None:
                save_widths(connection, run.export_name, run_id, finish.widths)
            if finish.committed is not None:
                advance_committed(connection, where, finish.committed)
            self._save_metrics(connection, run_id, run, finish)
            add_events(connection, run_id, finish.events)

    @repeatable
    def record_failure(self, run_id: str, lease: Lease, finish: RunFinish) -> None:
        """Keep the figures of an attempt at a run that failed; the run stays open, to be continued.

        A run has one row of figures: that of its last attempt. Events are recorded once under each lease.
        """
        with self._db.transaction() as connection:
            check_fence(connection, lease)
            run = connection.first(f"{_RUN} WHERE run_id = :run", run=run_id)
            if run is None:  # it failed before it was recorded
                return
            release_running(connection, run_id)
            self._save_metrics(connection, run_id, run, finish)
            add_events_once(connection, run_id, lease, finish.events)

    @repeatable
    def interrupt_run(self, run_id: str, lease: Lease, *, events: Sequence[JournalEvent] = ()) -> None:
        """Give a run up: it is continued no more, and its parts are leftovers."""
        with self._db.transaction() as connection:
            if self._end(connection, run_id, lease, "interrupted") is not None:
                release_running(connection, run_id)
                add_events(connection, run_id, events)

    def _end(self, connection: Connection, run_id: str, lease: Lease, status: RunStatus) -> Row | None:
        """in_progress -> status. None when it had that status before; raises when it cannot have it."""
        statement = f"""
            UPDATE chunk_run SET status = :status, updated_at = :now
            WHERE run_id = :run AND status = 'in_progress' AND {fence(connection.dialect)}
            RETURNING export_name, prefix, mode"""
        row = connection.first(statement, run=run_id, status=status, **fence_params(lease))
        if row is not None:
            return row
        check_fence(connection, lease)
        before = connection.scalar("SELECT status FROM chunk_run WHERE run_id = :run", run=run_id)
        if before == status:
            return None
        raise InternalError(f"run {run_id} is {before or 'unknown'} and cannot become {status}")

    def _save_metrics(self, connection: Connection, run_id: str, run: Row, finish: RunFinish) -> None:
        others = {k: v for k, v in finish.metrics.items() if k not in _METRIC_COLUMNS}
        row = {
            "run_id": run_id,
            "export_name": run.export_name,
            "mode": run.mode,
            "status": finish.status,
            "error_json": None if finish.error is None else dump_json({**finish.error, "message": None}),
            "details_json": redact(dump_json(others)),
            **{column: finish.metrics.get(column) for column in _METRIC_COLUMNS},
        }
        connection.execute(upsertion("export_metrics", ("run_id",), row, "run_at"), **row)


def _refuse_unfinished(connection: Connection, run_id: str) -> None:
    query = "SELECT count(*) FROM chunk_task WHERE run_id = :run AND status != 'completed'"
    count = connection.scalar(query, run=run_id)
    if count:
        raise InternalError(f"run {run_id} cannot be completed: {count} units are not")


def _header_row(header: RunHeader) -> dict[str, Any]:
    return {
        "run_id": header.run_id,
        "export_name": header.export_name,
        "prefix": header.prefix,
        "mode": header.mode,
        "plan_hash": header.plan_hash,
        "status": "in_progress",
        "parent_run_id": header.parent_run_id,
        "consistency": header.consistency,
        "schema_json": header.schema_json,
        "source_identity": header.source_identity,
        "max_chunk_attempts": header.max_chunk_attempts,
        "holder": header.holder,
    }


def _header(row: Row) -> RunHeader:
    found = row._asdict()
    for name in ("created_at", "updated_at"):
        found[name] = to_datetime(found[name])
    return RunHeader(**found)


def _task(run_id: str, unit: WorkUnit, carried: Sequence[PartRow] | None) -> dict[str, Any]:
    row = task_row(run_id, unit)
    if carried is not None:
        row["status"] = "completed"
        row["rows_written"] = sum(part.row_count for part in carried)
        row["bytes"] = sum(part.bytes for part in carried)
    return row


def _carried(header: RunHeader, part: PartRow) -> dict[str, Any]:
    return {
        "run_id": header.run_id,
        "export_name": header.export_name,
        "chunk_index": part.chunk_index,
        "file_name": part.file_name,
        "row_count": part.row_count,
        "bytes": part.bytes,
        "fingerprint": part.fingerprint,
        "md5": part.md5,
        "format": part.format,
        "compression": part.compression,
        "attempt": part.attempt,
        "checksums_json": None if part.checksums is None else dump_json(dict(part.checksums)),
        "origin_run_id": part.origin_run_id,
        "stats_json": stats_json(part.stats),
    }


def part_row(row: Row) -> PartRow:
    return PartRow(
        run_id=row.run_id,
        export_name=row.export_name,
        chunk_index=row.chunk_index,
        file_name=row.file_name,
        row_count=row.row_count,
        bytes=row.bytes,
        fingerprint=row.fingerprint,
        md5=row.md5,
        format=row.format,
        compression=row.compression,
        attempt=row.attempt,
        checksums=None if row.checksums_json is None else json.loads(row.checksums_json),
        origin_run_id=row.origin_run_id,
        created_at=to_datetime(row.created_at),
        stats=None if row.stats_json is None else PartStats.of_json(json.loads(row.stats_json)),
    )
