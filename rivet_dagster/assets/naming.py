"""Dagster names of an export: op, jobs, pool, partitions, schedule, sensor.

All are built on ``ExportConfig.asset_name``, which the config keeps unique. The prefixes differ so
that no export's name can make the name of another export's job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rivet_dagster.config import ExportConfig

VALIDATE = "validate"
QUALITY = "quality"
DRIFT = "drift"
RECONCILE = "reconcile"
RECONCILE_CHUNKS = "reconcile_chunks"

#: Tag of a run whose tables log their inline checks without these being selected.
CHECKS_LOGGED = "rivet/checks_logged"

_UNSAFE = re.compile(r"[^A-Za-z0-9_]")


def safe_name(text: str) -> str:
    """``text`` with everything that Dagster's names do not take replaced by ``_``."""
    return _UNSAFE.sub("_", text)


@dataclass(frozen=True, slots=True)
class ExportNames:
    """Every Dagster name of one export. base: its asset name."""

    base: str

    @classmethod
    def of(cls, export: ExportConfig) -> ExportNames:
        return cls(export.asset_name)

    @property
    def op(self) -> str:
        return f"rivet_export__{self.base}"

    @property
    def lead_op(self) -> str:
        return f"rivet_lead__{self.base}"

    @property
    def worker_op(self) -> str:
        return f"rivet_worker__{self.base}"

    @property
    def reconcile_op(self) -> str:
        return f"rivet_reconcile__{self.base}"

    @property
    def repair_op(self) -> str:
        return f"rivet_repair__{self.base}"

    @property
    def export_job(self) -> str:
        return f"export_{self.base}"

    @property
    def reconcile_job(self) -> str:
        return f"reconcile_{self.base}"

    @property
    def validate_job(self) -> str:
        return f"validate_{self.base}"

    @property
    def repair_job(self) -> str:
        return f"repair_{self.base}"

    @property
    def schedule(self) -> str:
        return f"schedule_{self.base}"

    @property
    def sensor(self) -> str:
        return f"source_moved_{self.base}"

    @property
    def partitions(self) -> str:
        return f"rivet__{self.base}"

    @property
    def own_pool(self) -> str:
        return f"rivet_{self.base}"


def of_location(what: str, name: str | None) -> str:
    """Name of what a config has once: with ``name`` where a location has several configs."""
    return f"{what}_{safe_name(name)}" if name else what


def export_all_job(exports: Iterable[ExportConfig], name: str | None = None) -> str:
    """``export_all``, or a longer name when an export is itself called ``all``."""
    taken = {ExportNames.of(export).export_job for export in exports}
    job = of_location("export_all", name)
    while job in taken:
        job += "_exports"
    return job
