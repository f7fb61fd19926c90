"""Sensors: one that ends runs of dead workers, and one per export that waits for new source rows."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import dagster as dg

from rivet_dagster.assets.crashed import REAPED, report_crashes, resumable, resume_requests
from rivet_dagster.assets.exports import ExportAssets
from rivet_dagster.assets.failure import failure_text, tell
from rivet_dagster.assets.jobs import ExportJob
from rivet_dagster.assets.launcher import launched_by
from rivet_dagster.assets.naming import of_location
from rivet_dagster.assets.reaper import ACTIVE, Reaped, Watched, reap
from rivet_dagster.assets.resources import RivetResource
from rivet_dagster.config import RivetConfig
from rivet_dagster.engine.errors import RivetError

STALE_RUNS = "rivet_stale_runs"
_STALE_INTERVAL_S = 30
_MOVED_INTERVAL_S = 60
_QUEUED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    *ACTIVE,
]
#: Longest pause before a source that has moved is tried again after failures, in seconds.
_LONGEST_PAUSE_S = 3600.0


def watched_steps(assets: Sequence[ExportAssets]) -> dict[str, Watched]:
    """Step key -> what the reaper needs to know of it: exports and repairs work under the lease."""
    steps = {}
    for a in assets:
        watched = Watched(a.export.name, a.pool, float(a.config.lock_wait_for(a.export)))
        steps[a.names.op] = watched
        steps[a.names.repair_op] = watched
        steps[a.names.lead_op] = watched
    return steps


def reap_stale_runs(
    instance: dg.DagsterInstance,
    config: RivetConfig,
    assets: Sequence[ExportAssets],
    rivet: RivetResource,
    *,
    min_age_s: float | None = None,
    tags: Mapping[str, str] | None = None,
) -> list[Reaped]:
    """End the runs of ``instance`` whose worker is gone, and say so of each export in progress there.

    What the sensor and the command line call. Opens the engine's state only when there is an active
    run to look at; one that is not where the runs have theirs is refused: it would show no lease.
    """
    if not instance.get_run_records(dg.RunsFilter(statuses=ACTIVE), limit=1):
        return []
    steps = watched_steps(assets)
    with rivet.engine(config, launched_by(instance)) as engine:

        def holder(export: str) -> str | None:
            lease = engine.state.holder(engine.lease_key(export))
            return lease.holder if lease else None

        reaped = reap(instance, steps, holder, min_age_s=min_age_s, tags=tags)
        for one in reaped:
            try:
                report_crashes(instance, engine, one.run, one.steps, steps)
            except RivetError as error:  # the run is ended all the same, and can be resumed
                tell(error)
        return reaped


def stale_runs_sensor(
    config: RivetConfig,
    assets: Sequence[ExportAssets],
    jobs: Sequence[ExportJob],
    all_job: str,
    *,
    running: bool,
    name: str | None = None,
) -> dg.SensorDefinition:
    """Ends stale runs and asks once for a run that resumes what they had not done."""

    @dg.sensor(
        name=of_location(STALE_RUNS, name),
        jobs=list(jobs),
        minimum_interval_seconds=_STALE_INTERVAL_S,
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description="Marks runs failed whose worker is gone (the lease is free) and resumes them once.",
    )
    def stale_runs(context: dg.SensorEvaluationContext, rivet: RivetResource) -> dg.SensorResult:
        try:
            reaped = reap_stale_runs(context.instance, config, assets, rivet, tags={REAPED: "true"})
        except RivetError as error:  # Dagster would keep its text
            tell(error)
            return dg.SensorResult(skip_reason=failure_text(error, STALE_RUNS))
        requests = [
            request
            for one in reaped
            if resumable(context.instance, one.run)
            for request in resume_requests(context.instance, one.run, one.exports, assets, all_job)
        ]
        skip = None if requests else f"{len(reaped)} runs ended" if reaped else "no stale run"
        return dg.SensorResult(run_requests=requests, skip_reason=skip)

    definition: dg.SensorDefinition = stale_runs
    return definition


@dataclass(frozen=True, slots=True)
class Asked:
    """What the sensor last asked for: the source's token, when (epoch seconds), how often in a row."""

    token: str = ""
    at: float = 0.0
    times: int = 0

    @classmethod
    def parse(cls, cursor: str | None) -> "Asked":
        try:
            return cls(**json.loads(cursor or "{}"))
        except (ValueError, TypeError):  # somebody edited the cursor by hand: start over
            return cls()

    def again(self, token: str, now: float) -> "Asked | None":
        """The next request for ``token``, or None while it is too early to repeat the last one.

        The same token again means that the run for it did not succeed: a success moves the watermark.
        """
        if token != self.token:
            return Asked(token, now, 1)
        if now < self.at + min(_LONGEST_PAUSE_S, 60.0 * 2 ** min(self.times, 10)):
            return None
        return Asked(token, now, self.times + 1)

    def dump(self) -> str:
        return json.dumps(asdict(self))


def source_moved_sensor(config: RivetConfig, assets: ExportAssets, job: ExportJob) -> dg.SensorDefinition:
    """Runs the export when its source has moved past the watermark. One run at a time.

    There is no run key: Dagster remembers keys for ever, and a cursor that was reset would never be
    asked for again.
    """
    export = assets.export

    @dg.sensor(
        name=assets.names.sensor,
        job=job,
        minimum_interval_seconds=_MOVED_INTERVAL_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Runs export {export.name} when its source has new rows.",
    )
    def moved(context: dg.SensorEvaluationContext, rivet: RivetResource) -> dg.SensorResult:
        busy = dg.RunsFilter(job_name=assets.names.export_job, statuses=_QUEUED)
        if context.instance.get_run_records(busy, limit=1):
            return dg.SensorResult(skip_reason="a run of the export is queued or in progress")
        try:
            with rivet.engine(config, launched_by(context.instance)) as engine:
                token = engine.source_moved(export.name)
        except RivetError as error:
            tell(error)
            return dg.SensorResult(skip_reason=failure_text(error, export.name))
        if token is None:
            return dg.SensorResult(skip_reason="the source has nothing new")
        # the token may be a value of the source: what Dagster stores is its hash
        token = hashlib.sha256(token.encode()).hexdigest()[:16]
        asked = Asked.parse(context.cursor).again(token, time.time())
        if asked is None:
            return dg.SensorResult(skip_reason="the last run for this state of the source did not succeed")
        return dg.SensorResult(run_requests=[dg.RunRequest()], cursor=asked.dump())

    definition: dg.SensorDefinition = moved
    return definition
