"""The executor of ``export_all``: exports in processes of their own, packed by what they took before.

It is Dagster's multiprocess executor in what a person sees (a process a running step, ``max_concurrent``,
pools, retries, a step that dies takes no other with it) and differs in two things: which ready step begins
next (``engine/packing.py``), and that a process runs one step after the other (``step_worker.py``).
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import dagster as dg
from dagster._core.errors import DagsterExecutionInterruptedError, DagsterSubprocessError
from dagster._core.events import DagsterEvent, EngineEventData
from dagster._core.execution.plan.active import ActiveExecution
from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.child_process_executor import ChildProcessCrashException
from dagster._utils import get_run_crash_explanation
from dagster._utils.error import serializable_error_info_from_exc_info
from dagster_shared.error import SerializableErrorInfo

from rivet_dagster.assets._running import event_files_open, has_no_threads
from rivet_dagster.assets.step_worker import RunOrder, StepBroke, StepEnded, StepOrder, StepPrints, serve
from rivet_dagster.engine.packing import Need, Packer

if TYPE_CHECKING:
    from dagster._core.execution.context.system import PlanOrchestrationContext
    from dagster._core.execution.plan.plan import ExecutionPlan
    from dagster._core.execution.plan.state import KnownExecutionState
    from dagster._core.execution.plan.step import ExecutionStep

PRELOADED: Final = "rivet_dagster.assets.fork_server"
_TICK_S: Final = 0.5  # between looks for an interrupt, and for what waits for a pool or a retry
#: A process that keeps more than this after a step is not given another.
_KEPT_BYTES: Final = 512 << 20


@dataclass
class Packing:
    """The steps of a run. needs: by step key, in the order in which they should begin."""

    needs: Mapping[str, Need]
    packer: Packer

    def rank(self, step: ExecutionStep) -> float:
        return self._ranks.get(step.key, -1)

    def __post_init__(self) -> None:
        self._ranks = {key: rank for rank, key in enumerate(self.needs)}


class BudgetedPools(InstanceConcurrencyContext):
    """Pools that also keep the run's own budget: a step claims its slot when it fits beside the others."""

    def __init__(
        self, instance: dg.DagsterInstance, run: dg.DagsterRun, packing: Packing, limit: int
    ) -> None:
        super().__init__(instance, run)
        self._packing, self._limit = packing, limit

    def claim(self, concurrency_key: str, step_key: str, step_priority: int = 0) -> bool:
        need = self._packing.needs.get(step_key)
        if need is not None and not self._packing.packer.fits(need):
            return False
        waiting = self.pending_claim_steps()
        if step_key not in waiting and len(waiting) >= self._limit:
            return False  # a pool that is full is asked for the next steps only, not for hundreds
        if not super().claim(concurrency_key, step_key, step_priority):
            return False
        if need is not None:
            self._packing.packer.begin(need)
        return True

    def free_step(self, step_key: str) -> None:
        need = self._packing.needs.get(step_key)
        if need is not None:
            self._packing.packer.end(need.name)
        super().free_step(step_key)


class Worker:
    """One process and what it is doing."""

    def __init__(self, context: Any, order: RunOrder) -> None:
        self.step: str | None = None
        self._prints: list[BinaryIO] = []
        self.stop = context.Event()
        self.channel, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, order, self.stop))
        self.process.start()
        theirs.close()

    def begin(self, step: str, known_state: KnownExecutionState) -> None:
        self.step = step
        with suppress(OSError):  # it died while idle: the wait for its messages will tell
            self.channel.send(StepOrder(step, known_state))

    def messages(self) -> Iterator[object]:
        """What it has said. Raises ChildProcessCrashException when it is gone in the middle of a step."""
        try:
            while self.channel.poll():
                yield self.channel.recv()
        except (EOFError, OSError):
            self.process.join()
            if self.step is not None:
                raise ChildProcessCrashException(  # type: ignore[no-untyped-call]
                    self.process.pid, self.process.exitcode
                ) from None

    def interrupt(self) -> None:
        if self.process.is_alive():
            self.stop.set()

    def retire(self) -> None:
        """It ends once its step has."""
        with suppress(OSError):
            self.channel.send(None)
        self.channel.close()

    def shows(self, paths: Sequence[str]) -> None:
        """What it prints from now on goes to files; ``show`` copies what is new of them to the console."""
        self._prints = [open(path, "rb") for path in paths]  # noqa: SIM115 - until the step is over

    def show(self, *, last: bool = False) -> None:
        for stream, file in enumerate(self._prints, start=1):  # 1: standard output, 2: error
            while chunk := file.read(1 << 16):
                with suppress(OSError):  # nobody listens any more
                    os.write(stream, chunk)
            if last:
                file.close()
        if last:
            self._prints = []


