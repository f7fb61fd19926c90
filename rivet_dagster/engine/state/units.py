"""Units of a run: claimed by one worker at a time, committed once."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal

from rivet_dagster.engine.errors import BusyError, CrashedError, error_object
from rivet_dagster.engine.plan.units import Part, PartStats, UnitKind, WorkUnit
from rivet_dagster.engine.redact import redact
from rivet_dagster.engine.state.connection import Connection, Row, insertion
from rivet_dagster.engine.state.database import Database
from rivet_dagster.engine.state.lease import DEFAULT_CLAIM_TTL_S, check_fence, fence_params
from rivet_dagster.engine.state.models import Claim, JournalEvent, Lease, RunProgress, UnitRow
from rivet_dagster.engine.state.patience import Asked, repeatable
from rivet_dagster.engine.state.unit_statements import WORK_UNIT, UnitStatements

_UNITS: Final = f"""
    SELECT {WORK_UNIT}, status, attempts, rows_written, bytes, seconds, last_error_json, is_final, claimed_by
    FROM chunk_task WHERE run_id = :run ORDER BY chunk_index"""
_RETRIES: Final = "SELECT sum(attempts - 1) FROM chunk_task WHERE run_id = :run AND attempts > 1"
_RELEASE_RUNNING: Final = """
    UPDATE chunk_task
    SET status = 'pending', claimed_by = NULL, claim_expires_at = NULL, updated_at = :now
    WHERE run_id = :run AND status = 'running'"""
_HAS_EVENT: Final = """
    SELECT EXISTS (SELECT 1 FROM run_journal WHERE run_id = :run AND event = :event AND json = :json)"""
_ADD_EVENT: Final = insertion("run_journal", ("run_id", "event", "json"), "at")


class UnitStore(Asked):
    """Claim, commit, fail; part of StateStore."""

    _db: Database
    _statements: UnitStatements

    @repeatable
    def units(self, run_id: str) -> tuple[UnitRow, ...]:
        """Every unit of a run, by index."""
        with self._db.single() as connection:
            return tuple(unit_row(row) for row in connection.rows(_UNITS, run=run_id))

    @repeatable
    def retries(self, run_id: str) -> int:
        """Attempts at the run's units beyond the first of each; those before a ``requeue`` do not count."""
        with self._db.single() as connection:
            return int(connection.scalar(_RETRIES, run=run_id) or 0)

    @repeatable
    def progress(self, run_id: str) -> RunProgress:
        """How many units are where, and when a claim may find one again."""
        with self._db.single() as connection:
            row = connection.first(self._statements.progress, run=run_id)
        assert row is not None  # of counts there always is one
        next_in_s = None if row.next_in_ms is None else max(0.0, row.next_in_ms / 1000)
        counts = (row.total, row.pending, row.running, row.completed, row.waiting, row.failed)
        total, pending, running, completed, waiting, failed = (int(count or 0) for count in counts)
        return RunProgress(total, pending, running, completed, waiting, failed, next_in_s)

    @repeatable
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
        parameters: dict[str, Any] = {
            "run": run_id,
            "worker": worker,
            "ttl_ms": round(ttl_s * 1000),
            **fence_params(lease),
        }
        statement = self._statements.claim
        if only is not None:
            statement = self._statements.claim_only
            parameters["only"] = self._db.dialect.array(only)
        with self._db.single() as connection:
            row = connection.first(statement, **parameters)
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

    @repeatable
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

        The parts are at the destination already. Refused with BusyError when another has the lease
        (RIVET_STATE_LEASE_LOST) or the unit (RIVET_STATE_CLAIM_LOST) by now. Committing a second time
        what was committed (its answer got lost) changes nothing.
        """
        rows = _part_rows(claim, parts, file_format, compression)
        figures = {
            "rows": sum(part.rows for part in parts),
            "size": sum(part.size_bytes for part in parts),
            "took": seconds,
        }
        with self._db.transaction() as connection:
            if self._close_claim(connection, "completed", claim, lease, figures):
                add_parts(connection, rows)
                add_events(connection, claim.run_id, events)

    @repeatable
    def fail_unit(
        self,
        claim: Claim,
        error: Mapping[str, Any],
        lease: Lease,
        *,
        final: bool,
        retry_after_s: float = 0.0,
        counted: bool = True,
        events: Sequence[JournalEvent] = (),
    ) -> None:
        """Record that an attempt failed. ``error``: error object; its message is not kept.

        Unless ``final``, the unit is claimed again after ``retry_after_s``, while attempts are left;
        one that is not ``counted`` leaves as many as there were. Refused like ``commit_unit``.
        """
        figures = {
            "error": json.dumps({**error, "message": None}),
            "final": final,
            "retry_ms": round(retry_after_s * 1000),
            "uncounted": 0 if counted else 1,
        }
        with self._db.transaction() as connection:
            if self._close_claim(connection, "failed", claim, lease, figures):
                add_events(connection, claim.run_id, events)

    @repeatable
    def confirm_claim(self, claim: Claim, lease: Lease) -> None:
        """Raise BusyError, as ``commit_unit`` would, unless ``claim`` and ``lease`` stand at this moment."""
        identity = {"run": claim.run_id, "index": claim.unit.index, "claim": claim.token}
        with self._db.single() as connection:
            if connection.scalar(self._statements.claim_stands, **identity, **fence_params(lease)):
                return
            check_fence(connection, lease)
        raise claim_lost(claim)

    @repeatable
    def is_committed(self, claim: Claim) -> bool:
        """Whether this very claim completed its unit."""
        identity = {"run": claim.run_id, "index": claim.unit.index, "claim": claim.token}
        with self._db.single() as connection:
            return bool(connection.scalar(self._statements.claim_status, **identity) == "completed")

    @repeatable
    def has_claimable_later(self, run_id: str, *, only: Collection[int] | None = None) -> bool:
        """A unit (of ``only``) may yet be given out: it is pending, waits, or its worker may fail."""
        statement, parameters = self._statements.is_unsettled, {}
        if only is not None:
            statement = self._statements.is_unsettled_only
            parameters = {"only": self._db.dialect.array(only)}
        with self._db.single() as connection:
            return bool(connection.scalar(statement, run=run_id, **parameters))

    @repeatable
    def reset_running(self, run_id: str, lease: Lease) -> int:
        """Put the units that a dead holder's workers had back to pending (I5). How many there were."""
        with self._db.transaction() as connection:
            check_fence(connection, lease)
            return release_running(connection, run_id)

    @repeatable
    def requeue(self, run_id: str, indexes: Collection[int], lease: Lease) -> int:
        """Give failed units that a person chose all their attempts again. How many there were."""
        with self._db.transaction() as connection:
            check_fence(connection, lease)
            only = connection.dialect.array(indexes)
            return connection.execute(self._statements.requeue, run=run_id, only=only)

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
        if connection.execute(statement, **identity, **figures, **fence_params(lease)) == 1:
            return True
        check_fence(connection, lease)
        if connection.scalar(self._statements.claim_status, **identity) == status:
            return False
        raise claim_lost(claim)

    def _give_up_abandoned(self, connection: Connection, run_id: str) -> None:
        """Units whose last allowed worker vanished are failed; else nobody would ever finish them."""
        if connection.scalar(self._statements.has_abandoned, run=run_id):
            found = error_object(CrashedError("its worker vanished"), with_message=False)
            connection.execute(self._statements.give_up, run=run_id, error=json.dumps(found))


