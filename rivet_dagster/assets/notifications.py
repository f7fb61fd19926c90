"""``notifications:`` as sensors: one message for each run that ended with something to tell.

The sensors look at finished runs, so a run whose worker died is told like any other, each run once however
often its steps were tried, and sending costs no run any time. What they read is what Dagster stored: codes,
counts, names; a message cannot hold more.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from rivet_dagster.assets._internal import step_errors
from rivet_dagster.assets.crashed import crashed_steps
from rivet_dagster.assets.exports import ExportAssets
from rivet_dagster.assets.naming import DRIFT, of_location
from rivet_dagster.assets.reaper import Watched
from rivet_dagster.config import RivetConfig
from rivet_dagster.engine.notify import Notice, degraded_text, drift_text, failure_notice, notify

NOTIFY = "rivet_notify"
_INTERVAL_S = 30
_WILL_RETRY = "dagster/will_retry"

Metadata = Mapping[str, Any]


def notification_sensors(
    config: RivetConfig,
    assets: Sequence[ExportAssets],
    steps: Mapping[str, Watched],
    *,
    name: str | None = None,
) -> list[dg.SensorDefinition]:
    """For each ending that the config wants to hear of, a sensor that runs from the start."""
    slack = config.notifications.slack if config.notifications else None
    if slack is None or not slack.events:
        return []
    wanted = [(dg.DagsterRunStatus.FAILURE, "failed")]
    if {"schema_change", "degraded"} & set(slack.events):
        wanted.append((dg.DagsterRunStatus.SUCCESS, "succeeded"))
    return [_sensor(config, assets, steps, status, word, name) for status, word in wanted]


def _sensor(
    config: RivetConfig,
    assets: Sequence[ExportAssets],
    steps: Mapping[str, Watched],
    status: dg.DagsterRunStatus,
    word: str,
    name: str | None,
) -> dg.SensorDefinition:
    @dg.run_status_sensor(
        run_status=status,
        name=of_location(f"{NOTIFY}_{word}", name),
        minimum_interval_seconds=_INTERVAL_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"One message about each run of an export that {word}, if there is something to tell.",
    )
    def tell_of_run(context: dg.RunStatusSensorContext) -> None:
        # a returned reason would end the tick: one run every half a minute
        if why := _tell(config, assets, steps, context.instance, context.dagster_run):
            said = f"nobody was told of run {context.dagster_run.run_id}: {why}"
            context.log.warning(said)
            print(f"rivet: {said}", file=sys.stderr, flush=True)

    definition: dg.SensorDefinition = tell_of_run
    return definition


def _tell(
    config: RivetConfig,
    assets: Sequence[ExportAssets],
    steps: Mapping[str, Watched],
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
) -> str | None:
    """Send what there is to tell of ``run``; says why it did not arrive."""
    if run.tags.get(_WILL_RETRY) == "true":
        return None  # its last attempt is told
    quiet = {export for step, export in _exports(assets).items() if _no_notify(run, step)}
    found = run_notices(instance, run, assets, steps)
    footer = f"{run.job_name}, Dagster run {run.run_id}"
    slack = config.notifications.slack if config.notifications else None
    sent = notify(slack, (n for n in found if n.export not in quiet), footer)
    return sent.why if sent is not None and not sent.ok else None


def _no_notify(run: dg.DagsterRun, step: str) -> bool:
    config: Any = run.run_config
    for key in ("ops", step, "config", "no_notify"):
        config = config.get(key) if isinstance(config, Mapping) else None
    return config is True


def run_notices(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    assets: Sequence[ExportAssets],
    steps: Mapping[str, Watched],
) -> list[Notice]:
    """What happened in ``run`` to exports of this location: failures, changed columns, trouble."""
    failed = dict(_failures(instance, run, assets, steps))
    by_key = {a.table_key: a for a in assets} | {a.chunks_key: a for a in assets}
    told: dict[str, Notice] = {}
    trouble: dict[str, dict[str, Any]] = {}
    for event in _events(instance, run):
        if event.is_step_materialization:
            made = event.materialization
            export = by_key.get(made.asset_key)
            if export is not None and made.asset_key == export.table_key:
                trouble.setdefault(export.export.name, {}).update(_plain(made.metadata))
        elif event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            result = event.asset_check_evaluation_data
            export = by_key.get(result.asset_key)
            if export is None or result.passed or result.partition is not None:
                continue
            name = export.export.name
            changed = result.check_name == DRIFT and drift_text(_plain(result.metadata).get("columns", {}))
            if changed:
                told.setdefault(name, Notice(name, "schema_change", changed))
            else:
                trouble.setdefault(name, {}).setdefault("checks", []).append(result.check_name)
    notices = [*failed.values()]
    notices += [notice for name, notice in told.items() if _event(failed, name) != "schema_change"]
    for name, facts in trouble.items():
        text = degraded_text(
            retries=facts.get("retries", 0),
            nulled=facts.get("values_nulled", 0),
            gates=facts.get("checks", ()),
        )
        if text and name not in failed:
            notices.append(Notice(name, "degraded", text, facts.get("run_id", "")))
    return notices


def _event(failed: Mapping[str, Notice], name: str) -> str | None:
    return failed[name].event if name in failed else None


def _exports(assets: Sequence[ExportAssets]) -> dict[str, str]:
    """Step -> its export."""
    return {
        step: a.export.name for a in assets for step in (a.names.op, a.names.reconcile_op, a.names.repair_op)
    }


def _failures(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    assets: Sequence[ExportAssets],
    steps: Mapping[str, Watched],
) -> Iterator[tuple[str, Notice]]:
    """By export: the crash that was found, else the error object that its step ended with."""
    if run.status != dg.DagsterRunStatus.FAILURE:
        return
    for key in crashed_steps(instance, run.run_id, steps):
        name = steps[key].export
        yield name, failure_notice(name, {"class": "crashed"})
    objects = [(key, metadata) for key, metadata in step_errors(instance, run.run_id) if "class" in metadata]
    for event in _events(instance, run, {dg.DagsterEventType.STEP_FAILURE}):
        data = event.step_failure_data.user_failure_data
        if event.step_key is not None and data is not None:
            objects.append((event.step_key, data.metadata))
    exports = _exports(assets)
    for key, metadata in objects:
        if key in exports:
            error = _plain(metadata)
            yield exports[key], failure_notice(exports[key], error, error.get("run_id") or "")


def _events(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    kinds: set[dg.DagsterEventType] | None = None,
) -> Iterable[dg.DagsterEvent]:
    wanted = kinds or {
        dg.DagsterEventType.ASSET_MATERIALIZATION,
        dg.DagsterEventType.ASSET_CHECK_EVALUATION,
    }
    for entry in instance.all_logs(run.run_id, of_type=wanted):
        if entry.dagster_event is not None:
            yield entry.dagster_event


def _plain(metadata: Metadata) -> dict[str, Any]:
    return {key: getattr(value, "value", value) for key, value in metadata.items()}
