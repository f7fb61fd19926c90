"""A rivet config becomes a Dagster code location."""

import os
from collections.abc import Mapping
from pathlib import Path

import dagster as dg

from rivet_dagster.assets.checks import build_reconcile_check
from rivet_dagster.assets.crashed import crashed_runs_sensor
from rivet_dagster.assets.executors import executor_of
from rivet_dagster.assets.exports import ExportAssets, build_export_asset, export_assets
from rivet_dagster.assets.jobs import all_job, export_job, reconcile_job, validate_job
from rivet_dagster.assets.notifications import notification_sensors
from rivet_dagster.assets.repair import repair_job
from rivet_dagster.assets.resources import RivetResource
from rivet_dagster.assets.schedules import export_schedule
from rivet_dagster.assets.sensors import source_moved_sensor, stale_runs_sensor, watched_steps
from rivet_dagster.assets.translator import RivetDagsterTranslator
from rivet_dagster.config import RivetConfig


def build_rivet_definitions(
    config_path_or_config: str | os.PathLike[str] | RivetConfig,
    *,
    translator: RivetDagsterTranslator | None = None,
    params: Mapping[str, str] | None = None,
    state_url: str | None = None,
    reaper: bool = False,
    name: str | None = None,
    executor: dg.ExecutorDefinition | None = dg.multiprocess_executor,
) -> dg.Definitions:
    """Assets, checks, jobs, schedules and sensors of every export in a rivet.yaml.

    Reads the config file and nothing else: no secret, no source, no state. state_url: where the
    engine keeps its state (default: the environment's RIVET_STATE_URL, else SQLite beside the
    config). reaper: whether the sensors that end and resume runs of dead workers are on from the start.
    name: tells what this config has once (``export_all``, its sensors) from another's in the same location.
    executor: for shared exports and what is materialized without a job (one process a step, so that a step
    can be ended), unless the config names one; None leaves it to the location.
    Raises ConfigError for a config that is wrong or not there.
    """
    config = _config(config_path_or_config, params)
    translator = translator or RivetDagsterTranslator()
    rivet = RivetResource.with_state_url(state_url) if state_url else RivetResource.of_environment()
    assets = [
        export_assets(config, export, translator)
        for export in config.exports
        if export.destination.type != "stdout"
    ]
    chosen = executor_of(config, executor)
    jobs = {a.export.name: export_job(a, rivet, chosen) for a in assets}
    every = all_job(assets, rivet, name)
    resuming = ([*jobs.values(), every], every.name)
    schedules = [export_schedule(a, jobs[a.export.name]) for a in assets]
    sensors = [source_moved_sensor(config, a, jobs[a.export.name]) for a in assets if a.export.dagster.sensor]
    return dg.Definitions(
        assets=[build_export_asset(a) for a in assets],
        asset_checks=[build_reconcile_check(a) for a in assets],
        jobs=[
            *jobs.values(),
            every,
            *(validate_job(a) for a in assets),
            *(reconcile_job(a) for a in assets),
            *(repair_job(a) for a in assets),
        ],
        schedules=[schedule for schedule in schedules if schedule is not None],
        sensors=[
            stale_runs_sensor(config, assets, *resuming, running=reaper, name=name),
            crashed_runs_sensor(config, assets, watched_steps(assets), *resuming, running=reaper, name=name),
            *notification_sensors(config, assets, watched_steps(assets), name=name),
            *sensors,
        ],
        resources={"rivet": rivet},
        executor=chosen,
    )


def load_export_assets(
    config: RivetConfig, translator: RivetDagsterTranslator | None = None
) -> list[ExportAssets]:
    """The exports as Dagster knows them, for tools that work on an instance (reap, setup)."""
    chosen = translator or RivetDagsterTranslator()
    return [
        export_assets(config, export, chosen)
        for export in config.exports
        if export.destination.type != "stdout"
    ]


def _config(source: str | os.PathLike[str] | RivetConfig, params: Mapping[str, str] | None) -> RivetConfig:
    if isinstance(source, RivetConfig):
        return source
    from rivet_dagster.config import load_config

    return load_config(Path(source), params)
