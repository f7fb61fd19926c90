"""Partitions of an export's chunk asset: those that its plans turn out to have, or windows of time."""

from __future__ import annotations

from datetime import date
from typing import Final

import dagster as dg

from rivet_dagster.assets.naming import ExportNames
from rivet_dagster.config import ExportConfig
from rivet_dagster.engine.names import NULL_KEY

#: Granularity -> when a window begins, and how its key is written; the same as the folder's value.
_WINDOWS: Final = {
    "day": ("0 0 * * *", "%Y-%m-%d"),
    "month": ("0 0 1 * *", "%Y-%m"),
    "year": ("0 0 1 1 *", "%Y"),
}


def chunk_partitions(export: ExportConfig) -> dg.PartitionsDefinition[str]:
    """Windows in UTC that are over, from ``partitions_start`` on; without it dynamic partitions."""
    start = export.dagster.start_day
    if start is None:
        return dg.DynamicPartitionsDefinition(name=ExportNames.of(export).partitions)
    cron, form = _WINDOWS[export.partition_granularity]
    return dg.TimeWindowPartitionsDefinition(
        start=_first(start, export.partition_granularity).strftime(form),
        fmt=form,
        cron_schedule=cron,
        timezone="UTC",  # a window is shown when it is over: until then more of its rows may come
    )


def _first(day: date, granularity: str) -> date:
    """The first day of the window that holds ``day``."""
    if granularity == "day":
        return day
    return day.replace(day=1) if granularity == "month" else day.replace(month=1, day=1)


def is_window(partitions: dg.PartitionsDefinition[str], key: str) -> bool:
    """Whether ``key`` is one of these partitions; a dynamic one is added when it is met."""
    if isinstance(partitions, dg.DynamicPartitionsDefinition):
        return True
    return key != NULL_KEY and partitions.has_partition_key(key)
