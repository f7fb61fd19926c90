"""One run of one export, under its lease: plan, execute, finalize."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from rivet_dagster.engine.errors import IntegrityError, RivetError, UsageError, error_object, representative
from rivet_dagster.engine.memory import prepare_memory
from rivet_dagster.engine.plan.incremental import cursor_of
from rivet_dagster.engine.plan.keys import window_of
from rivet_dagster.engine.plan.plan import CursorWindow, Plan
from rivet_dagster.engine.plan.planner import plan_export
from rivet_dagster.engine.run import resume
from rivet_dagster.engine.run.added import added_columns
from rivet_dagster.engine.run.drift import Drift, look_for_drift
from rivet_dagster.engine.run.early import READERS_AHEAD
from rivet_dagster.engine.run.events import RunEvent, RunNote, RunOutcome, RunPlan
from rivet_dagster.engine.run.faults import fault_point
from rivet_dagster.engine.run.fencing import FencedStore
from rivet_dagster.engine.run.options import lease_ttl_s, plan_hash, read_options, write_options
from rivet_dagster.engine.run.order import load_the_rest, work_order
from rivet_dagster.engine.run.quality import require_gate_columns
from rivet_dagster.engine.run.recorded import (
    carried_events,
    failed_event,
    new_header,
    partitions,
    planned_event,
    require_open,
    run_plan,
)
from rivet_dagster.engine.run.resume import Next
from rivet_dagster.engine.run.selected import lacks_folders, rerun
from rivet_dagster.engine.run.workers import WorkerPool, WorkOrder
from rivet_dagster.engine.sources.postgres.source import PostgresPlanner
from rivet_dagster.engine.state.lease import DEFAULT_CLAIM_TTL_S, LeaseKeeper
from rivet_dagster.engine.state.models import JournalEvent, RunFinish, RunHeader

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig
    from rivet_dagster.engine.run.engine import Engine
    from rivet_dagster.engine.run.finalize import Finalizer
    from rivet_dagster.engine.run.sealed import SealedPlan


class Session:
    """Holds the export's lease from enter to exit. Call ``plan``, then ``execute``, then ``finalize``."""

    def __init__(self, engine: Engine, export: ExportConfig, *, holder: str, lock_wait: float) -> None:
        self.engine = engine
        self.export = export
        self._holder = holder
        self._lock_wait = lock_wait
        self._stack = contextlib.ExitStack()
        self._planner: PostgresPlanner | None = None
        self._sealed: SealedPlan | None = None
        self._header: RunHeader | None = None
        self._plan: RunPlan | None = None
        self._skip_reason: str | None = None
        self._gave_up = False
        self._cursor: CursorWindow | None = None
        self._errors: list[RivetError] = []
        self._notes: list[str] = []
        self._pace: dict[str, Any] = {}
        self._decisions: tuple[JournalEvent, ...] = ()
        self._drift = Drift()
        self._whole = True
        self._going_on: str | None = None
        self._started = time.monotonic()

    def __enter__(self) -> Session:
        key = self.engine.lease_key(self.export.name)
        with self._naming_the_export():
            patient = self.engine.patient_state
            lease = patient.acquire(key, self._holder, wait_s=self._lock_wait, ttl_s=lease_ttl_s())
        claims = lease.ttl_s if self.export.shared else DEFAULT_CLAIM_TTL_S
        self.keeper = LeaseKeeper(self.engine.state, lease, claim_ttl_s=claims)
        self._stack.callback(self.keeper.release)
        self._stack.enter_context(self.keeper)
        self._state = patient.patient(self.keeper.patience)
        fault_point("after_lease")
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def header(self) -> RunHeader:
        assert self._header is not None, "plan() comes first"
        return self._header

    @property
    def _planned(self) -> RunPlan:
        assert self._plan is not None, "plan() comes first"
        return self._plan

    def plan(
        self,
        *,
        only: Collection[str] | None = None,
        fresh: bool = False,
        repair: bool = False,
        sealed: SealedPlan | None = None,
        going_on: str | None = None,
    ) -> RunPlan:
        """Plan a run, or continue the open one. ``only``: partition keys to run; None: all outstanding.

        fresh: continue nothing. repair: what the last complete run read is read again and replaced: its
        chosen units, or everything from the start without a choice. sealed: run, or continue, this plan
        and no other (AlreadyAppliedError: it is done). going_on: likewise the run with this id.
        Nothing is written at the destination. Raises the error tree, naming export and key.
        """
        self._whole, self._going_on = only is None, going_on
        with self._naming_the_export():
            if going_on is not None:
                require_open(self._state, going_on)
            self._open_source()
            identity = self.engine.config.source.identity()
            if other := self._state.shared_with:
                self._notes.append(f"the state beside the config is also that of {other}")
            self._hash = plan_hash(self.export, self._planner_of_run().facts, identity)
            self._sealed = sealed
            if sealed is not None:
                facts = self._planner_of_run().facts
                sealed.require_applicable(self._state, self._hash, facts.columns)
            restart = repair and only is None
            continued = self._continue_open_run(only, fresh=fresh or restart)
            # what was chosen of an open run that is given up stands for that run, not for the one before
            another = self._gave_up and self.export.partition_by is None
            if continued is None and only is not None and (repair or not another):
                continued = self._rerun_selected(only, repair=repair)
            if continued is None:
                continued = self._plan_fresh(identity, restart=restart)
        self._plan = continued
        fault_point("after_plan")
        return continued

    def execute(self) -> Iterator[RunEvent]:
        """Run the outstanding units; events come as they happen, finished units first.

        Raises nothing for failed units: ``finalize`` does. The lease is checked before each commit.
        """
        plan = self._planned
        for note in self._notes:
            yield RunNote(note)
        yield from carried_events(self._state, plan)
        if self._skip_reason is not None:
            return
        store = self._store(self.header.prefix)
        store.expel()
        if not plan.outstanding:
            return
        store.prepare()
        store.unmark({u.folder for u in plan.units if u.index in plan.outstanding})
        fault_point("after_marker_removed")
        prepare_memory()
        pool = WorkerPool(self._work_order(plan))
        try:
            yield from self._events(pool, plan)
        finally:
            self._errors.extend(pool.errors)
            self._pace, self._decisions = pool.pacer.figures(), pool.pacer.decisions
        if (failure := self.failure()) is not None:
            self._record_failure(failure)

    def _events(self, pool: WorkerPool, plan: RunPlan) -> Iterator[RunEvent]:
        """Of our own workers, and of other processes' if the run is shared."""
        if not (self.export.shared and self._whole):
            return pool.events()
        from rivet_dagster.engine.run.follow import shared_events

        done = {unit.index for unit in plan.units} - plan.outstanding
        snapshot = self._planner_of_run().snapshot_id()
        lease = self.keeper.lease
        return shared_events(pool, self._state, plan.run_id, lease, snapshot=snapshot, done=done)

    def finalize(self) -> RunOutcome:
        """Manifest, verification, ``_SUCCESS``, cursor. Raises the run's error when a unit is not done."""
        with self._naming_the_export():
            return self._finalize(self._planned)

    def _finalize(self, plan: RunPlan) -> RunOutcome:
        if self._errors:
            raise representative(self._errors)
        self.keeper.verify()
        finalizer = self._finalizer()
        if self._skip_reason is not None:
            return finalizer.skipped(self._skip_reason)
        progress = self._state.progress(self.header.run_id)
        if progress.completed < progress.total:
            missing = progress.total - progress.completed
            text = f"{missing} units are not complete yet; materialize their partitions too"
            raise UsageError(text, code="RIVET_PARTITION_UNKNOWN", export=self.export.name)
        fault_point("before_finalize")
        try:
            return finalizer.finish(plan)
        except IntegrityError as error:
            self._record_failure(error)
            raise

    @contextlib.contextmanager
    def _naming_the_export(self) -> Iterator[None]:
        """No layer below knows it always."""
        try:
            yield
        except RivetError as error:
            error.export = error.export or self.export.name
            raise

    def _open_source(self) -> None:
        """Open the planning connection, and fix now what the readers will hold the source to."""
        source = self.engine.source(self.export)
        snapshot = self.export.reads_one_snapshot
        options = write_options(self.export)
        opened = source.planner(
            snapshot=snapshot, readers=READERS_AHEAD, meanwhile=lambda: load_the_rest(options)
        )
        planner = self._planner = self._stack.enter_context(opened)
        reading = read_options(options, self.engine.config.tuning_for(self.export))
        self._new_reader = source.readers(planner, options.format, reading)
        found = planner.facts.columns
        self._columns = (*found, *added_columns(self.export, found))
        require_gate_columns(self.export, self._columns)

    def _planner_of_run(self) -> PostgresPlanner:
        assert self._planner is not None
        return self._planner

    @property
    def complete(self) -> bool:
        """Every unit of the run is committed (a run of selected partitions may leave others open)."""
        progress = self._state.progress(self.header.run_id)
        return progress.completed == progress.total

    @property
    def errors(self) -> tuple[RivetError, ...]:
        return tuple(self._errors)

    def failure(self) -> RivetError | None:
        """The error that stands for this session's failed units, None without any."""
        return representative(self._errors) if self._errors else None

    def _record_failure(self, error: RivetError) -> None:
        """Keep the metric row of a failed attempt; the run stays open, so that it can be continued."""
        if error.code == "RIVET_STATE_LEASE_LOST":
            return
        finish = RunFinish(
            "failed",
            metrics={
                "duration_ms": int((time.monotonic() - self._started) * 1000),
                "retries": self._state.retries(self.header.run_id),
            },
            error=error_object(error, with_message=False),
            events=(*self._decisions, failed_event(error)),
        )
        self._state.record_failure(self.header.run_id, self.keeper.lease, finish)

    def _store(self, prefix: str) -> FencedStore:
        return FencedStore(self.engine.store(self.export, prefix), self.export.name, self.keeper.verify)

    def _continue_open_run(self, only: Collection[str] | None, *, fresh: bool) -> RunPlan | None:
        state = self._state
        run = state.open_run(self.export.name)
        if run is None:
            return None
        store = self._store(run.prefix)
        store.expel()
        selected = only is not None or self._going_on is not None
        if self._sealed is not None:  # its own run is continued, any other is in its way
            selected = self._sealed.began(state, run.run_id)
            fresh = not selected
        decision = resume.decide(run, store, self.export, self._hash, selected=selected, fresh=fresh)
        if decision.next is Next.ROLL_FORWARD:
            self._header = run
            try:
                self._finalizer().roll_forward()
                self._notes.append(f"completed run {run.run_id}: {decision.reason}")
            except IntegrityError:
                if not fresh:  # asked for a fresh run, a person knows that this one cannot be completed
                    raise
                state.interrupt_run(run.run_id, self.keeper.lease)
                self._notes.append(f"run {run.run_id} is given up: its published files are not whole")
            self._header = None
            return None
        if decision.next is Next.ABANDON:
            why = JournalEvent("RunInterrupted", {"reason": decision.reason})
            state.interrupt_run(run.run_id, self.keeper.lease, events=[why])
            self._notes.append(f"run {run.run_id} is given up: {decision.reason}")
            self._gave_up = True
            return None
        self._look_for_drift()
        self._header = run
        state.reset_running(run.run_id, self.keeper.lease)
        rows = state.units(run.run_id)
        if only is not None and lacks_folders(self.export, rows, only):
            state.interrupt_run(run.run_id, self.keeper.lease)
            self._notes.append(f"run {run.run_id} goes on as another one, with partitions that it lacks")
            return self._rerun_selected(only, run)
        if self.export.keyset_incremental:
            facts = self._planner_of_run().facts
            self._cursor = window_of([r.unit for r in rows], cursor_of(self.export), facts)
        chosen = resume.select_units(rows, only)
        state.requeue(run.run_id, chosen, self.keeper.lease)
        state.add_journal(run.run_id, self.keeper.lease, [JournalEvent("RunResumed", {"units": len(chosen)})])
        outstanding = frozenset(
            r.unit.index for r in rows if r.unit.index in chosen and r.status != "completed"
        )
        self._notes.append(
            f"run {run.run_id} goes on: {len(outstanding)} of {len(rows)} units are outstanding"
        )
        return run_plan(run, rows, outstanding, resumed=True, reason=decision.reason)

    def _rerun_selected(
        self, only: Collection[str], base: RunHeader | None = None, *, repair: bool = False
    ) -> RunPlan | None:
        """Units of the last complete run, or of ``base``, again in a new run that carries the others."""
        state = self._state
        at = partial(self.engine.store, self.export)
        found = rerun(state, at, self.export, self._planner_of_run(), self._hash, only, base)
        if isinstance(found, str):
            if repair and self.export.accumulates:  # a new run would go on after the rows in question
                raise UsageError(f"the chosen partitions cannot be run again: {found}")
            self._notes.append(f"the chosen partitions cannot be run alone: {found}; a new run is planned")
            return None
        self._look_for_drift()
        base, self._cursor = found.base, found.window
        prefix = self.engine.prefix(self.export) if base is None else base.prefix
        header = self._new_header(prefix, found.mode, found.consistency, parent=base.run_id if base else None)
        state.begin_run(header, found.units, self.keeper.lease, completed=found.carried)
        self._header = header
        return run_plan(
            header, state.units(header.run_id), found.chosen, resumed=True, reason="chosen partitions again"
        )

    def _plan_fresh(self, identity: str, *, restart: bool) -> RunPlan:
        state, planner, sealed = self._state, self._planner_of_run(), self._sealed
        if sealed is not None:  # an open run of it may have been completed just now
            sealed.refuse_applied(state)
        if self._going_on is not None:  # so may it, and another one was not asked for
            require_open(state, self._going_on)
        prefix = self.engine.prefix(self.export) if sealed is None else sealed.prefix
        stream = f"{identity}/{planner.facts.stream}"
        cursor = None if restart else resume.cursor_to_go_on(state, self.export, prefix, stream)
        watermark = None if cursor is None else cursor.value

        def plan_now() -> Plan:
            return plan_export(self.export, planner, watermark, resume.versions_read(state, cursor))

        plan = plan_now() if sealed is None else sealed.planned(watermark, plan_now)
        self._look_for_drift()
        self._notes.extend(plan.notes)
        self._cursor = plan.cursor
        self._skip_reason = plan.skip_reason
        header = self._new_header(prefix, plan.strategy, plan.consistency)
        self._header = header
        if plan.skip_reason is None:
            events = [planned_event(plan), *([] if sealed is None else [sealed.event])]
            state.begin_run(header, plan.units, self.keeper.lease, events=events)
        return RunPlan(
            header.run_id,
            False,
            plan.units,
            frozenset(u.index for u in plan.units),
            partitions(plan.units),
            plan.strategy,
            plan.reason,
            planner.facts.est_rows,
            plan.consistency,
        )

    def _look_for_drift(self) -> None:
        accepted = self._state.accepted_schema(self.export.name)
        self._drift = look_for_drift(self.export, accepted, self._columns)
        self._notes.extend(self._drift.schema_lines)

    def _new_header(
        self, prefix: str, mode: str, consistency: str | None, *, parent: str | None = None
    ) -> RunHeader:
        kept = {"plan_hash": self._hash, "parent_run_id": parent, "holder": self._holder}
        config = self.engine.config
        return new_header(config, self.export, self._columns, prefix, mode, consistency, **kept)

    def _work_order(self, plan: RunPlan) -> WorkOrder:
        return work_order(
            self.engine,
            self.export,
            plan.run_id,
            only=None if self._whole else plan.outstanding,
            keeper=self.keeper,
            store=self._store(self.header.prefix),
            facts=self._planner_of_run().facts,
            columns=self._columns,
            new_reader=self._new_reader,
            parallel=min(self.export.parallel, len(plan.outstanding)),
        )

    def _finalizer(self) -> Finalizer:
        from rivet_dagster.engine.run.finalize import Finalizer

        assert self._planner is not None
        return Finalizer(
            state=self._state,
            lease=self.keeper.lease,
            store=self._store(self.header.prefix),
            export=self.export,
            header=self.header,
            columns=self._columns,
            facts=self._planner.facts,
            window=self._cursor,
            notes=tuple(self._notes),
            drift=self._drift,
            started=self._started,
            pace=self._pace,
            decisions=self._decisions,
        )
