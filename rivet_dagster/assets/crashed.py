"""Steps whose process died: the error object that they could not give, and the one run that goes on.

Whoever found the death out (Dagster's executor, run monitoring, the reaper), the run has failed by then,
and nothing in it says which of the engine's runs it was. The engine's state does.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import dagster as dg

from rivet_dagster.assets._internal import process_died, report_step_error, step_errors
from rivet_dagster.assets.exports import ExportAssets
from rivet_dagster.assets.failure import failure_text, tell
from rivet_dagster.assets.jobs import ExportJob
from rivet_dagster.assets.launcher import launched_by
from rivet_dagster.assets.naming import of_location
from rivet_dagster.assets.reaper import IN_PROGRESS, Watched, holder_of, latest_events
from rivet_dagster.assets.resources import RivetResource
from rivet_dagster.config import RivetConfig
from rivet_dagster.engine.errors import CrashedError, RivetError
from rivet_dagster.engine.results import unit_facts

if TYPE_CHECKING:
    from rivet_dagster.engine.run.engine import Engine

CRASHED_RUNS = "rivet_crashed_runs"
RESUME_OF = "rivet/resume_of"
#: On a run that the reaper ended: its sensor asks for the run that goes on.
REAPED = "rivet/reaped"
_INTERVAL_S = 30


def crashed_steps(instance: dg.DagsterInstance, run_id: str, steps: Mapping[str, Watched]) -> list[str]:
    """Of ``steps``, those that were in progress when the failed run ended, or whose own process died."""
    return [
        key
        for key, (event, _) in latest_events(instance, run_id, steps).items()
        if event.event_type in IN_PROGRESS or (event.is_step_failure and process_died(event))
    ]


def report_crashes(
    instance: dg.DagsterInstance,
    engine: "Engine",
    run: dg.DagsterRun,
    crashed: Iterable[str],
    steps: Mapping[str, Watched],
) -> None:
    """Write the crashed object of each step into the run's log and the engine's state, once."""
    from rivet_dagster.engine.run.crashed import record_crash

    told = {key for key, metadata in step_errors(instance, run.run_id) if "retryable" in metadata}
    for key in crashed:
        if key in told:
            continue
        export = steps[key].export
        facts = unit_facts(record_crash(engine, export, holder_of(run.run_id)))
        report_step_error(instance, run, key, failure_text(CrashedError("", export=export), export), facts)


def resume_requests(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    exports: Iterable[str],
    assets: Sequence[ExportAssets],
    all_job: str,
    *,
    whole: bool = True,
) -> list[dg.RunRequest]:
    """A run of each export that goes on where the dead one was.

    whole: the run's own worker died. Exports that it had not begun are then lost with it: one run of
    ``all_job`` does those too, packed as they were to be.
    """
    tags, going_on = {RESUME_OF: run.run_id}, set(exports)
    waiting = _not_begun(instance, run, assets) if whole else set()
    if not waiting:
        return [
            dg.RunRequest(
                run_key=f"resume-{run.run_id}-{a.names.base}", job_name=a.names.export_job, tags=tags
            )
            for a in assets
            if a.export.name in going_on
        ]
    chosen = [a.table_key for a in assets if a.export.name in going_on | waiting]
    execution = run.run_config.get("execution") if run.job_name == all_job else None
    return [
        dg.RunRequest(
            run_key=f"resume-{run.run_id}",
            job_name=all_job,
            asset_selection=chosen,
            run_config={"execution": execution} if execution else None,
            tags=tags,
        )
    ]


def _not_begun(instance: dg.DagsterInstance, run: dg.DagsterRun, assets: Sequence[ExportAssets]) -> set[str]:
    """Exports whose tables the run was to make, and whose steps it did not come to."""
    planned = instance.get_records_for_run(
        run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
    ).records
    tables = {record.asset_key for record in planned}
    waiting = {a.names.op: a.export.name for a in assets if a.table_key in tables}
    return {waiting[key] for key in waiting.keys() - latest_events(instance, run.run_id, waiting).keys()}


def resumable(instance: dg.DagsterInstance, run: dg.DagsterRun, *, whole: bool = True) -> bool:
    """A crash is worth one more run: not if this was that run, nor if Dagster itself retries it.

    whole: the run's own worker died. Where a step of it did, Dagster retries only if it retries any failure.
    """
    if RESUME_OF in run.tags or run.job_name.startswith("repair_"):
        return False
    retries = run.tags.get("dagster/max_retries", str(instance.run_retries_max_retries))
    dagster_does = instance.run_retries_enabled and retries.isdecimal() and int(retries) > 0
    return not (dagster_does and (whole or instance.run_retries_retry_on_asset_or_op_failure))


def crashed_runs_sensor(
    config: RivetConfig,
    assets: Sequence[ExportAssets],
    steps: Mapping[str, Watched],
    jobs: Sequence[ExportJob],
    all_job: str,
    *,
    running: bool,
    name: str | None = None,
) -> dg.SensorDefinition:
    """Tells of each step of a failed run whose process died, and asks once for a run that goes on."""

    @dg.run_failure_sensor(
        name=of_location(CRASHED_RUNS, name),
        request_jobs=list(jobs),
        minimum_interval_seconds=_INTERVAL_S,
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description="Says which export's process died in a failed run, and goes on with it once.",
    )
    def crashed_runs(context: dg.RunFailureSensorContext, rivet: RivetResource) -> dg.SensorResult:
        instance, run = context.instance, context.dagster_run
        found = crashed_steps(instance, run.run_id, steps)
        if not found:
            return dg.SensorResult(skip_reason="no process of an export died")
        try:
            with rivet.engine(config, launched_by(instance)) as engine:
                report_crashes(instance, engine, run, found, steps)
        except RivetError as error:  # the sensor would not see this run again: it is resumed all the same
            tell(error)
        last = latest_events(instance, run.run_id, found).values()
        whole = any(event.event_type in IN_PROGRESS for event, _ in last)
        exports = [steps[key].export for key in found]
        if REAPED in run.tags or not resumable(instance, run, whole=whole):
            return dg.SensorResult(skip_reason="it is not for this sensor to go on with it")
        requests = resume_requests(instance, run, exports, assets, all_job, whole=whole)
        return dg.SensorResult(run_requests=requests)

    definition: dg.SensorDefinition = crashed_runs
    return definition
