"""A worker of a run that another process leads: joins it, from any host, until the run is over.

The lead plans, renews the lease and ends the run; a guest needs nothing but the state, the same config,
the source and the destination. It claims, reads, writes and commits with the very code of the lead's own
workers. When the lead is gone without a word, a guest is the one who can go on as the lead (ADR 0034).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Literal

from rivet_dagster.engine.errors import BusyError, RefusalError, representative
from rivet_dagster.engine.memory import prepare_memory
from rivet_dagster.engine.run.added import added_columns
from rivet_dagster.engine.run.events import RunEvent, RunNote
from rivet_dagster.engine.run.fencing import FencedStore
from rivet_dagster.engine.run.options import plan_hash, read_options, write_options
from rivet_dagster.engine.run.order import work_order
from rivet_dagster.engine.run.workers import WorkerPool
from rivet_dagster.engine.state.lease import GuestKeeper, LeaseKeeper
from rivet_dagster.engine.state.models import RunHeader
from rivet_dagster.engine.state.sharing import Invitation

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig
    from rivet_dagster.engine.run.engine import Engine

#: Between looks for an invitation; the end of a run is looked for ever more rarely.
_LOOK_S: Final = 0.5
_LOOK_MOST_S: Final = 5.0

Ending = Literal["over", "work left", "orphaned"]


class Guest:
    """Works on the runs of one export. led_by: join only what this holder leads, None for anybody's."""

    def __init__(self, engine: Engine, export: ExportConfig, *, led_by: str | None = None) -> None:
        self._engine = engine
        self._export = export
        self._led_by = led_by
        self._key = engine.lease_key(export.name)
        self._state = engine.patient_state

    def await_invitation(
        self, wait_s: float, is_over: Callable[[], bool] = lambda: False, *, after: str | None = None
    ) -> Invitation | None:
        """The invitation to a run that is led now; None after ``wait_s`` seconds, or when ``is_over``.

        after: that run has lost its lead; None as well once it is complete, and an invitation that is
        orphaned when its next lead is gone too.
        """
        deadline = time.monotonic() + wait_s
        while True:
            found = self._invitation()
            if found is not None and found.standing == "led":
                return found
            if found is not None and found.standing == "orphaned" and found.run_id == after:
                return found
            if is_over() or (after is not None and self._is_done(after)) or time.monotonic() >= deadline:
                return None
            time.sleep(min(_LOOK_S, max(0.05, deadline - time.monotonic())))

    def work(self, invited: Invitation) -> Iterator[RunEvent]:
        """Work until no unit is left for anybody. Raises what ended this process's part before that.

        Units that failed are the lead's to report. Raises RefusalError RIVET_PLAN_DRIFT when config,
        table or destination are not here what they are for the lead.
        """
        run = self._state.get_run(invited.run_id)
        if run is None:
            return
        ttl_s = invited.lease.ttl_s
        with GuestKeeper(self._engine.state, invited.lease, claim_ttl_s=ttl_s) as keeper:
            pool = self._pool(run, invited, keeper)
            yield from pool.events()
        if pool.errors:
            error = representative(pool.errors)
            if error.code == "RIVET_STATE_LEASE_LOST":
                yield RunNote(f"{error.message}; what was under way here does not count")
            elif pool.broke_off:
                raise error

    def await_end(self, invited: Invitation) -> Ending:
        """Until the run is over, has units to give out again, or has no lead although it is not over."""
        state, pause = self._state, _LOOK_S
        while True:
            run = state.get_run(invited.run_id)
            found = self._invitation(anybody=True)
            if run is None or run.status != "in_progress" or found is None or found.standing == "ended":
                return "over"
            if found.standing == "orphaned":
                # what a snapshot's holder had cut means nothing without it: nobody can go on
                return "orphaned" if run.consistency == "chunk" else "over"
            if found.lease.token != invited.lease.token or state.has_claimable_later(invited.run_id):
                return "work left"
            time.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - spreads the workers
            pause = min(_LOOK_MOST_S, pause * 1.5)

    def _is_done(self, run_id: str) -> bool:
        run = self._state.get_run(run_id)
        return run is None or run.status != "in_progress"

    def _invitation(self, *, anybody: bool = False) -> Invitation | None:
        found = self._state.invitation(self._export.name, self._key)
        if found is None or anybody or self._led_by in {None, found.lease.holder}:
            return found
        return None

    def _pool(self, run: RunHeader, invited: Invitation, keeper: LeaseKeeper) -> WorkerPool:
        engine, export = self._engine, self._export
        source = engine.source(export)
        options = write_options(export)
        with source.planner(snapshot=False) as planner:
            if plan_hash(export, planner.facts, engine.config.source.identity()) != run.plan_hash:
                raise RefusalError(
                    f"run {run.run_id} was planned by another config, or for another shape of the table",
                    code="RIVET_PLAN_DRIFT",
                    export=export.name,
                )
            reading = read_options(options, engine.config.tuning_for(export))
            new_reader = source.readers(planner, options.format, reading, snapshot=invited.snapshot)
            facts = planner.facts
        prepare_memory()
        store = FencedStore(engine.store(export, run.prefix), export.name, keeper.verify)
        store.prepare()
        order = work_order(
            engine,
            export,
            run.run_id,
            only=None,
            keeper=keeper,
            store=store,
            facts=facts,
            columns=(*facts.columns, *added_columns(export, facts.columns)),
            new_reader=new_reader,
            parallel=export.parallel,
            leads=False,
        )
        return WorkerPool(order)


def assist(
    guest: Guest,
    *,
    wait_s: float,
    tell: Callable[[RunEvent], None],
    lead: Callable[[str], None],
    is_over: Callable[[], bool] = lambda: False,
) -> bool:
    """Join the run of the export, and stay until it is over. False: there was none to join.

    lead: goes on with the run of this id as its lead; may raise BusyError when another was faster.
    """
    invited = guest.await_invitation(wait_s, is_over)
    if invited is None:
        return False
    while invited is not None:
        if invited.standing == "led":
            for event in guest.work(invited):
                tell(event)
        ending = guest.await_end(invited)
        if ending == "over":
            return True
        if ending == "orphaned":
            try:
                lead(invited.run_id)
            except BusyError as error:
                if error.code != "RIVET_STATE_RUN_IN_PROGRESS":
                    raise
            else:
                return True
        invited = guest.await_invitation(wait_s, is_over, after=invited.run_id)
    return True
