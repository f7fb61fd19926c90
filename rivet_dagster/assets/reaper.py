"""Ends runs whose worker is gone, by the engine's lease (Dagster itself cannot tell).

A run worker that was killed leaves its run Started for ever, with the pool slot it holds, unless a
code server watched it. A run is stale when a step of ours in it is in progress without the export's
lease, and has been quiet for longer than every reason that a live step has to be quiet. A live step
logs an event just before it lets go of the lease, so the moment between the two is never mistaken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dagster as dg

from rivet_dagster.assets._internal import free_pool_slots, pool_info

#: export -> holder of its lease, as the engine names it, or None when it is free
LeaseHolder = Callable[[str], str | None]

ACTIVE = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.CANCELING]
MESSAGE = "rivet: the engine's lease is not held by this run, so its worker is gone"
MIN_AGE_S = 60.0
IN_PROGRESS = {
    dg.DagsterEventType.STEP_START,
    dg.DagsterEventType.STEP_RESTARTED,
    dg.DagsterEventType.STEP_UP_FOR_RETRY,
}
_ENDED = {
    dg.DagsterEventType.STEP_SUCCESS,
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.STEP_SKIPPED,
}


def holder_of(run_id: str) -> str:
    """What a Dagster run writes into the engine's lease."""
    return f"dagster:{run_id}"


@dataclass(frozen=True, slots=True)
class Watched:
    """A step that works under an export's lease. lock_wait_s: how long it may wait for it."""

    export: str
    pool: str
    lock_wait_s: float


@dataclass(frozen=True, slots=True)
class Reaped:
    """A run that was ended, the steps that were in progress in it, and the export of each."""

    run: dg.DagsterRun
    steps: tuple[str, ...]
    exports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Progress:
    """Latest state of a step. quiet_until: before it, silence proves nothing."""

    key: str
    in_progress: bool
    quiet_until: float


def reap(
    instance: dg.DagsterInstance,
    steps: Mapping[str, Watched],
    lease_holder: LeaseHolder,
    *,
    min_age_s: float | None = None,
    now: float | None = None,
    tags: Mapping[str, str] | None = None,
) -> list[Reaped]:
    """Mark stale runs failed and give their pool slots back.

    steps: by step key, those of this code location. min_age_s: the shortest silence that counts
    (default: ``MIN_AGE_S``). tags: what a run gets before it fails.
    """
    quiet = MIN_AGE_S if min_age_s is None else min_age_s
    look = _Look(instance, steps, lease_holder, quiet, time.time() if now is None else now)
    reaped = []
    for record in instance.get_run_records(dg.RunsFilter(statuses=ACTIVE), limit=500):
        run = record.dagster_run
        stale = look.stale_steps(run)
        if stale:
            if tags:
                instance.add_run_tags(run.run_id, dict(tags))
            instance.report_run_failed(run, MESSAGE)
            free_pool_slots(instance, run.run_id)
            reaped.append(Reaped(run, tuple(stale), tuple(steps[key].export for key in stale)))
    return reaped


@dataclass
class _Look:
    """One look over the active runs."""

    instance: dg.DagsterInstance
    steps: Mapping[str, Watched]
    lease_holder: LeaseHolder
    min_age_s: float
    now: float

    def stale_steps(self, run: dg.DagsterRun) -> list[str]:
        """Steps in progress in ``run`` without a lease; empty when anything in it shows life."""
        last = self.instance.get_records_for_run(run.run_id, limit=1, ascending=False).records
        if not last or self.now < last[0].event_log_entry.timestamp + self.min_age_s:
            return []
        progress = self._progress(run.run_id)
        stale = []
        for step in progress:
            if not step.in_progress:
                continue
            if self._alive(run, step):
                return []
            stale.append(step.key)
        begun = {step.key for step in progress}
        stale += [key for key in self._slots.get(run.run_id, ()) if key not in begun]
        return list(dict.fromkeys(stale))

    def _alive(self, run: dg.DagsterRun, step: _Progress) -> bool:
        watched = self.steps[step.key]
        holder = self.lease_holder(watched.export)
        if holder == holder_of(run.run_id):
            return True
        patience = self.min_age_s
        if holder is not None:  # it may be waiting its turn, silently
            patience += _lock_wait(run, step.key, watched.lock_wait_s)
        return self.now < step.quiet_until + patience

    def _progress(self, run_id: str) -> Sequence[_Progress]:
        found = []
        for key, (event, at) in latest_events(self.instance, run_id, self.steps).items():
            quiet_until = at
            if event.event_type == dg.DagsterEventType.STEP_UP_FOR_RETRY:
                quiet_until += event.step_retry_data.seconds_to_wait or 0
            found.append(_Progress(key, event.event_type in IN_PROGRESS, quiet_until))
        return found

    @cached_property
    def _slots(self) -> Mapping[str, set[str]]:
        """Run -> our steps that were given a slot. A live step starts at once; one of a dead run never.

        A step that still waits for a slot is not here: it may wait for hours, and holds nothing.
        """
        slots: dict[str, set[str]] = {}
        for pool in {watched.pool for watched in self.steps.values()}:
            info = pool_info(self.instance, pool)
            if info is None:
                return {}
            given = [(s.run_id, s.step_key) for s in info.claimed_slots]
            given += [
                (s.run_id, s.step_key)
                for s in info.pending_steps
                if s.assigned_timestamp and s.assigned_timestamp.timestamp() + self.min_age_s < self.now
            ]
            for run_id, step_key in given:
                if step_key in self.steps:
                    slots.setdefault(run_id, set()).add(step_key)
        return slots


def latest_events(
    instance: dg.DagsterInstance, run_id: str, steps: Collection[str]
) -> dict[str, tuple[dg.DagsterEvent, float]]:
    """Step key -> the last event of those that begin or end it, and its time; only of ``steps``."""
    latest: dict[str, tuple[dg.DagsterEvent, float]] = {}
    for record in instance.get_records_for_run(run_id, of_type=IN_PROGRESS | _ENDED).records:
        event = record.event_log_entry.dagster_event
        if event is not None and event.step_key is not None and event.step_key in steps:
            latest[event.step_key] = (event, record.event_log_entry.timestamp)
    return latest


def _lock_wait(run: dg.DagsterRun, step_key: str, default_s: float) -> float:
    """``lock_wait`` that the run's own config asks for, else ``default_s``."""
    config: Any = run.run_config
    for key in ("ops", step_key, "config", "lock_wait"):
        config = config.get(key) if isinstance(config, Mapping) else None
    return float(config) if isinstance(config, int) else default_s
