"""Units of a run: claimed by one worker at a time, committed once."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal

from sqlalchemy import (
    Row,
    bindparam,
    exists,
    insert,
    select,
    update,
)
from sqlalchemy.engine import Connection

from rivet_dagster.engine.errors import crashed_object
from rivet_dagster.engine.plan.units import Part, PartStats, UnitKind, WorkUnit
from rivet_dagster.engine.redact import redact
from rivet_dagster.engine.state.database import Database
from rivet_dagster.engine.state.lease import check_fence, fence_params, lease_lost
from rivet_dagster.engine.state.models import Claim, JournalEvent, Lease, RunProgress, UnitRow
from rivet_dagster.engine.state.schema import (
    chunk_task,
    run_journal,
)
from rivet_dagster.engine.state.unit_statements import UnitStatements

DEFAULT_CLAIM_TTL_S: Final = 300.0


class UnitStore:
    """Claim, commit, fail; part of StateStore."""

    _db: Database
    _statements: UnitStatements

    def units(self, run_id: str) -> tuple[UnitRow, ...]:
        """Every unit of a run, by index."""
        statement = select(chunk_task).where(chunk_task.c.run_id == run_id).order_by(chunk_task.c.chunk_index)
        with self._db.single() as connection:
            return tuple(_unit_row(row) for row in connection.execute(statement))

    def progress(self, run_id: str) -> RunProgress:
        """How many units are where, and when a claim may find one again."""
        with self._db.single() as connection:
            row = connection.execute(self._statements.progress, {"run": run_id, **self._db.clock()}).one()
        next_in_s = None if row.next_in_ms is None else max(0.0, row.next_in_ms / 1000)
        counts = (row.total, row.pending, row.running, row.completed, row.waiting, row.failed)
        total, pending, running, completed, waiting, failed = (int(count or 0) for count in counts)
        return RunProgress(total, pending, running, completed, waiting, failed, next_in_s)

    def claim(
        self,
        run_id: str,
        worker: str,
        lease: Lease,
        *,
        only: Collection[int] | None = None,
        ttl_s: float = DEFAULT_CLAIM_TTL_S,
    ) -> Claim | None:
        """The next unit for ``worker``, or None when there is none now (see ``progress``).

        Fresh units come first, by index; then failed ones with attempts left and units whose
        worker let its claim run out. Safe for any number of workers on any number of hosts.
        Raises BusyError (RIVET_STATE_LEASE_LOST).
        """
        parameters = {
            "run": run_id,
            "worker": worker,
            "ttl_ms": round(ttl_s * 1000),
            **fence_params(lease),
            **self._db.clock(),
        }
        statement = self._statements.claim
        if only is not None:
            statement = self._statements.claim_only
            parameters["only"] = self._db.integers(only)
        with self._db.single() as connection:
            row = connection.execute(statement, parameters).one_or_none()
            if row is not None:
                return Claim(
                    run_id,
                    _work_unit(row),
                    row.claim_token,
                    row.attempts,
                    row.max_attempts,
                    row.export_name,
                    worker,
                )
            check_fence(connection, lease)
            self._give_up_abandoned(connection, run_id)
        return None

    def commit_unit(
        self,
        claim: Claim,
        parts: Sequence[Part],
        lease: Lease,
        *,
        seconds: float,
        file_format: str = "parquet",
        compression: str = "",
        events: Sequence[JournalEvent] = (),
    ) -> None:
        """Record the parts of a unit and complete it: all of it, or nothing (I2, I5).

        The parts are at the destination already. Refused with BusyError (RIVET_STATE_LEASE_LOST)
        when the lease or the claim has passed to another. Committing a second time what was
        committed (its answer got lost) changes nothing.
        """
        rows = _part_rows(claim, parts, file_format, compression)
        figures = {
            "rows": sum(part.rows for part in parts),
            "size": sum(part.size_bytes for part in parts),
            "took": seconds,
        }
        with self._db.transaction() as connection:
            if self._close_claim(connection, "completed", claim, lease, figures):
                clock = self._db.clock()
                if rows:
                    connection.execute(self._statements.add_part, [{**row, **clock} for row in rows])
                add_events(connection, self._db, claim.run_id, events)

    def fail_unit(
        self,
        claim: Claim,
        error: Mapping[str, Any],
        lease: Lease,
        *,
        final: bool,
        retry_after_s: float = 0.0,
        events: Sequence[JournalEvent] = (),
    ) -> None:
        """Record that an attempt failed. ``error``: error object; its message is not kept.

        Unless ``final``, the unit is claimed again after ``retry_after_s``, while attempts are left.
        Refused like ``commit_unit``.
        """
        figures = {
            "error": json.dumps({**error, "message": None}),
            "final": final,
            "retry_ms": round(retry_after_s * 1000),
        }
        with self._db.transaction() as connection:
            if self._close_claim(connection, "failed", claim, lease, figures):
                add_events(connection, self._db, claim.run_id, events)

    def has_claimable_later(self, run_id: str, *, only: Collection[int] | None = None) -> bool:
        """A unit (of ``only``) may yet be given out: it is pending, waits, or its worker may fail."""
        statement = select(exists(self._statements.unsettled))
        parameters: dict[str, Any] = {"run": run_id}
        if only is not None:
            statement = select(exists(self._statements.unsettled_only))
            parameters["only"] = self._db.integers(only)
        with self._db.single() as connection:
            return bool(connection.execute(statement, parameters).scalar_one())

    def reset_running(self, run_id: str, lease: Lease) -> int:
        """Put the units that a dead holder's workers had back to pending (I5). How many there were."""
        with self._db.transaction() as connection:
            check_fence(connection, lease)
            return release_running(connection, self._db, run_id)

    def requeue(self, run_id: str, indexes: Collection[int], lease: Lease) -> int:
        """Give failed units that a person chose all their attempts again. How many there were."""
        statement = (
            update(chunk_task)
            .where(
                chunk_task.c.run_id == bindparam("run"),
                self._db.among(chunk_task.c.chunk_index, "only"),
                chunk_task.c.status == "failed",
            )
            .values(status="pending", attempts=0, is_final=False, retry_at=None, updated_at=self._db.now())
        )
        with self._db.transaction() as connection:
            check_fence(connection, lease)
            parameters = {"run": run_id, "only": self._db.integers(indexes), **self._db.clock()}
            return connection.execute(statement, parameters).rowcount

    def _close_claim(
        self,
        connection: Connection,
        status: Literal["completed", "failed"],
        claim: Claim,
        lease: Lease,
        figures: Mapping[str, Any],
    ) -> bool:
        """False when this very claim was closed like this before. Raises when it is not ours any more."""
        statement = self._statements.complete if status == "completed" else self._statements.fail
        identity = {"run": claim.run_id, "index": claim.unit.index, "claim": claim.token}
        parameters = {**identity, **figures, **fence_params(lease), **self._db.clock()}
        if connection.execute(statement, parameters).rowcount == 1:
            return True
        check_fence(connection, lease)
        if connection.execute(self._statements.claim_status, identity).scalar_one_or_none() == status:
            return False
        raise lease_lost(lease)

    def _give_up_abandoned(self, connection: Connection, run_id: str) -> None:
        """Units whose last allowed worker vanished are failed; else nobody would ever finish them."""
        parameters = {"run": run_id, **self._db.clock()}
        if connection.execute(self._statements.has_abandoned, parameters).scalar_one():
            parameters["error"] = json.dumps(crashed_object())
            connection.execute(self._statements.give_up, parameters)


