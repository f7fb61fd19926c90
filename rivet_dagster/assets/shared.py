"""``export_<name>`` of an export with ``workers`` above 1: a lead and its guests, each a step.

The lead is the export's own step: it plans, works, reports and ends the run. The guests beside it join
the run that the lead has invited them to. No step waits for another: Dagster would give up what comes
after a step that died, and here the others do its units. Where steps run one after the other, the lead
comes first and does everything.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import dagster as dg

from rivet_dagster.assets._internal import die_with_parent, has_ended
from rivet_dagster.assets.execution import ExportRun
from rivet_dagster.assets.exports import RunConfig
from rivet_dagster.assets.failure import tell
from rivet_dagster.assets.gates import StepResult, tell_checks
from rivet_dagster.assets.launcher import worker_of
from rivet_dagster.assets.reaper import holder_of
from rivet_dagster.assets.resources import RivetResource

if TYPE_CHECKING:
    from rivet_dagster.assets.exports import ExportAssets
    from rivet_dagster.engine.run.events import RunEvent

#: Both of Dagster's own and of its Celery executor: the lead gets the first slot there is.
_FIRST = {"dagster/priority": "1", "dagster-celery/priority": "9"}
_GUEST_WAIT_S = 600


class GuestConfig(dg.Config):
    """wait: seconds to wait for the lead's plan; a guest that waited in vain ends well."""

    wait: int = _GUEST_WAIT_S


def shared_job(
    assets: "ExportAssets", rivet: RivetResource, executor: dg.ExecutorDefinition | None
) -> dg.JobDefinition:
    """rivet: bound here, or Dagster would rebuild every sensor that names the job."""
    names, workers = assets.names, assets.export.dagster.workers
    label = {"rivet/export": names.base}

    @dg.op(name=names.lead_op, pool=assets.pool, tags={**label, **_FIRST})
    def lead(context: dg.OpExecutionContext, config: RunConfig, rivet: RivetResource) -> None:
        die_with_parent()
        run_lead(context, assets, config, rivet)

    @dg.op(name=names.worker_op, tags=label)
    def guest(context: dg.OpExecutionContext, config: GuestConfig, rivet: RivetResource) -> None:
        die_with_parent()
        run_guest(context, assets, rivet, wait_s=config.wait)

    @dg.job(
        name=names.export_job,
        executor_def=executor,
        resource_defs={"rivet": rivet},
        tags=label,
        description=f"Run export {assets.export.name} with {workers} processes: plan, extract, verify.",
    )
    def job() -> None:
        lead()
        for number in range(1, workers):
            guest.alias(f"{names.worker_op}_{number}")()

    return job


def run_lead(
    context: dg.OpExecutionContext, assets: "ExportAssets", config: RunConfig, rivet: RivetResource
) -> None:
    """Raises Failure or RetryRequested only."""
    run = _export_run(context, assets)
    run.depth = config.depth.value if config.depth else None

    def act() -> None:
        if context.retry_number and _was_led_to_its_end(context, assets, rivet):
            context.log.info("another step went on as the lead; the run is complete")
            return
        _finish(context, run.steps(rivet, lock_wait=config.lock_wait, fresh=config.fresh))

    _guarded(run, act)


def run_guest(
    context: dg.OpExecutionContext, assets: "ExportAssets", rivet: RivetResource, *, wait_s: float
) -> None:
    """Raises Failure or RetryRequested only."""
    from rivet_dagster.engine.run.events import RunNote, UnitFailed
    from rivet_dagster.engine.run.guest import Guest, assist

    run = _export_run(context, assets)

    def tell_event(event: "RunEvent") -> None:
        if isinstance(event, UnitFailed):
            tell(event.error)
        elif isinstance(event, RunNote):
            run.notes.write(context, event.text)

    def lead(run_id: str) -> None:
        context.log.warning(f"run {run_id} has lost its lead; going on as the lead")
        _finish(context, run.steps(rivet, lock_wait=0, going_on=run_id))

    def act() -> None:
        with rivet.engine(assets.config, worker_of(context)) as engine:
            guest = Guest(engine, assets.export, led_by=holder_of(context.run_id))
            joined = assist(
                guest,
                wait_s=wait_s,
                tell=tell_event,
                lead=lead,
                is_over=lambda: has_ended(context, assets.names.lead_op),
            )
        if not joined:
            context.log.info("there was no run to join")

    _guarded(run, act)


def _export_run(context: dg.OpExecutionContext, assets: "ExportAssets") -> ExportRun:
    checks = frozenset(spec.name for spec in assets.inline_checks)
    return ExportRun(context, assets, requested=None, checks=checks)


def _guarded(run: ExportRun, act: Callable[[], None]) -> None:
    caught: Exception | None = None
    try:
        act()
    except Exception as error:  # noqa: BLE001 - the event log would keep its text
        caught = error
    if caught is not None:
        raise run.verdict(caught)


def _finish(context: dg.OpExecutionContext, results: Iterator[StepResult]) -> None:
    for _ in tell_checks(context, results):
        pass  # an op has no result to give


def _was_led_to_its_end(context: dg.OpExecutionContext, assets: "ExportAssets", rivet: RivetResource) -> bool:
    """Whether a run that was shared under this Dagster run's lease is the last complete one."""
    with rivet.engine(assets.config, worker_of(context)) as engine:
        state = engine.patient_state
        last = state.latest_run(assets.export.name)
        return last is not None and holder_of(context.run_id) in state.leads(last.run_id)
