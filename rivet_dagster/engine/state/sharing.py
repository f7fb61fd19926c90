"""Runs that several processes work on: the lead's invitation, and what the others have settled."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Final

from msgspec import Struct

from rivet_dagster.engine.state.connection import Row
from rivet_dagster.engine.state.database import Database
from rivet_dagster.engine.state.lease import check_fence, is_live
from rivet_dagster.engine.state.models import JournalEvent, Lease, PartRow, UnitRow
from rivet_dagster.engine.state.patience import Asked, repeatable
from rivet_dagster.engine.state.runs import part_row
from rivet_dagster.engine.state.unit_statements import WORK_UNIT
from rivet_dagster.engine.state.units import add_events_once, unit_row

INVITED: Final = "WorkersInvited"

_INVITATION: Final = """
    SELECT chunk_run.run_id, run_journal.json, state_lease.token, state_lease.holder, state_lease.lease_key,
        state_lease.expires_at, state_lease.host, state_lease.boot_id, state_lease.pid, state_lease.pid_start,
        :now AS server_now
    FROM chunk_run
    JOIN run_journal ON run_journal.run_id = chunk_run.run_id AND run_journal.event = :event
    JOIN state_lease ON state_lease.lease_key = :key
    WHERE chunk_run.export_name = :export AND chunk_run.status = 'in_progress'
    ORDER BY run_journal.seq DESC LIMIT 1"""
_LEADS: Final = "SELECT json FROM run_journal WHERE run_id = :run AND event = :event"
_SETTLED: Final = """
    SELECT chunk_index, claimed_by, updated_at FROM chunk_task
    WHERE run_id = :run AND updated_at >= :since AND (status = 'completed' OR status = 'failed' AND is_final)
        AND claimed_by IS NOT NULL"""
_UNITS: Final = f"""
    SELECT {WORK_UNIT}, status, attempts, claim_token, rows_written, bytes, seconds, last_error_json,
        is_final, claimed_by
    FROM chunk_task WHERE run_id = :run AND {{}} ORDER BY chunk_index"""
_PARTS: Final = """
    SELECT run_id, export_name, chunk_index, file_name, row_count, bytes, fingerprint, md5, format,
        compression, attempt, checksums_json, origin_run_id, created_at, stats_json
    FROM file_log WHERE run_id = :run AND {} ORDER BY chunk_index, file_name"""


class Invitation(Struct, frozen=True):
    """What a worker needs to join a run. lease: the lead's, under which it claims and commits.

    snapshot: the exported one that every unit is read from, None when each unit has its own.
    standing: ``led`` (join), ``ended`` (the lead gave the lease back), ``orphaned`` (it died, or stalled
    past its time), ``passed`` (another leads the run now and has not invited yet).
    """

    run_id: str
    lease: Lease
    snapshot: str | None
    standing: str


class Settled(Struct, frozen=True):
    """A unit that is complete, or failed for good. attempt: which one of its claims that was."""

    row: UnitRow
    attempt: int
    parts: tuple[PartRow, ...]


class SharingStore(Asked):
    """Invite, join, follow; part of StateStore."""

    _db: Database

    @repeatable
    def invite(self, run_id: str, lease: Lease, snapshot: str | None) -> None:
        """Let other processes work on ``run_id`` from now on, under ``lease``."""
        detail = {"holder": lease.holder, "ttl_s": lease.ttl_s, "snapshot": snapshot}
        with self._db.transaction() as connection:
            check_fence(connection, lease)
            add_events_once(connection, run_id, lease, [JournalEvent(INVITED, detail)])

    @repeatable
    def invitation(self, export: str, key: str) -> Invitation | None:
        """The last one to the open run of ``export``, whose lease is ``key``; None without any."""
        with self._db.single() as connection:
            row = connection.first(_INVITATION, export=export, key=key, event=INVITED)
        if row is None:
            return None
        told = json.loads(row.json)
        lease = Lease(key, told["holder"], told["fence"], told["ttl_s"])
        return Invitation(row.run_id, lease, told["snapshot"], _standing(row, lease))

    @repeatable
    def leads(self, run_id: str) -> frozenset[str]:
        """Holders under whose lease others were invited to work on the run."""
        with self._db.single() as connection:
            rows = connection.rows(_LEADS, run=run_id, event=INVITED)
        return frozenset(json.loads(row.json)["holder"] for row in rows)

    @repeatable
    def settled_since(self, run_id: str, since_ms: int) -> tuple[dict[int, str], int]:
        """Units that workers settled at ``since_ms`` (the state's clock) or later: index -> worker; and the
        latest such time."""
        with self._db.single() as connection:
            found = connection.rows(_SETTLED, run=run_id, since=since_ms)
        latest = max((row.updated_at for row in found), default=since_ms)
        return {row.chunk_index: row.claimed_by for row in found}, latest

    @repeatable
    def settled(self, run_id: str, indexes: Collection[int]) -> tuple[Settled, ...]:
        """What became of these units."""
        if not indexes:
            return ()
        with self._db.single() as connection:
            among = connection.dialect.among("chunk_index", "only")
            only = connection.dialect.array(indexes)
            found = connection.rows(_UNITS.format(among), run=run_id, only=only)
            rows = connection.rows(_PARTS.format(among), run=run_id, only=only)
        parts: dict[int, list[PartRow]] = {}
        for row in rows:
            parts.setdefault(row.chunk_index, []).append(part_row(row))
        return tuple(
            Settled(unit_row(row), row.claim_token, tuple(parts.get(row.chunk_index, ()))) for row in found
        )


def _standing(row: Row, lease: Lease) -> str:
    if row.holder is None:
        return "ended"
    if not is_live(row):  # also a successor that died before it invited anybody
        return "orphaned"
    return "led" if row.token == lease.token else "passed"
