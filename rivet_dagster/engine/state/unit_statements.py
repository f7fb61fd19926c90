"""The statements of claiming and closing units, built once a store.

Building one costs more than running it, so none is built per call.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    Text,
    Update,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from rivet_dagster.engine.state.database import Database
from rivet_dagster.engine.state.lease import fence
from rivet_dagster.engine.state.schema import chunk_run, chunk_task, file_log, state_lease, unfinished

_UNIT_COLUMNS: Final = (
    "chunk_index",
    "kind",
    "partition_key",
    "spec_json",
    "start_key",
    "end_key",
    "est_rows",
)


class UnitStatements:
    """Parameters are named in each builder; ``Database.clock()`` adds the time where it is one."""

    def __init__(self, database: Database) -> None:
        now = database.now()
        self.claim = _claim(database, None)
        self.claim_only = _claim(database, "only")
        self.complete = _closing("completed", now).values(
            rows_written=bindparam("rows"),
            bytes=bindparam("size"),
            seconds=bindparam("took"),
            last_error_json=None,
        )
        self.fail = _closing("failed", now).values(
            last_error_json=bindparam("error"),
            is_final=bindparam("final"),
            retry_at=now + bindparam("retry_ms", type_=BigInteger),
            attempts=chunk_task.c.attempts - bindparam("uncounted", type_=Integer),
        )
        self.claim_status = select(chunk_task.c.status).where(*_is_claim())
        self.add_part = insert(file_log).values(created_at=now)
        abandoned = (
            chunk_task.c.run_id == bindparam("run"),
            unfinished,
            chunk_task.c.status == "running",
            chunk_task.c.claim_expires_at <= now,
            chunk_task.c.attempts >= _max_attempts(bindparam("run")),
        )
        self.has_abandoned = select(exists().where(*abandoned))
        self.give_up = (
            update(chunk_task)
            .where(*abandoned)
            .values(
                status="failed", is_final=True, last_error_json=bindparam("error", type_=Text), updated_at=now
            )
        )
        self.progress = _progress(now)
        self.unsettled = _unsettled()
        self.unsettled_only = self.unsettled.where(database.among(chunk_task.c.chunk_index, "only"))


def _unsettled() -> Select[Any]:
    task = chunk_task.c
    tries_left = task.attempts < _max_attempts(bindparam("run"))
    may_retry = and_(task.status == "failed", task.is_final.is_(False), tries_left)
    return select(task.chunk_index).where(
        task.run_id == bindparam("run"),
        unfinished,
        or_(task.status.in_(("pending", "running")), may_retry),
    )


def _max_attempts(run_id: ColumnElement[Any]) -> ColumnElement[int]:
    return select(chunk_run.c.max_chunk_attempts).where(chunk_run.c.run_id == run_id).scalar_subquery()


def _claim(database: Database, only: str | None) -> Update:
    """One statement: pick and take. The lease is looked at unlocked; the commit is what must be safe."""
    now = database.now()
    task = chunk_task.alias("candidate")
    tries_left = task.c.attempts < chunk_run.c.max_chunk_attempts
    open_to_claim = or_(
        task.c.status == "pending",
        and_(task.c.status == "failed", task.c.is_final.is_(False), tries_left, task.c.retry_at <= now),
        and_(task.c.status == "running", tries_left, task.c.claim_expires_at <= now),
    )
    candidate = (
        select(task.c.chunk_index)
        .join(chunk_run, chunk_run.c.run_id == task.c.run_id)
        .join(state_lease, state_lease.c.lease_key == bindparam("fence_key"))
        .where(
            task.c.run_id == bindparam("run"),
            task.c.status != literal_column("'completed'"),  # as the partial index says it
            open_to_claim,
            chunk_run.c.status == "in_progress",
            state_lease.c.token == bindparam("fence_token"),
            state_lease.c.holder.is_not(None),
        )
        .order_by(task.c.attempts, task.c.chunk_index)
        .limit(literal_column("1"))
        .with_for_update(of=task, skip_locked=True)
    )
    if only is not None:
        candidate = candidate.where(database.among(task.c.chunk_index, only))
    run = select(chunk_run.c.export_name).where(chunk_run.c.run_id == chunk_task.c.run_id)
    return (
        update(chunk_task)
        .where(
            chunk_task.c.run_id == bindparam("run"), chunk_task.c.chunk_index == candidate.scalar_subquery()
        )
        .values(
            status="running",
            attempts=chunk_task.c.attempts + literal_column("1"),
            claim_token=chunk_task.c.claim_token + literal_column("1"),
            claimed_by=bindparam("worker"),
            claim_expires_at=now + bindparam("ttl_ms", type_=BigInteger),
            updated_at=now,
        )
        .returning(
            *(chunk_task.c[name] for name in _UNIT_COLUMNS),
            chunk_task.c.attempts,
            chunk_task.c.claim_token,
            run.scalar_subquery().label("export_name"),
            _max_attempts(chunk_task.c.run_id).label("max_attempts"),
        )
    )


def _is_claim() -> tuple[ColumnElement[bool], ...]:
    return (
        chunk_task.c.run_id == bindparam("run"),
        chunk_task.c.chunk_index == bindparam("index", type_=Integer),
        chunk_task.c.claim_token == bindparam("claim", type_=BigInteger),
    )


def _closing(status: str, now: ColumnElement[int]) -> Update:
    """Ends a claim that still stands, under a lease that still is the newest."""
    return (
        update(chunk_task)
        .where(*_is_claim(), chunk_task.c.status == "running", fence())
        .values(status=status, claim_expires_at=None, updated_at=now)
    )


def _progress(now: ColumnElement[int]) -> Any:
    task = chunk_task.c
    tries_left = task.attempts < chunk_run.c.max_chunk_attempts
    waiting = and_(task.status == "failed", task.is_final.is_(False), tries_left)
    next_at = case(
        (waiting, task.retry_at), (and_(task.status == "running", tries_left), task.claim_expires_at)
    )

    def count(condition: ColumnElement[bool]) -> ColumnElement[int]:
        return func.sum(case((condition, 1), else_=0))

    return (
        select(
            func.count().label("total"),
            *(count(task.status == name).label(name) for name in ("pending", "running", "completed")),
            count(waiting).label("waiting"),
            count(and_(task.status == "failed", ~waiting)).label("failed"),
            (func.min(next_at) - now).label("next_in_ms"),
        )
        .select_from(chunk_task.join(chunk_run, chunk_run.c.run_id == task.run_id))
        .where(task.run_id == bindparam("run"))
    )