def claim_lost(claim: Claim) -> BusyError:
    return BusyError(
        f"unit {claim.unit.index} of run {claim.run_id} has passed from {claim.worker} "
        f"(claim {claim.token}) to another worker",
        code="RIVET_STATE_CLAIM_LOST",
        unit=claim.unit.index,
    )


def release_running(connection: Connection, run_id: str) -> int:
    """running -> pending; a worker that still holds one of them cannot commit it any more."""
    return connection.execute(_RELEASE_RUNNING, run=run_id)


def add_events(connection: Connection, run_id: str, events: Sequence[JournalEvent]) -> None:
    """Append to the run's journal within the caller's transaction."""
    rows = [{"run_id": run_id, "event": e.event, "json": event_json(e)} for e in events]
    connection.execute_many(_ADD_EVENT, rows)


def add_events_once(
    connection: Connection, run_id: str, lease: Lease, events: Sequence[JournalEvent]
) -> None:
    """``add_events``, unless the last of them was recorded under this very lease: its answer got lost."""
    marked = [JournalEvent(e.event, {**e.detail, "fence": lease.token}) for e in events]
    if marked:
        last = marked[-1]
        if not connection.scalar(_HAS_EVENT, run=run_id, event=last.event, json=event_json(last)):
            add_events(connection, run_id, marked)


def add_parts(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows of ``file_log``, all columns but ``id`` and ``created_at``."""
    if rows:
        connection.execute_many(insertion("file_log", rows[0], "created_at"), rows)


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


def _work_unit(row: Row) -> WorkUnit:
    return WorkUnit(
        row.chunk_index,
        UnitKind(row.kind),
        row.partition_key,
        json.loads(row.spec_json),
        row.start_key,
        row.end_key,
        row.est_rows,
    )


def unit_row(row: Row) -> UnitRow:
    return UnitRow(
        unit=_work_unit(row),
        status=row.status,
        attempts=row.attempts,
        rows=row.rows_written,
        bytes=row.bytes,
        seconds=row.seconds,
        error=None if row.last_error_json is None else json.loads(row.last_error_json),
        final=bool(row.is_final),
        claimed_by=row.claimed_by,
    )
