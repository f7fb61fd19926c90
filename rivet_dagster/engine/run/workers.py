"""The one runner: workers claim units, read them, write them, commit them."""

from __future__ import annotations

import contextlib
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from msgspec import Struct

from rivet_dagster.engine.errors import BusyError, RivetError, as_rivet_error, error_object
from rivet_dagster.engine.names import part_name
from rivet_dagster.engine.plan.units import Part, WorkUnit
from rivet_dagster.engine.run.events import RunEvent, RunNote, UnitCommitted, UnitFailed
from rivet_dagster.engine.run.faults import fault_point
from rivet_dagster.engine.run.fencing import FencedStore
from rivet_dagster.engine.run.pacing import Pacer, PaceRules
from rivet_dagster.engine.run.retry import backoff_s
from rivet_dagster.engine.run.sink import BatchLimit, Checksum, Extend, Measure, UnitSink, UnitStream
from rivet_dagster.engine.sources.base import SourceWatch, UnitReader
from rivet_dagster.engine.state.lease import LeaseKeeper
from rivet_dagster.engine.state.patience import Patience
from rivet_dagster.engine.state.store import Claim, StateStore
from rivet_dagster.engine.write.base import PartWriter, WriteOptions

_IDLE_S: Final = 0.2  # between looks for a unit that another worker may give back
_IDLE_MOST_S: Final = 2.0  # the same where the other worker may be another process: nobody wakes us

#: Attempts of a unit that may end for others' sake before they count like any that fail.
_UNCOUNTED: Final = 5

#: A new attempt at the unit cannot help; a new run, planned afresh, can.
PLAN_IS_STALE = frozenset({"RIVET_SOURCE_SNAPSHOT_LOST", "RIVET_SOURCE_SCHEMA_CHANGED"})


class WorkOrder(Struct, frozen=True):
    """Everything that the workers of one run share."""

    run_id: str
    state: StateStore
    keeper: LeaseKeeper
    store: FencedStore
    options: WriteOptions
    new_writer: Callable[[Path], PartWriter]
    new_reader: Callable[[], UnitReader]
    new_watch: Callable[[], SourceWatch]
    pace: PaceRules
    checksum: Checksum | None
    retry_backoff_ms: int
    only: Collection[int] | None
    measure: Measure | None = None
    extend: Extend | None = None
    limit: BatchLimit | None = None
    read_back: bool = False
    shows_schema: bool = True  # a run without rows writes a part that has the columns
    label: str = ""  # what the names of this process's workers begin with
    shared: bool = False  # workers of other processes have units of the same run
    gives_up_after: int | None = None  # failures in a row that end this process's part of the run


