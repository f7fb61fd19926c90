"""Figures that are taken of every batch on its way into a part, and their sums over a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rivet_dagster.engine.plan.units import PartStats
from rivet_dagster.engine.run.drift import WIDTH_FACTOR
from rivet_dagster.engine.run.sink import Measure
from rivet_dagster.engine.sources.postgres.cells import cell_span, has_span, widest
from rivet_dagster.engine.types.decision import Column

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig


def width_factor(export: ExportConfig) -> float:
    """``shape_drift_warn_factor``; 0 is off."""
    factor = export.shape_drift_warn_factor
    return WIDTH_FACTOR if factor is None else factor


def measure(export: ExportConfig, columns: Sequence[Column]) -> Measure | None:
    """What is measured of the batches of ``columns`` (as the file holds them); None: nothing."""
    gates = export.quality
    counted = list(gates.null_ratio_max) if gates is not None else []
    unique = set(gates.unique_columns) if gates is not None else set()
    ordered = [c.name for c in columns if c.name in unique and has_span(c.arrow)]
    texts = [c.name for c in columns if _is_variable(c.arrow)] if width_factor(export) else []
    if not (counted or texts or ordered):
        return None

    def figures(batch: pa.RecordBatch) -> PartStats:
        return PartStats(
            {name: batch.column(name).null_count for name in counted},
            {name: widest(batch.column(name)) for name in texts},
            spans={name: cell_span(batch.column(name)) for name in ordered},
        )

    return figures


def _is_variable(arrow: pa.DataType) -> bool:
    stored = arrow.storage_type if isinstance(arrow, pa.BaseExtensionType) else arrow
    return bool(pa.types.is_string(stored) or pa.types.is_binary(stored))


def total(parts: Iterable[PartStats | None]) -> PartStats:
    """Of all rows of ``parts``."""
    found = PartStats()
    for stats in parts:
        found = found if stats is None else found.joined(stats)
    return found


def policies_record(
    export: ExportConfig, columns: Sequence[Column], nulled: PartStats
) -> dict[str, dict[str, Any]]:
    """What the manifest says about values without a form: policy of a column, values it replaced."""
    found: dict[str, dict[str, Any]] = {
        c.name: {"policy": "null", "nulled": nulled.nulled.get(c.name, 0)} for c in columns if c.nulls_unfit
    }
    texts = [name for name, policy in export.value_policies.items() if policy == "text"]
    return found | {name: {"policy": "text", "nulled": 0} for name in texts}


def nulled_lines(figures: PartStats) -> list[str]:
    """What the policy ``null`` did, for a person."""
    return [
        f"{count} values of '{name}' have no form in its type and are NULL"
        for name, count in figures.nulled.items()
    ]


__all__ = ["measure", "nulled_lines", "policies_record", "total", "width_factor"]