def release_running(connection: Connection, database: Database, run_id: str) -> int:
    """running -> pending; a worker that still holds one of them cannot commit it any more."""
    statement = (
        update(chunk_task)
        .where(chunk_task.c.run_id == bindparam("run"), chunk_task.c.status == "running")
        .values(status="pending", claimed_by=None, claim_expires_at=None, updated_at=database.now())
    )
    return connection.execute(statement, {"run": run_id, **database.clock()}).rowcount


def add_events(
    connection: Connection, database: Database, run_id: str, events: Sequence[JournalEvent]
) -> None:
    """Append to the run's journal within the caller's transaction."""
    if not events:
        return
    clock = database.clock()
    rows = [{"run_id": run_id, "event": e.event, "json": event_json(e), **clock} for e in events]
    connection.execute(insert(run_journal).values(at=database.now()), rows)


def event_json(event: JournalEvent) -> str:
    """The detail of ``event`` as the journal keeps it."""
    return redact(dump_json(event.detail))


def dump_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)


def task_row(run_id: str, unit: WorkUnit) -> dict[str, Any]:
    """A pending row of ``chunk_task``, all columns but ``updated_at``."""
    return {
        "run_id": run_id,
        "chunk_index": unit.index,
        "kind": str(unit.kind),
        "partition_key": unit.partition,
        "start_key": unit.start_key,
        "end_key": unit.end_key,
        "spec_json": dump_json(dict(unit.spec)),
        "est_rows": unit.est_rows,
        "status": "pending",
        "attempts": 0,
        "is_final": False,
        "claim_token": 0,
        "rows_written": 0,
        "bytes": 0,
        "seconds": 0.0,
    }


def _part_rows(
    claim: Claim, parts: Sequence[Part], file_format: str, compression: str
) -> list[dict[str, Any]]:
    return [
        {
            "run_id": claim.run_id,
            "export_name": claim.export_name,
            "chunk_index": claim.unit.index,
            "file_name": part.path,
            "row_count": part.rows,
            "bytes": part.size_bytes,
            "fingerprint": part.fingerprint,
            "md5": part.md5,
            "format": file_format,
            "compression": compression,
            "attempt": claim.attempt,
            "checksums_json": None if part.checksums is None else dump_json(dict(part.checksums)),
            "origin_run_id": claim.run_id,
            "stats_json": stats_json(part.stats),
        }
        for part in parts
    ]


def stats_json(stats: PartStats | None) -> str | None:
    return None if stats is None else dump_json(stats.as_json())


def _work_unit(row: Row[Any]) -> WorkUnit:
    return WorkUnit(
        row.chunk_index,
        UnitKind(row.kind),
        row.partition_key,
        json.loads(row.spec_json),
        row.start_key,
        row.end_key,
        row.est_rows,
    )


def _unit_row(row: Row[Any]) -> UnitRow:
    return UnitRow(
        unit=_work_unit(row),
        status=row.status,
        attempts=row.attempts,
        rows=row.rows_written,
        bytes=row.bytes,
        seconds=row.seconds,
        error=None if row.last_error_json is None else json.loads(row.last_error_json),
        final=row.is_final,
        claimed_by=row.claimed_by,
    )
