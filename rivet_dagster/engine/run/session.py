"""One run of one export, under its lease: plan, execute, finalize."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from rivet_dagster.engine import names
from rivet_dagster.engine.errors import (
    IntegrityError,
    RivetError,
    SchemaDriftError,
    UsageError,
    error_object,
    representative,
)
from rivet_dagster.engine.memory import use_lean_pool
from rivet_dagster.engine.names import new_run_id
from rivet_dagster.engine.plan.keys import window_of
from rivet_dagster.engine.plan.plan import CursorWindow, Plan
from rivet_dagster.engine.plan.planner import plan_export
from rivet_dagster.engine.plan.units import Part
from rivet_dagster.engine.run import resume
from rivet_dagster.engine.run.added import added_columns, extender
from rivet_dagster.engine.run.drift import schema_drift
from rivet_dagster.engine.run.events import RunEvent, RunNote, RunOutcome, RunPlan
from rivet_dagster.engine.run.faults import fault_point
from rivet_dagster.engine.run.fencing import FencedStore
from rivet_dagster.engine.run.figures import measure
from rivet_dagster.engine.run.finalize import Finalizer
from rivet_dagster.engine.run.options import (
    checksum_key,
    checksums,
    lease_ttl_s,
    plan_hash,
    read_options,
    write_options,
)
from rivet_dagster.engine.run.quality import require_gate_columns
from rivet_dagster.engine.run.recorded import carried_event, partitions, run_plan
from rivet_dagster.engine.run.resume import Next
from rivet_dagster.engine.run.selected import lacks_folders, rerun
from rivet_dagster.engine.run.workers import WorkerPool, WorkOrder
from rivet_dagster.engine.sources.postgres.source import PostgresPlanner
from rivet_dagster.engine.state.lease import LeaseKeeper
from rivet_dagster.engine.state.models import RunFinish, RunHeader
from rivet_dagster.engine.write import new_part_writer

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig
    from rivet_dagster.engine.run.engine import Engine


class Session:
    """Holds the export's lease from enter to exit. Call ``plan``, then ``execute``, then ``finalize``."""

    def __init__(self, engine: Engine, export: ExportConfig, *, holder: str, lock_wait: float) -> None:
        self.engine = engine
        self.export = export
        self._holder = holder
        self._lock_wait = lock_wait
        self._stack = contextlib.ExitStack()
        self._planner: PostgresPlanner | None = None
        self._header: RunHeader | None = None
        self._plan: RunPlan | None = None
        self._skip_reason: str | None = None
        self._cursor: CursorWindow | None = None
        self._errors: list[RivetError] = []
        self._notes: list[str] = []
        self._started = time.monotonic()

    def __enter__(self) -> Session:
        state = self.engine.state
        key = self.engine.lease_key(self.export.name)
        with self._naming_the_export():
            lease = state.acquire(key, self._holder, wait_s=self._lock_wait, ttl_s=lease_ttl_s())
        self._stack.callback(state.release, lease)
        self.keeper = self._stack.enter_context(LeaseKeeper(state, lease))
        fault_point("after_lease")
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def header(self) -> RunHeader:
        if self._header is None:
            raise UsageError("plan() comes first")
        return self._header

    def plan(self, *, only: Collection[str] | None = None, fresh: bool = False) -> RunPlan:
        """Plan a run, or continue the open one. ``only``: partition keys to run; None: all outstanding.

        Nothing is written at the destination. Raises the error tree, naming export and key.
        """
        with self._naming_the_export():
            self._open_source()
            identity = self.engine.config.source.identity()
            self._hash = plan_hash(self.export, self._planner_of_run().facts, identity)
            continued = self._continue_open_run(only, fresh=fresh)
            if continued is None and only is not None:
                continued = self._rerun_selected(only)
            if continued is None:
                continued = self._plan_fresh(identity)
        self._plan = continued
        fault_point("after_plan")
        return continued

    def execute(self) -> Iterator[RunEvent]:
        """Run the outstanding units; events come as they happen, finished units first.

        Raises nothing for failed units: ``finalize`` does. The lease is checked before each commit.
        """
        plan = self._require_plan()
        for note in self._notes:
            yield RunNote(note)
        yield from self._carried(plan)
        if self._skip_reason is not None:
            return
        store = self._store(self.header.prefix)
        store.expel()
        if not plan.outstanding:
            return
        store.prepare()
        # readers of the folder rely on the marker; it comes back when the folder is exact again
        store.delete(names.SUCCESS)
        for folder in {u.folder for u in plan.units if u.index in plan.outstanding} - {""}:
            if store.size(f"{folder}/{names.SUCCESS}") is not None:
                store.delete(f"{folder}/{names.SUCCESS}")
        fault_point("after_marker_removed")
        use_lean_pool()
        pool = WorkerPool(self._work_order(plan), min(self.export.parallel, len(plan.outstanding)))
        try:
            yield from pool.events()
        finally:
            self._errors.extend(pool.errors)
        if (failure := self.failure()) is not None:
            self._record_failure(failure)

    def finalize(self) -> RunOutcome:
        """Manifest, verification, ``_SUCCESS``, cursor. Raises the run's error when a unit is not done."""
        with self._naming_the_export():
            return self._finalize(self._require_plan())

    def _finalize(self, plan: RunPlan) -> RunOutcome:
        if self._errors:
            raise representative(self._errors)
        self.keeper.verify()
        finalizer = self._finalizer()
        if self._skip_reason is not None:
            return finalizer.skipped(self._skip_reason)
        progress = self.engine.state.progress(self.header.run_id)
        if progress.completed < progress.total:
            raise self._failure(progress.total - progress.completed)
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
        planner = self._planner = self._stack.enter_context(source.planner(snapshot=snapshot))
        options = write_options(self.export)
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
        progress = self.engine.state.progress(self.header.run_id)
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
            metrics={"duration_ms": int((time.monotonic() - self._started) * 1000)},
            error=error_object(error, with_message=False),
        )
        self.engine.state.record_failure(self.header.run_id, self.keeper.lease, finish)

    def _store(self, prefix: str) -> FencedStore:
        return FencedStore(self.engine.store(prefix), self.export.name, self.keeper.verify)

    def _require_plan(self) -> RunPlan:
        if self._plan is None:
            raise UsageError("plan() comes first")
        return self._plan

    def _failure(self, missing: int) -> RivetError:
        return UsageError(
            f"{missing} units are not complete yet; materialize their partitions too",
            code="RIVET_PARTITION_UNKNOWN",
            export=self.export.name,
        )

    def _continue_open_run(self, only: Collection[str] | None, *, fresh: bool) -> RunPlan | None:
        state = self.engine.state
        run = state.open_run(self.export.name)
        if run is None:
            return None
        store = self._store(run.prefix)
        store.expel()
        decision = resume.decide(run, store, self.export, self._hash, selected=only is not None, fresh=fresh)
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
            state.interrupt_run(run.run_id, self.keeper.lease)
            self._notes.append(f"run {run.run_id} is given up: {decision.reason}")
            return None
        self._header = run
        state.reset_running(run.run_id, self.keeper.lease)
        rows = state.units(run.run_id)
        if only is not None and lacks_folders(self.export, rows, only):
            state.interrupt_run(run.run_id, self.keeper.lease)
            self._notes.append(f"run {run.run_id} goes on as another one, with partitions that it lacks")
            return self._rerun_selected(only, run)
        if self.export.keyset_incremental:
            self._cursor = window_of([r.unit for r in rows], self._planner_of_run().facts)
        chosen = resume.select_units(rows, only)
        state.requeue(run.run_id, chosen, self.keeper.lease)
        outstanding = frozenset(
            r.unit.index for r in rows if r.unit.index in chosen and r.status != "completed"
        )
        self._notes.append(
            f"run {run.run_id} goes on: {len(outstanding)} of {len(rows)} units are outstanding"
        )
        return run_plan(run, rows, outstanding, resumed=True, reason=decision.reason)

    def _rerun_selected(self, only: Collection[str], base: RunHeader | None = None) -> RunPlan | None:
        """Units of the last complete run, or of ``base``, again in a new run that carries the others."""
        state = self.engine.state
        found = rerun(state, self.export, self._planner_of_run(), self._hash, only, base)
        if found is None:
            self._notes.append("the chosen partitions belong to no run that can be continued: all are run")
            return None
        base = found.base
        prefix = str(self.engine.prefix(self.export)) if base is None else base.prefix
        header = self._new_header(prefix, found.mode, found.consistency, parent=base.run_id if base else None)
        state.begin_run(header, found.units, self.keeper.lease, completed=found.carried)
        self._header = header
        return run_plan(
            header, state.units(header.run_id), found.chosen, resumed=True, reason="chosen partitions again"
        )

    def _plan_fresh(self, identity: str) -> RunPlan:
        state, planner = self.engine.state, self._planner
        assert planner is not None
        prefix = str(self.engine.prefix(self.export))
        cursor = resume.cursor_to_go_on(state, self.export, prefix, f"{identity}/{planner.facts.stream}")
        watermark = None if cursor is None else cursor.value
        plan: Plan = plan_export(self.export, planner, watermark, resume.versions_read(state, cursor))
        self._look_for_drift()
        self._notes.extend(plan.notes)
        self._cursor = plan.cursor
        self._skip_reason = plan.skip_reason
        header = self._new_header(prefix, plan.strategy, plan.consistency)
        self._header = header
        if plan.skip_reason is None:
            state.begin_run(header, plan.units, self.keeper.lease)
        return RunPlan(
            header.run_id,
            False,
            plan.units,
            frozenset(u.index for u in plan.units),
            partitions(plan.units),
            plan.strategy,
            plan.reason,
            planner.facts.est_rows,
        )

    def _look_for_drift(self) -> None:
        """Note, or refuse, what the source changed about its columns since the last complete run."""
        accepted = self.engine.state.accepted_schema(self.export.name)
        if accepted is None or self.export.on_schema_drift == "continue":
            return
        changes = schema_drift(accepted, self._columns)
        if changes and self.export.on_schema_drift == "fail":
            raise SchemaDriftError("; ".join(changes), export=self.export.name)
        self._notes.extend(changes)

    def _new_header(
        self, prefix: str, mode: str, consistency: str | None, *, parent: str | None = None
    ) -> RunHeader:
        columns = [c.as_json() for c in self._columns]
        return RunHeader(
            run_id=new_run_id(self.export.name),
            export_name=self.export.name,
            prefix=prefix,
            mode=mode,
            plan_hash=self._hash,
            parent_run_id=parent,
            consistency=consistency,
            schema_json=json.dumps(columns),
            source_identity=self.engine.config.source.identity(),
            max_chunk_attempts=self._max_attempts(),
            holder=self._holder,
        )

    def _max_attempts(self) -> int:
        return self.engine.config.attempts_for(self.export)

    def _carried(self, plan: RunPlan) -> Iterator[RunEvent]:
        """Report the units that are done already, once each, with their parts."""
        if not plan.resumed:
            return
        parts: dict[int, list[Part]] = {}
        for row in self.engine.state.parts(plan.run_id):
            parts.setdefault(row.chunk_index, []).append(row.as_part())
        for unit_row in self.engine.state.units(plan.run_id):
            if unit_row.status == "completed":
                yield carried_event(unit_row, tuple(parts.get(unit_row.unit.index, ())))

    def _work_order(self, plan: RunPlan) -> WorkOrder:
        source = self.engine.source(self.export)
        options = write_options(self.export)
        tuning = self.engine.config.tuning_for(self.export)
        planner = self._planner_of_run()
        columns = source.file_columns(self._columns, options.format)
        run = self.engine.state.get_run(plan.run_id)
        assert run is not None
        assert run.created_at is not None
        return WorkOrder(
            run_id=plan.run_id,
            state=self.engine.state,
            keeper=self.keeper,
            store=self._store(self.header.prefix),
            options=options,
            new_writer=lambda path: new_part_writer(path, columns, options),
            new_reader=self._new_reader,
            checksum=checksums(options.format, checksum_key(self.export, planner.facts)),
            retry_backoff_ms=tuning.retry_backoff_ms,
            only=plan.outstanding,
            measure=measure(self.export, columns),
            extend=extender(self.export, columns, run.created_at),
            shows_schema=not self.export.skip_empty,
        )

    def _finalizer(self) -> Finalizer:
        assert self._planner is not None
        return Finalizer(
            state=self.engine.state,
            lease=self.keeper.lease,
            store=self._store(self.header.prefix),
            export=self.export,
            header=self.header,
            columns=self._columns,
            facts=self._planner.facts,
            window=self._cursor,
            notes=tuple(self._notes),
            started=self._started,
        )
