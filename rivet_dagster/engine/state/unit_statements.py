"""The statements of claiming and closing units, put together once a store.

``run`` is the run's id, ``fence_key`` and ``fence_token`` the lease, ``only`` a set of indexes.
"""

from __future__ import annotations

from typing import Final

from rivet_dagster.engine.state.connection import Dialect
from rivet_dagster.engine.state.lease import IS_NEWEST, fence

WORK_UNIT: Final = "chunk_index, kind, partition_key, spec_json, start_key, end_key, est_rows"

#: What a claim looks through, word for word the condition of the partial index
_UNFINISHED: Final = "status != 'completed'"
_MAX_ATTEMPTS: Final = "(SELECT chunk_run.max_chunk_attempts FROM chunk_run WHERE chunk_run.run_id = :run)"
_IS_CLAIM: Final = "run_id = :run AND chunk_index = :index AND claim_token = :claim"
_ABANDONED: Final = f"""
    run_id = :run AND {_UNFINISHED} AND status = 'running'
    AND claim_expires_at <= :now AND attempts >= {_MAX_ATTEMPTS}"""

_WAITING: Final = (
    "chunk_task.status = 'failed' AND NOT chunk_task.is_final"
    " AND chunk_task.attempts < chunk_run.max_chunk_attempts"
)
_PROGRESS: Final = f"""
    SELECT count(*) AS total,
        sum(CASE WHEN chunk_task.status = 'pending' THEN 1 ELSE 0 END) AS pending,
        sum(CASE WHEN chunk_task.status = 'running' THEN 1 ELSE 0 END) AS running,
        sum(CASE WHEN chunk_task.status = 'completed' THEN 1 ELSE 0 END) AS completed,
        sum(CASE WHEN {_WAITING} THEN 1 ELSE 0 END) AS waiting,
        sum(CASE WHEN chunk_task.status = 'failed' AND NOT ({_WAITING}) THEN 1 ELSE 0 END) AS failed,
        min(CASE
            WHEN {_WAITING} THEN chunk_task.retry_at
            WHEN chunk_task.status = 'running' AND chunk_task.attempts < chunk_run.max_chunk_attempts
                THEN chunk_task.claim_expires_at
        END) - :now AS next_in_ms
    FROM chunk_task JOIN chunk_run ON chunk_run.run_id = chunk_task.run_id
    WHERE chunk_task.run_id = :run"""


class UnitStatements:
    """Of one backend; the parameters stand in the texts."""

    progress = _PROGRESS
    claim_status = f"SELECT status FROM chunk_task WHERE {_IS_CLAIM}"
    has_abandoned = f"SELECT EXISTS (SELECT 1 FROM chunk_task WHERE {_ABANDONED})"
    give_up = f"""
        UPDATE chunk_task
        SET status = 'failed', is_final = TRUE, last_error_json = :error, updated_at = :now
        WHERE {_ABANDONED}"""

    def __init__(self, dialect: Dialect) -> None:
        self.claim = _claim(dialect)
        self.claim_only = _claim(dialect, f"AND {dialect.among('candidate.chunk_index', 'only')}")
        closing = f"WHERE {_IS_CLAIM} AND status = 'running' AND {fence(dialect)}"
        self.claim_stands = f"""
            SELECT EXISTS (SELECT 1 FROM chunk_task WHERE {_IS_CLAIM} AND status = 'running')
                AND EXISTS (SELECT 1 FROM state_lease WHERE {IS_NEWEST})"""
        self.complete = f"""
            UPDATE chunk_task
            SET status = 'completed', claim_expires_at = NULL, updated_at = :now, last_error_json = NULL,
                rows_written = :rows, bytes = :size, seconds = :took
            {closing}"""
        self.fail = f"""
            UPDATE chunk_task
            SET status = 'failed', claim_expires_at = NULL, updated_at = :now, last_error_json = :error,
                is_final = :final, retry_at = :now + :retry_ms, attempts = attempts - :uncounted
            {closing}"""
        self.is_unsettled = _is_unsettled()
        self.is_unsettled_only = _is_unsettled(f"AND {dialect.among('chunk_index', 'only')}")
        self.requeue = f"""
            UPDATE chunk_task
            SET status = 'pending', attempts = 0, is_final = FALSE, retry_at = NULL, updated_at = :now
            WHERE run_id = :run AND {dialect.among("chunk_index", "only")} AND status = 'failed'"""


def _claim(dialect: Dialect, only: str = "") -> str:
    """One statement: pick and take. The lease is looked at unlocked; the commit is what must be safe."""
    lock = f"{dialect.for_update} OF candidate{dialect.skip_locked}" if dialect.for_update else ""
    return f"""
        UPDATE chunk_task
        SET status = 'running', attempts = attempts + 1, claim_token = claim_token + 1,
            claimed_by = :worker, claim_expires_at = :now + :ttl_ms, updated_at = :now
        WHERE run_id = :run AND chunk_index = (
            SELECT candidate.chunk_index
            FROM chunk_task AS candidate
            JOIN chunk_run ON chunk_run.run_id = candidate.run_id
            JOIN state_lease ON state_lease.lease_key = :fence_key
            WHERE candidate.run_id = :run AND candidate.{_UNFINISHED}
                AND (
                    candidate.status = 'pending'
                    OR candidate.status = 'failed' AND NOT candidate.is_final
                        AND candidate.attempts < chunk_run.max_chunk_attempts AND candidate.retry_at <= :now
                    OR candidate.status = 'running'
                        AND candidate.attempts < chunk_run.max_chunk_attempts
                        AND candidate.claim_expires_at <= :now
                )
                AND chunk_run.status = 'in_progress'
                AND state_lease.token = :fence_token AND state_lease.holder IS NOT NULL {only}
            ORDER BY candidate.attempts, candidate.chunk_index
            LIMIT 1{lock}
        )
        RETURNING {WORK_UNIT}, attempts, claim_token,
            (SELECT chunk_run.export_name FROM chunk_run WHERE chunk_run.run_id = :run) AS export_name,
            {_MAX_ATTEMPTS} AS max_attempts"""


def _is_unsettled(only: str = "") -> str:
    return f"""
        SELECT EXISTS (
            SELECT 1 FROM chunk_task
            WHERE run_id = :run AND {_UNFINISHED} {only}
                AND (
                    status IN ('pending', 'running')
                    OR status = 'failed' AND NOT is_final AND attempts < {_MAX_ATTEMPTS}
                )
        )"""