class WorkerPool:
    """Runs the workers of ``order.pace`` over one run's units and yields what happens, as it happens.

    A value that cannot be represented fails its own unit and the others go on; whatever is wrong
    with the surroundings (``RivetError.stops_run``) stops the claiming of further units.
    """

    def __init__(self, order: WorkOrder) -> None:
        self._order = order
        self._events: queue.SimpleQueue[RunEvent | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        keeper = order.keeper
        self._state = order.state.patient(Patience(keeper.lease.ttl_s, keeper.check, self._stop.wait))
        self._readers: list[UnitReader] = []
        self._lock = threading.Lock()
        self._ended = threading.Condition()  # notified when a unit is committed or given back
        self._settled = 0  # how often that was
        self._threads: list[threading.Thread] = []
        self._excused: Counter[int] = Counter()
        self._in_a_row = 0
        self.pacer = Pacer(order.pace, order.new_watch, lambda text: self._events.put(RunNote(text)))
        self.errors: list[RivetError] = []
        self.broke_off = False

    def events(self) -> Iterator[RunEvent]:
        """Start the workers; ends when all of them have ended. Closing it early stops them."""
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"rivet-worker-{number}", daemon=True)
            for number in range(self._order.pace.parallel)
        ]
        self._order.keeper.on_loss = self._lose_lease
        with self.pacer.watching():
            for thread in self._threads:
                thread.start()
            running = len(self._threads)
            try:
                while running:
                    event = self._events.get()
                    if event is None:
                        running -= 1
                    else:
                        yield event
            finally:
                self.stop()
                for thread in self._threads:
                    thread.join()

    def owns(self, worker: str) -> bool:
        """Whether ``worker`` is one of this process."""
        return worker.startswith(f"{self._order.label}w")

    def tell(self, event: RunEvent) -> None:
        """Let ``events`` yield it too."""
        self._events.put(event)

    def stop(self) -> None:
        """Claim nothing more and break the reads that are under way."""
        self._stop.set()
        self.pacer.end()
        if any(thread.is_alive() for thread in self._threads):
            with self._lock:
                readers = list(self._readers)
            for reader in readers:
                reader.cancel()

    def _run(self, number: int) -> None:
        try:
            self._work(f"{self._order.label}w{number}")
        except BaseException as error:  # noqa: BLE001 - a worker must always report its end
            self._fail_run(as_rivet_error(error))
        finally:
            self._events.put(None)

    def _lose_lease(self, error: RivetError) -> None:
        """What is being read will not count: nobody waits for the end of it."""
        self._fail_run(error)
        self.stop()

    def _fail_run(self, error: RivetError) -> None:
        with self._lock:
            self.errors.append(error)
        self._break_off()

    def _break_off(self) -> None:
        """Claim nothing more: what is wrong is wrong for every unit."""
        self.broke_off = True
        self._stop.set()
        self.pacer.end()

    def _work(self, worker: str) -> None:
        order = self._order
        reader = order.new_reader()
        with self._lock:
            self._readers.append(reader)
        self.pacer.add(reader)
        behind: UnitStream | None = None  # the unit before, which may still be written
        idle = _IDLE_S
        try:
            while not self._stop.is_set():
                order.keeper.check()
                seen = self._settled
                with self.pacer.turn() as may_begin:
                    if not may_begin:
                        return
                    claim = self._claim(worker)
                    if claim is not None:
                        idle = _IDLE_S
                        behind = self._attempt(claim, reader, behind)
                        continue
                # a unit may wait for its next attempt, or one that is under way may yet fail
                if not self._state.has_claimable_later(order.run_id, only=order.only):
                    return
                self._await_settled(seen, idle)
                if order.shared:
                    idle = min(_IDLE_MOST_S, idle * random.uniform(1.2, 1.6))  # noqa: S311 - spreads them
        finally:
            reader.close()
            if behind is not None:
                behind.join()

    def _claim(self, worker: str) -> Claim | None:
        order = self._order
        return self._state.claim(
            order.run_id, worker, order.keeper.lease, only=order.only, ttl_s=order.keeper.claim_ttl_s
        )

    def _await_settled(self, seen: int, seconds: float) -> None:
        """Until more than ``seen`` attempts are settled, or for a while."""
        with self._ended:
            self._ended.wait_for(lambda: self._settled != seen or self._stop.is_set(), seconds)

    def _attempt(self, claim: Claim, reader: UnitReader, behind: UnitStream | None) -> UnitStream:
        """One attempt at one unit: read here, encoded, published and committed on the stream's thread."""
        order = self._order
        started = time.monotonic()
        held = contextlib.ExitStack()
        held.enter_context(order.keeper.holding(claim))

        def name(part: int) -> str:
            plain = part_name(order.run_id, claim.unit.index, claim.attempt, part, order.options.extension)
            return f"{claim.unit.folder}/{plain}" if claim.unit.folder else plain

        def settle(outcome: list[Part] | BaseException) -> None:
            with held:
                self._settle(claim, outcome, reader, started)

        def verify() -> None:
            order.keeper.check()
            self._state.confirm_claim(claim, order.keeper.lease)

        sink = UnitSink(
            order.store.guarded(verify),
            order.options,
            order.new_writer,
            name,
            order.checksum,
            measure=order.measure,
            extend=order.extend,
            read_back=order.read_back,
        )
        # the first unit leaves a part always, so that an empty table still shows its schema
        schema_only = claim.unit.index == 0 and order.shows_schema
        stream = UnitStream(sink, settle, schema_only=schema_only, after=behind)
        batches: Iterator[pa.RecordBatch] = _read(reader, claim.unit, sink)
        if order.limit is not None:
            batches = order.limit.hold(
                batches, lambda text: self._events.put(RunNote(f"unit {claim.unit.index}: {text}"))
            )
        if not stream.feed(batches):
            reader.close()  # it may stand in the middle of a read; the next unit opens it again
        return stream

    def _settle(
        self, claim: Claim, outcome: list[Part] | BaseException, reader: UnitReader, started: float
    ) -> None:
        """Commit, or record the failure. Only what ends the whole run, like a lost lease, goes further."""
        try:
            try:
                if isinstance(outcome, BaseException):
                    raise outcome
                self._commit(claim, outcome, time.monotonic() - started)
            except BusyError as error:
                if isinstance(outcome, list):
                    self._retract(claim, outcome)
                self._record_failure(claim, error)
            except Exception as error:  # noqa: BLE001 - every failure of a unit is classified and recorded
                self._record_failure(claim, reader.classify(error))
        except BaseException as error:  # noqa: BLE001 - a thread must not die unseen
            self._fail_run(as_rivet_error(error))
        with self._ended:
            self._settled += 1
            self._ended.notify_all()

    def _commit(self, claim: Claim, parts: list[Part], seconds: float) -> None:
        order = self._order
        order.keeper.check()
        self._state.commit_unit(
            claim,
            parts,
            order.keeper.lease,
            seconds=seconds,
            file_format=order.options.format,
            compression=order.options.codec or "none",
        )
        self._in_a_row = 0
        fault_point("after_unit_commit")
        self._events.put(
            UnitCommitted(
                unit=claim.unit,
                rows=sum(p.rows for p in parts),
                files=len(parts),
                bytes=sum(p.size_bytes for p in parts),
                seconds=seconds,
                attempt=claim.attempt,
                parts=tuple(parts),
            )
        )

    def _retract(self, claim: Claim, parts: list[Part]) -> None:
        """The commit was refused: move aside what is now of no use, unless an attempt at it came through."""
        with contextlib.suppress(RivetError):
            # not patiently: the lead looks for what is left, and the lease may be lost
            if not self._order.state.is_committed(claim):
                for part in parts:
                    self._order.store.retract(part.path, claim.run_id)

    def _record_failure(self, claim: Claim, error: RivetError) -> None:
        order = self._order
        stopping = self._stop.is_set()
        if error.code == "RIVET_STATE_LEASE_LOST":
            raise error
        if error.code == "RIVET_STATE_CLAIM_LOST":
            self._events.put(RunNote(f"{error.message}; what this one read does not count"))
            return
        error.unit = claim.unit.index
        counted = self._counts(error, claim)
        final = not error.retryable or (claim.last_try and counted)
        wait = backoff_s(claim.tries, order.retry_backoff_ms, error) if counted else 0.0
        record = error_object(error, with_message=False)
        # the pause is the unit's, not the worker's: other units go on meanwhile
        try:
            self._state.fail_unit(
                claim,
                record,
                order.keeper.lease,
                final=final and not stopping,
                retry_after_s=wait,
                counted=counted,
            )
        except BusyError as refused:
            if refused.code != "RIVET_STATE_CLAIM_LOST":
                raise
            self._events.put(RunNote(f"{refused.message}; here it failed: {error.code}"))
            return
        if stopping:
            return
        if not counted:
            self._events.put(RunNote(f"unit {claim.unit.index}: {error.message}"))
            return
        self._events.put(UnitFailed(claim.unit, error, claim.attempt, final))
        self._in_a_row += 1
        if error.code in PLAN_IS_STALE or self._in_a_row == order.gives_up_after:
            self._fail_run(error)
        elif final:
            with self._lock:
                self.errors.append(error)
            if error.stops_run:
                self._break_off()
        else:
            self._events.put(RunNote(f"unit {claim.unit.index}: {error.code}, next attempt in {wait:.1f} s"))

    def _counts(self, error: RivetError, claim: Claim) -> bool:
        """Whether the attempt is one of the unit's own: it is not while others are let through."""
        if error.counts:
            return True
        with self._lock:
            self._excused[claim.unit.index] += 1
            return self._excused[claim.unit.index] > _UNCOUNTED


def _read(reader: UnitReader, unit: WorkUnit, sink: UnitSink) -> Iterator[pa.RecordBatch]:
    """The unit's batches; then what the reader counted on the way, for the sink."""
    with contextlib.closing(reader.batches(unit)) as batches:
        yield from batches
    sink.nulled = dict(reader.nulled)
