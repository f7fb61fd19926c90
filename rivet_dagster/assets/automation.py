"""``dagster.automation`` and ``dagster.freshness`` of an export, as Dagster's own conditions and policies."""

from datetime import timedelta
from typing import Any

import dagster as dg

from rivet_dagster.config import ExportConfig
from rivet_dagster.config.sizes import parse_duration


def automation_condition(export: ExportConfig, own: list[dg.AssetKey]) -> dg.AutomationCondition[Any] | None:
    """When Dagster's automation runs the export. own: its chunk assets.

    The table depends on its own chunks, which the same run makes: they are never what it waits for, nor a
    reason to run again.
    """
    wanted = export.dagster.automation
    if wanted is None:
        return None
    chunks = dg.AssetSelection.assets(*own)
    if wanted == "eager":
        return dg.AutomationCondition.eager().ignore(chunks)
    return dg.AutomationCondition.on_cron(wanted, export.dagster.timezone).ignore(chunks)


def with_its_table(export: ExportConfig) -> dg.AutomationCondition[Any] | None:
    """Of the inline checks: they run with the table whenever automation asks for it."""
    if export.dagster.automation is None:
        return None
    return dg.AutomationCondition.any_deps_match(dg.AutomationCondition.will_be_requested())


def freshness_policy(export: ExportConfig) -> dg.FreshnessPolicy | None:
    wanted = export.dagster.freshness
    if wanted is None:
        return None
    if wanted.fail_after is not None:
        return dg.FreshnessPolicy.time_window(
            fail_window=_length(wanted.fail_after),
            warn_window=_length(wanted.warn_after) if wanted.warn_after else None,
        )
    return dg.FreshnessPolicy.cron(
        deadline_cron=wanted.by or "",
        lower_bound_delta=_length(wanted.within or ""),
        timezone=export.dagster.timezone,
    )


def _length(text: str) -> timedelta:
    return timedelta(seconds=parse_duration(text))
