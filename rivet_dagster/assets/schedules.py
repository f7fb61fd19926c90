"""A schedule for each export whose config names a cron line."""

from __future__ import annotations

import dagster as dg

from rivet_dagster.assets.exports import ExportAssets
from rivet_dagster.assets.jobs import ExportJob


def export_schedule(assets: ExportAssets, job: ExportJob) -> dg.ScheduleDefinition | None:
    """Running from the start: whoever wrote the cron line into the config wants it to tick."""
    cron = assets.export.dagster.schedule
    if cron is None:
        return None
    return dg.ScheduleDefinition(
        name=assets.names.schedule,
        job=job,
        cron_schedule=cron,
        execution_timezone=assets.export.dagster.timezone,
        description=f"Runs export {assets.export.name}.",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        tags={"rivet/export": assets.names.base},
    )
