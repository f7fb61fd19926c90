"""Runs: begun with their units, ended with cursor, schema, boundaries and figures in one transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Row, bindparam, func, insert, select, update
from sqlalchemy.engine import Connection

from rivet_dagster.engine.errors import BusyError, InternalError
from rivet_dagster.engine.plan.units import PartStats, WorkUnit
from rivet_dagster.engine.redact import redact
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
from rivet_dagster.engine.state.schema import chunk_run, chunk_task, export_metrics, file_log, run_journal
from rivet_dagster.engine.state.units import (
    add_events,
    dump_json,
    event_json,
    release_running,
    stats_json,
    task_row,
)

_METRIC_COLUMNS: Final = frozenset(
    {
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
    }
)


class RunStore:
    """Begin, look up, finish; part of StateStore."""

    _db: Database

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
        an open run, which must be continued or interrupted first.
        """
        carried = completed or {}
        now, clock = self._db.now(), self._db.clock()
        with self._db.transaction() as connection:
            check_fence(connection, lease)
            self._refuse_second_run(connection, header.export_name)
            connection.execute(
                insert(chunk_run).values(created_at=now, updated_at=now), {**_header_row(header), **clock}
            )
            tasks = [{**_task(header.run_id, unit, carried.get(unit.index)), **clock} for unit in units]
            if tasks:
                connection.execute(insert(chunk_task).values(updated_at=now), tasks)
            parts = [{**_carried(header, row), **clock} for rows in carried.values() for row in rows]
            if parts:
                connection.execute(insert(file_log).values(created_at=now), parts)
            add_events(connection, self._db, header.run_id, events)

    def _refuse_second_run(self, connection: Connection, export: str) -> None:
        query = select(chunk_run.c.run_id).where(
            chunk_run.c.export_name == export, chunk_run.c.status == "in_progress"
        )
        other = connection.execute(query).scalar_one_or_none()
        if other is not None:
            raise BusyError(f"run {other} is open", code="RIVET_STATE_RUN_IN_PROGRESS", export=export)

    def get_run(self, run_id: str) -> RunHeader | None:
        return self._one_run(select(chunk_run).where(chunk_run.c.run_id == run_id))

    def open_run(self, export: str) -> RunHeader | None:
        """The run of ``export`` that is in progress (at most one is)."""
        return self.latest_run(export, statuses=("in_progress",))

    def latest_run(
        self, export: str, statuses: Sequence[RunStatus] = ("completed",), *, prefix: str | None = None
    ) -> RunHeader | None:
        """The run that began last among those of ``export`` with one of ``statuses``."""
        query = (
            select(chunk_run)
            .where(chunk_run.c.export_name == export, chunk_run.c.status.in_(statuses))
            .order_by(chunk_run.c.created_at.desc(), chunk_run.c.run_id.desc())
            .limit(1)
        )
        if prefix is not None:
            query = query.where(chunk_run.c.prefix == prefix)
        return self._one_run(query)

    def runs(self, export: str, *, limit: int, open_only: bool = False) -> tuple[RunHeader, ...]:
        """The last runs of ``export``, newest first."""
        query = (
            select(chunk_run)
            .where(chunk_run.c.export_name == export)
            .order_by(chunk_run.c.created_at.desc(), chunk_run.c.run_id.desc())
            .limit(limit)
        )
        if open_only:
            query = query.where(chunk_run.c.status == "in_progress")
        with self._db.single() as connection:
            return tuple(_header(row) for row in connection.execute(query))

    def _one_run(self, query: Any) -> RunHeader | None:
        with self._db.single() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else _header(row)

    def parts(self, run_id: str) -> tuple[PartRow, ...]:
        """The parts of a run, carried ones too, by unit and name."""
        query = (
            select(file_log)
            .where(file_log.c.run_id == run_id)
            .order_by(file_log.c.chunk_index, file_log.c.file_name)
        )
        with self._db.single() as connection:
            return tuple(_part_row(row) for row in connection.execute(query))

    def all_part_names(self, export: str, prefix: str) -> dict[str, tuple[str, RunStatus]]:
        """Every recorded part under ``prefix``: file name -> the last run that has it, and its status."""
        query = (
            select(file_log.c.file_name, chunk_run.c.run_id, chunk_run.c.status)
            .join(chunk_run, chunk_run.c.run_id == file_log.c.run_id)
            .where(chunk_run.c.export_name == export, chunk_run.c.prefix == prefix)
            .order_by(chunk_run.c.created_at, chunk_run.c.run_id)
        )
        with self._db.single() as connection:
            return {row.file_name: (row.run_id, row.status) for row in connection.execute(query)}

    def journal(self, run_id: str) -> tuple[JournalRow, ...]:
        """The events of a run in the order in which they were recorded."""
        query = select(run_journal).where(run_journal.c.run_id == run_id).order_by(run_journal.c.seq)
        with self._db.single() as connection:
            return tuple(
                JournalRow(row.run_id, row.seq, to_datetime(row.at), row.event, json.loads(row.json))
                for row in connection.execute(query)
            )

    def runs_with_event(self, export: str, event: JournalEvent) -> tuple[tuple[str, RunStatus], ...]:
        """(run id, status) of the runs of ``export`` that recorded ``event``, the latest first."""
        query = (
            select(chunk_run.c.run_id, chunk_run.c.status)
            .join(run_journal, run_journal.c.run_id == chunk_run.c.run_id)
            .where(chunk_run.c.export_name == export, run_journal.c.event == event.event)
            .where(run_journal.c.json == event_json(event))
            .order_by(chunk_run.c.created_at.desc())
        )
        with self._db.single() as connection:
            return tuple((row.run_id, row.status) for row in connection.execute(query))

    def add_journal(self, run_id: str, lease: Lease, events: Sequence[JournalEvent]) -> None:
        """Record events that go with no other change."""
        with self._db.transaction() as connection:
            check_fence(connection, lease)
            add_events(connection, self._db, run_id, events)

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
            release_running(connection, self._db, run_id)
            where = (run.export_name, run.prefix)
            if finish.cursor is not None:
                save_cursor(connection, self._db, where, run_id, finish.cursor)
            if finish.schema_json is not None:
                save_schema(connection, self._db, run.export_name, run_id, finish.schema_json)
            if finish.widths is not None:
                save_widths(connection, self._db, run.export_name, run_id, finish.widths)
            if finish.committed is not None:
                advance_committed(connection, self._db, where, finish.committed)
            self._save_metrics(connection, run_id, run, finish)
            add_events(connection, self._db, run_id, finish.events)

    def record_failure(self, run_id: str, lease: Lease, finish: RunFinish) -> None:
        """Keep the figures of an attempt at a run that failed; the run stays open, to be continued.

        A run has one row of figures: that of its last attempt.
        """
        query = select(chunk_run.c.export_name, chunk_run.c.prefix, chunk_run.c.mode).where(
            chunk_run.c.run_id == run_id
        )
        with self._db.transaction() as connection:
            check_fence(connection, lease)
            run = connection.execute(query).one_or_none()
            if run is None:  # it failed before it was recorded
                return
            release_running(connection, self._db, run_id)
            self._save_metrics(connection, run_id, run, finish)
            add_events(connection, self._db, run_id, finish.events)

    def interrupt_run(self, run_id: str, lease: Lease, *, events: Sequence[JournalEvent] = ()) -> None:
        """Give a run up: it is continued no more, and its parts are leftovers."""
        with self._db.transaction() as connection:
            if self._end(connection, run_id, lease, "interrupted") is not None:
                release_running(connection, self._db, run_id)
                add_events(connection, self._db, run_id, events)

    def _end(self, connection: Connection, run_id: str, lease: Lease, status: RunStatus) -> Row[Any] | None:
        """in_progress -> status. None when it had that status before; raises when it cannot have it."""
        statement = (
            update(chunk_run)
            .where(chunk_run.c.run_id == bindparam("run"), chunk_run.c.status == "in_progress", fence())
            .values(status=bindparam("new_status"), updated_at=self._db.now())
            .returning(chunk_run.c.export_name, chunk_run.c.prefix, chunk_run.c.mode)
        )
        parameters = {"run": run_id, "new_status": status, **fence_params(lease), **self._db.clock()}
        row = connection.execute(statement, parameters).one_or_none()
        if row is not None:
            return row
        check_fence(connection, lease)
        query = select(chunk_run.c.status).where(chunk_run.c.run_id == run_id)
        before = connection.execute(query).scalar_one_or_none()
        if before == status:
            return None
        raise InternalError(f"run {run_id} is {before or 'unknown'} and cannot become {status}")

    def _save_metrics(self, connection: Connection, run_id: str, run: Any, finish: RunFinish) -> None:
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
        statement = self._db.insert(export_metrics).values(run_at=self._db.now())
        replaced = {column: statement.excluded[column] for column in [*row, "run_at"] if column != "run_id"}
        connection.execute(
            statement.on_conflict_do_update(index_elements=["run_id"], set_=replaced),
            {**row, **self._db.clock()},
        )


def _refuse_unfinished(connection: Connection, run_id: str) -> None:
    query = select(func.count()).where(chunk_task.c.run_id == run_id, chunk_task.c.status != "completed")
    count = connection.execute(query).scalar_one()
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


def _header(row: Row[Any]) -> RunHeader:
    found = dict(row._mapping)
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


def _part_row(row: Row[Any]) -> PartRow:
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
