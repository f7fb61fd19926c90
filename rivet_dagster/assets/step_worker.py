"""A process that runs steps of ``export_all``, one after the other, until nobody sends another.

Most of what a step costs is getting ready: the instance, the definitions, the modules of both. A process that
lives on pays for it once. A step that breaks takes its process with it and no other; the next step that the
place is given to gets a fresh one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._core.errors import DagsterExecutionInterruptedError
from dagster._core.events import DagsterEvent
from dagster._core.execution.api import create_execution_plan, execute_plan_iterator
from dagster._core.execution.plan.state import KnownExecutionState
from dagster._core.execution.retries import RetryMode
from dagster._utils import start_termination_thread
from dagster._utils.error import serializable_error_info_from_exc_info
from dagster._utils.interrupts import capture_interrupts
from dagster_shared.error import SerializableErrorInfo

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
    load_data: RepositoryLoadData | None


@dataclass(frozen=True)
class StepOrder:
    """One step to run."""

    key: str
    known_state: KnownExecutionState


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
    done = threading.Event()
    with capture_interrupts():
        start_termination_thread(stop, done)
        try:
            with dg.DagsterInstance.from_ref(order.instance) as instance:
                _serve(channel, order, instance)
        finally:
            done.set()
            stop.set()
            with suppress(OSError):
                channel.close()


def _serve(channel: Connection, order: RunOrder, instance: dg.DagsterInstance) -> None:
    while True:
        try:
            step: StepOrder | None = channel.recv()
        except (EOFError, OSError):
            return
        if step is None:
            return
        take_entry()
        try:
            for event in _run(order, step, instance):
                channel.send(event)
        except (Exception, KeyboardInterrupt, DagsterExecutionInterruptedError):  # noqa: BLE001 - it is told
            channel.send(StepBroke(serializable_error_info_from_exc_info(sys.exc_info())))
            return
        channel.send(StepEnded(take_entry(), resident_bytes()))


def _run(order: RunOrder, step: StepOrder, instance: dg.DagsterInstance) -> Any:
    plan = create_execution_plan(
        job=order.job,
        run_config=order.run_config,
        step_keys_to_execute=[step.key],
        known_state=step.known_state,
        repository_load_data=order.load_data,
    )
    events = execute_plan_iterator(
        plan,
        order.job,
        order.run,
        run_config=order.run_config,
        retry_mode=order.retries.for_inner_plan(),
        instance=instance,
    )
    for event in events:
        if _matters(event):
            yield event


def _matters(event: DagsterEvent) -> bool:
    """Whether the run worker has to know: it keeps track of steps and outputs, and stores nothing."""
    return (
        event.is_step_success
        or event.is_step_failure
        or event.is_step_up_for_retry
        or event.is_resource_init_failure
        or event.is_successful_output
    )
