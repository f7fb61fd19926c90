"""A process that runs steps of ``export_all``, one after the other, until nobody sends another.

Most of what a step costs is getting ready: the instance, the definitions, the modules of both. A process that
lives on pays for it once. A step that breaks takes its process with it and no other; the next step that the
place is given to gets a fresh one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._core.errors import DagsterExecutionInterruptedError
from dagster._core.events import DagsterEvent
from dagster._core.execution.api import create_execution_plan
from dagster._core.execution.compute_logs import create_compute_log_file_key
from dagster._core.execution.context_creation_job import PlanExecutionContextManager
from dagster._core.execution.plan.execute_plan import _trigger_hook, dagster_event_sequence_for_step
from dagster._core.execution.plan.state import KnownExecutionState
from dagster._core.execution.retries import RetryMode
from dagster._utils import start_termination_thread
from dagster._utils.error import serializable_error_info_from_exc_info
from dagster._utils.interrupts import capture_interrupts
from dagster_shared.error import SerializableErrorInfo

import rivet_dagster.engine.run.engine
import rivet_dagster.engine.run.finalize
import rivet_dagster.engine.verify.validate  # noqa: F401 - loaded before processes are forked for steps
from rivet_dagster.assets._internal import die_with_parent
from rivet_dagster.assets._running import captured_logs, event_files_open
from rivet_dagster.assets.entries import take_entry
from rivet_dagster.engine.memory import resident_bytes

if TYPE_CHECKING:
    from dagster._core.definitions.reconstruct import ReconstructableJob
    from dagster._core.definitions.repository_definition import RepositoryLoadData
    from dagster._core.instance import InstanceRef


@dataclass(frozen=True)
class RunOrder:
    """What is the same for every step of the run."""

    job: ReconstructableJob
    run: dg.DagsterRun
    run_config: Mapping[str, object]
    instance: InstanceRef
    retries: RetryMode
    steps: list[str]
    load_data: RepositoryLoadData | None


@dataclass(frozen=True)
class StepOrder:
    """One step to run."""

    key: str
    known_state: KnownExecutionState


@dataclass(frozen=True)
class StepPrints:
    """Files that grow by what the step writes to standard output and error; none when Dagster shows it."""

    paths: tuple[str, ...]


@dataclass(frozen=True)
class StepEnded:
    """The step is over; its events came before. entry: what the export came to. bytes: now in RAM."""

    entry: dict[str, Any] | None
    bytes: int


@dataclass(frozen=True)
class StepBroke:
    """Dagster itself failed in the step, or was interrupted; the process ends."""

    error: SerializableErrorInfo


def serve(channel: Connection, order: RunOrder, stop: Any) -> None:
    """Run the steps that come through ``channel`` until it is closed. ``stop`` interrupts the step."""
    die_with_parent()
    done = threading.Event()
    with capture_interrupts():
        start_termination_thread(stop, done)
        try:
            with dg.DagsterInstance.from_ref(order.instance) as instance, event_files_open(instance):
                _serve(channel, _Steps(order, instance))
        finally:
            done.set()
            stop.set()
            with suppress(OSError):
                channel.close()


def _serve(channel: Connection, steps: _Steps) -> None:
    while True:
        try:
            step: StepOrder | None = channel.recv()
        except (EOFError, OSError):
            step = None
        if step is None:
            steps.close()
            return
        take_entry()
        try:
            for message in steps.run(step):
                channel.send(message)
        except (Exception, KeyboardInterrupt, DagsterExecutionInterruptedError):  # noqa: BLE001 - it is told
            channel.send(StepBroke(serializable_error_info_from_exc_info(sys.exc_info())))
            return
        channel.send(StepEnded(take_entry(), resident_bytes()))


class _Steps:
    """Steps of one run, with one plan and one set of resources for all that this process is given.

    It is what Dagster's ``inner_plan_execution_iterator`` does in a process that knows its steps beforehand.
    """

    def __init__(self, order: RunOrder, instance: dg.DagsterInstance) -> None:
        self._order, self._instance = order, instance
        self._job = order.job.with_repository_load_data(order.load_data)
        self._plan = create_execution_plan(
            job=self._job,
            run_config=order.run_config,
            step_keys_to_execute=order.steps,
            known_state=KnownExecutionState(),
            repository_load_data=order.load_data,
        )
        self._made: PlanExecutionContextManager | None = None

    def close(self) -> None:
        if self._made is not None:
            for _event in self._made.shutdown_context():
                pass

    def run(self, order: StepOrder) -> Iterator[DagsterEvent | StepPrints]:
        """Events that the run worker has to know. Without resources the step fails there."""
        if self._made is None:
            made = PlanExecutionContextManager(
                job=self._job,
                execution_plan=self._plan,
                run_config=self._order.run_config,
                dagster_run=self._order.run,
                instance=self._instance,
                retry_mode=self._order.retries.for_inner_plan(),
            )
            yield from filter(_matters, made.prepare_context())
            if not made.get_context():
                return
            self._made = made
        context = self._made.get_context()
        step = self._plan.get_executable_step_by_key(order.key)
        file_key: str = create_compute_log_file_key()  # type: ignore[no-untyped-call]
        logs_of = self._instance.compute_log_manager
        log_key = logs_of.build_log_key_for_run(self._order.run.run_id, file_key)
        with captured_logs(self._instance, log_key) as logs:
            yield StepPrints(logs.paths)
            DagsterEvent.capture_logs(context, [step.key], log_key, logs.context)
            step_context = context.for_step(step, order.known_state)
            seen: list[DagsterEvent] = []
            for event in dagster_event_sequence_for_step(step_context):
                seen.append(event)
                if _matters(event):
                    yield event
            for _event in _trigger_hook(step_context, seen):
                pass


def _matters(event: DagsterEvent) -> bool:
    """Whether the run worker has to know: it keeps track of steps and outputs, and stores nothing."""
    return (
        event.is_step_success
        or event.is_step_failure
        or event.is_step_up_for_retry
        or event.is_resource_init_failure
        or event.is_successful_output
    )
