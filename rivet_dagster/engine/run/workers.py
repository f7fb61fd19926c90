"""The one runner: workers claim units, read them, write them, commit them."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from rivet_dagster.engine.destinations.base import Store
from rivet_dagster.engine.errors import RivetError, as_rivet_error, error_object
from rivet_dagster.engine.names import part_name
from rivet_dagster.engine.plan.units import Part, WorkUnit
from rivet_dagster.engine.run.events import RunEvent, RunNote, UnitCommitted, UnitFailed
from rivet_dagster.engine.run.faults import fault_point
from rivet_dagster.engine.run.pacing import Pacer, PaceRules
from rivet_dagster.engine.run.retry import backoff_s
from rivet_dagster.engine.run.sink import BatchLimit, Checksum, Extend, Measure, UnitSink, UnitStream
from rivet_dagster.engine.sources.base import SourceWatch, UnitReader
from rivet_dagster.engine.state.lease import LeaseKeeper
from rivet_dagster.engine.state.store import Claim, StateStore
from rivet_dagster.engine.write.base import PartWriter, WriteOptions

_IDLE_S = 0.2  # between looks for a unit that another worker may give back

#: Attempts of a unit that may end for others' sake before they count like any that fail.
_UNCOUNTED: Final = 5

#: A new attempt at the unit cannot help; a new run, planned afresh, can.
PLAN_IS_STALE = frozenset({"RIVET_SOURCE_SNAPSHOT_LOST", "RIVET_SOURCE_SCHEMA_CHANGED"})


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """Everything that the workers of one run share."""

    run_id: str
    state: StateStore
    keeper: LeaseKeeper
    store: Store
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


class WorkerPool:
    """Runs the workers of ``order.pace`` over one run's units and yields what happens, as it happens.

    A value that cannot be represented fails its own unit and the others go on; whatever is wrong
    with the surroundings (``RivetError.stops_run``) stops the claiming of further units.
    """

    def __init__(self, order: WorkOrder) -> None:
        self._order = order
        self._events: queue.SimpleQueue[RunEvent | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._readers: list[UnitReader] = []
        self._lock = threading.Lock()
        self._ended = threading.Condition()  # notified when a unit is committed or given back
        self._settled = 0  # how often that was
        self._threads: list[threading.Thread] = []
        self._excused: Counter[int] = Counter()
        self.pacer = Pacer(order.pace, order.new_watch, lambda text: self._events.put(RunNote(text)))
        self.errors: list[RivetError] = []

    def events(self) -> Iterator[RunEvent]:
        """Start the workers; ends when all of them have ended. Closing it early stops them."""
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"rivet-worker-{number}", daemon=True)
            for number in range(self._order.pace.parallel)
        ]
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
            self._work(f"w{number}")
        except BaseException as error:  # noqa: BLE001 - a worker must always report its end
            self._fail_run(as_rivet_error(error))
        finally:
            self._events.put(None)

    def _fail_run(self, error: RivetError) -> None:
        with self._lock:
            self.errors.append(error)
        self._stop.set()
        self.pacer.end()

    def _work(self, worker: str) -> None:
        order = self._order
        reader = order.new_reader()
        with self._lock:
            self._readers.append(reader)
        self.pacer.add(reader)
        behind: UnitStream | None = None  # the unit before, which may still be written
        try:
            while not self._stop.is_set():
                order.keeper.check()
                seen = self._settled
                with self.pacer.turn() as may_begin:
                    if not may_begin:
                        return
                    claim = order.state.claim(order.run_id, worker, order.keeper.lease, only=order.only)
                    if claim is not None:
                        behind = self._attempt(claim, reader, behind)
                        continue
                # a unit may wait for its next attempt, or one that is under way may yet fail
                if not order.state.has_claimable_later(order.run_id, only=order.only):
                    return
                self._await_settled(seen)
        finally:
            reader.close()
            if behind is not None:
                behind.join()

    def _await_settled(self, seen: int) -> None:
        """Until more than ``seen`` attempts are settled, or for a while."""
        with self._ended:
            self._ended.wait_for(lambda: self._settled != seen, _IDLE_S)

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

        sink = UnitSink(
            order.store,
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
        order.state.commit_unit(
            claim,
            parts,
            order.keeper.lease,
            seconds=seconds,
            file_format=order.options.format,
            compression=order.options.codec or "none",
        )
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

    def _record_failure(self, claim: Claim, error: RivetError) -> None:
        order = self._order
        stopping = self._stop.is_set()
        if error.code == "RIVET_STATE_LEASE_LOST":
            raise error
        error.unit = claim.unit.index
        counted = self._counts(error, claim)
        final = not error.retryable or (claim.last_try and counted)
        wait = backoff_s(claim.tries, order.retry_backoff_ms, error) if counted else 0.0
        record = error_object(error, with_message=False)
        # the pause is the unit's, not the worker's: other units go on meanwhile
        order.state.fail_unit(
            claim,
            record,
            order.keeper.lease,
            final=final and not stopping,
            retry_after_s=wait,
            counted=counted,
        )
        if stopping:
            return
        if not counted:
            self._events.put(RunNote(f"unit {claim.unit.index}: {error.message}"))
            return
        self._events.put(UnitFailed(claim.unit, error, claim.attempt, final))
        if error.code in PLAN_IS_STALE:
            self._fail_run(error)
        elif final:
            with self._lock:
                self.errors.append(error)
            if error.stops_run:
                self._stop.set()
                self.pacer.end()
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