@dataclass
class _Going:
    """What one execution keeps track of."""

    context: PlanOrchestrationContext
    active: ActiveExecution
    order: RunOrder
    processes: Any
    limit: int
    busy: dict[Connection, Worker] = field(default_factory=dict)
    idle: list[Worker] = field(default_factory=list)
    broken: dict[int, SerializableErrorInfo] = field(default_factory=dict)
    entries: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    died: set[str] = field(default_factory=set)


#: Told at the end of the run: step key -> entry (None: no word of it); steps that failed; when it began.
Summary = Callable[
    ["PlanOrchestrationContext", Mapping[str, dict[str, Any] | None], frozenset[str], datetime],
    Iterator[DagsterEvent],
]


class PackedExecutor(dg.Executor):
    """``pack`` looks at the steps once, when the run begins; ``summary`` tells what became of them."""

    def __init__(
        self,
        retries: RetryMode,
        max_concurrent: int,
        pack: Callable[[list[str]], Packing],
        summary: Summary,
    ) -> None:
        self._retries, self._limit = retries, max_concurrent
        self._pack, self._summary = pack, summary

    @property
    def retries(self) -> RetryMode:
        return self._retries

    def execute(
        self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan
    ) -> Iterator[DagsterEvent]:
        began = datetime.now(UTC)
        keys = list(execution_plan.step_keys_to_execute)
        order = RunOrder(
            plan_context.reconstructable_job,
            plan_context.dagster_run,
            plan_context.run_config,
            plan_context.instance.get_ref(),
            self._retries,
            keys,
            execution_plan.repository_load_data,
        )
        processes: Any = multiprocessing.get_context("forkserver")
        processes.set_forkserver_preload(["dagster._core.executor.multiprocess", PRELOADED])
        # they get ready while the past is looked up
        if has_no_threads():  # later ones come from the server: by then there are open files
            gc.freeze()  # no collection of theirs walks what they share with this process, and copies it
            first = [
                Worker(multiprocessing.get_context("fork"), order) for _ in range(min(self._limit, len(keys)))
            ]
        else:
            first = [Worker(processes, order)]
        packing = self._pack(keys)
        yield DagsterEvent.engine_event(
            plan_context,
            f"Executing {len(keys)} steps, up to {self._limit} at a time (pid: {os.getpid()})",
            EngineEventData.multiprocess(os.getpid()),
        )
        with ExitStack() as stack:
            stack.enter_context(event_files_open(plan_context.instance))
            pools = BudgetedPools(plan_context.instance, plan_context.dagster_run, packing, self._limit)
            stack.enter_context(pools)
            active = stack.enter_context(
                ActiveExecution(
                    execution_plan,
                    retry_mode=self._retries,
                    sort_key_fn=packing.rank,
                    max_concurrent=self._limit,
                    instance_concurrency_context=pools,
                )
            )
            going = _Going(plan_context, active, order, processes, self._limit, idle=first)
            going.entries = dict.fromkeys(keys)
            try:
                interrupted = yield from self._loop(going)
            finally:
                for worker in (*going.idle, *going.busy.values()):
                    worker.retire()
            yield from self._summary(plan_context, going.entries, frozenset(going.died), began)
            self._raise_what_broke(going, interrupted=interrupted)

    def _loop(self, going: _Going) -> Any:
        """Run the steps. Returns whether the run was interrupted."""
        active, stopping = going.active, False
        try:
            while (not stopping and not active.is_complete) or going.busy:
                if active.check_for_interrupts():
                    stopping = True
                    active.mark_interrupted()
                    yield self._interrupting(going)
                if not stopping:
                    yield from self._launch(going)
                ready = wait([*going.busy], timeout=_TICK_S)
                for channel in ready:
                    if isinstance(channel, Connection):
                        yield from self._listen(going, going.busy[channel])
                for worker in going.busy.values():
                    worker.show()
                yield from active.plan_events_iterator(going.context)
        except Exception:
            for worker in going.busy.values():
                worker.interrupt()
            raise
        return stopping

    def _interrupting(self, going: _Going) -> DagsterEvent:
        for worker in going.busy.values():
            worker.interrupt()
        return DagsterEvent.engine_event(
            going.context,
            "received termination signal: the running steps are interrupted",
            EngineEventData.interrupted([w.step for w in going.busy.values() if w.step is not None]),
        )

    def _launch(self, going: _Going) -> Iterator[DagsterEvent]:
        while room := going.limit - len(going.busy):
            steps = going.active.get_steps_to_execute(limit=room)
            yield from going.active.concurrency_event_iterator(going.context)
            if not steps:
                return
            for step in steps:
                worker = going.idle.pop() if going.idle else Worker(going.processes, going.order)
                worker.begin(step.key, going.active.get_known_state())
                going.busy[worker.channel] = worker

    def _listen(self, going: _Going, worker: Worker) -> Iterator[DagsterEvent]:
        """Handle what the worker said; once its step is over it is idle, or gone."""
        step = worker.step
        assert step is not None
        keep: bool | None = None
        try:
            for message in worker.messages():
                if isinstance(message, DagsterEvent):
                    yield message
                    yield from self._handle(going, step, message)
                elif isinstance(message, StepPrints):
                    worker.shows(message.paths)
                elif isinstance(message, StepEnded):
                    going.entries[step] = message.entry
                    keep = message.bytes <= _KEPT_BYTES
                elif isinstance(message, StepBroke):
                    going.broken[worker.process.pid or 0] = message.error
                    keep = False
        except ChildProcessCrashException as crash:
            keep = False
            yield from self._crashed(going, step, crash)
        if keep is None:
            return
        worker.show(last=True)
        worker.step = None
        del going.busy[worker.channel]
        if keep:
            going.idle.append(worker)
        else:
            worker.retire()
        going.active.verify_complete(going.context, step)

    def _handle(self, going: _Going, step: str, event: DagsterEvent) -> Iterator[DagsterEvent]:
        going.active.handle_event(event)
        if event.is_resource_init_failure:
            error = event.engine_event_data.error
            assert error is not None
            yield from self._failed(going, step, error)

    def _crashed(self, going: _Going, step: str, crash: ChildProcessCrashException) -> Iterator[DagsterEvent]:
        error = serializable_error_info_from_exc_info(sys.exc_info())
        yield DagsterEvent.engine_event(
            going.context.for_step(going.active.get_step_by_key(step)),
            get_run_crash_explanation(prefix=f"The process of step {step}", exit_code=crash.exit_code or 0),
            EngineEventData.engine_error(error),
        )
        going.broken[crash.pid] = error
        yield from self._failed(going, step, error)

    def _failed(self, going: _Going, step: str, error: SerializableErrorInfo) -> Iterator[DagsterEvent]:
        event = self.log_failure_or_retry_event_after_error(
            going.context.for_step(going.active.get_step_by_key(step)), error, going.active.get_known_state()
        )
        going.active.handle_event(event)
        if event.is_step_failure:
            going.died.add(step)
            going.entries[step] = None
        yield event

    @staticmethod
    def _raise_what_broke(going: _Going, *, interrupted: bool) -> None:
        ends = {"DagsterExecutionInterruptedError", "KeyboardInterrupt"}
        if interrupted and all(error.cls_name in ends for error in going.broken.values()):
            raise DagsterExecutionInterruptedError
        if going.broken:
            said = "\n".join(f"process {pid}: {error.to_string()}" for pid, error in going.broken.items())
            raise DagsterSubprocessError(  # type: ignore[no-untyped-call]
                f"{len(going.broken)} step processes ended badly:\n{said}",
                subprocess_error_infos=list(going.broken.values()),
            )
