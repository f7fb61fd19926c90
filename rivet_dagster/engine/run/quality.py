"""``quality:`` gates over the rows of one run, looked at once, when all of its units are done.

A gate that fails ends the run with RIVET_QUALITY_FAILED: its files stay where they are, but no manifest,
marker or cursor ever speaks of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from msgspec import Struct

from rivet_dagster.engine.destinations.base import Store
from rivet_dagster.engine.errors import IntegrityError
from rivet_dagster.engine.plan.columns import require_column
from rivet_dagster.engine.plan.units import Part
from rivet_dagster.engine.run.unique import count_duplicates, in_doubt
from rivet_dagster.engine.types.decision import Column

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig
    from rivet_dagster.config.quality import QualityConfig

Status = Literal["pass", "warn", "fail"]


class GateResult(Struct, frozen=True):
    """One gate. limit and found: the figures that were compared."""

    gate: str
    column: str | None
    status: Status
    limit: float
    found: float
    note: str = ""

    def __str__(self) -> str:
        of = f" of {self.column}" if self.column else ""
        return f"{self.gate}{of}: {self.found:g}, limit {self.limit:g}{self.note}"

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__struct_fields__}


class QualityReport(Struct, frozen=True):
    results: tuple[GateResult, ...] = ()

    @property
    def passed(self) -> bool:
        return all(r.status != "fail" for r in self.results)

    @property
    def warnings(self) -> list[str]:
        return [f"quality: {r}" for r in self.results if r.status == "warn"]

    def as_json(self) -> dict[str, Any]:
        return {"passed": self.passed, "gates": [r.as_json() for r in self.results]}

    def raise_if_failed(self, export: str) -> None:
        """IntegrityError RIVET_QUALITY_FAILED that names every gate that failed."""
        failed = [r for r in self.results if r.status == "fail"]
        if failed:
            error = IntegrityError(
                "; ".join(str(r) for r in failed),
                code="RIVET_QUALITY_FAILED",
                export=export,
                field=failed[0].column or failed[0].gate,
            )
            error.details["quality"] = self.as_json()
            raise error


def require_gate_columns(export: ExportConfig, columns: Sequence[Column]) -> None:
    """Raise ConfigError for a gate on a column that the export does not write."""
    if export.quality is not None:
        names = [c.name for c in columns]
        for name in export.quality.null_ratio_max:
            require_column(names, export.name, f"quality.null_ratio_max.{name}", name)
        for name in export.quality.unique_columns:
            require_column(names, export.name, "quality.unique_columns", name)


def evaluate(export: ExportConfig, parts: Sequence[Part], store: Store) -> QualityReport:
    """All gates of the export over ``parts``; reads again those that may hold a value twice."""
    gates = export.quality
    if gates is None:
        return QualityReport()
    run = _Run(export, parts, store)
    results = [
        *_row_gates(gates, run.rows),
        *(run.null_gate(name, limit) for name, limit in gates.null_ratio_max.items()),
        *(run.unique_gate(name, gates.unique_max_entries) for name in gates.unique_columns),
    ]
    return QualityReport(tuple(results))


def _row_gates(gates: QualityConfig, rows: int) -> Iterator[GateResult]:
    if gates.row_count_min is not None:
        ok = rows >= gates.row_count_min
        yield GateResult("row_count_min", None, "pass" if ok else "fail", gates.row_count_min, rows)
    if gates.row_count_max is not None:
        ok = rows <= gates.row_count_max
        yield GateResult("row_count_max", None, "pass" if ok else "fail", gates.row_count_max, rows)


class _Run:
    """The parts of one run, by column."""

    def __init__(self, export: ExportConfig, parts: Sequence[Part], store: Store) -> None:
        self._format = export.format
        self._parts = [p for p in parts if p.rows]
        self._store = store
        self.rows = sum(p.rows for p in parts)

    def null_gate(self, name: str, limit: float) -> GateResult:
        nulls = sum(self._nulls(part, name) for part in self._parts)
        ratio = nulls / self.rows if self.rows else 0.0
        return GateResult("null_ratio_max", name, "fail" if ratio > limit else "pass", limit, ratio)

    def _nulls(self, part: Part, name: str) -> int:
        counted = part.stats.nulls.get(name) if part.stats is not None else None
        if counted is not None:
            return counted
        # written before the gate was in the config
        return sum(array.null_count for array in self._read([part], name))

    def unique_gate(self, name: str, most: int | None) -> GateResult:
        """Duplicates among values that are not NULL; only the first ``most`` rows are looked at."""
        rows = self.rows if most is None else min(most, self.rows)
        cut = rows < self.rows
        parts = self._parts if cut else in_doubt(self._parts, name)
        of_parts = min(rows, sum(part.rows for part in parts))
        duplicates = count_duplicates(lambda: self._read(parts, name), of_parts)
        status: Status = "fail" if duplicates else ("warn" if cut else "pass")
        note = f" (only {rows} of {self.rows} rows were looked at)" if cut else ""
        return GateResult("unique_columns", name, status, 0, duplicates, note)

    def _read(self, parts: Sequence[Part], name: str) -> Iterator[pa.Array]:
        from rivet_dagster.engine.verify.part_reader import csv_batches, parquet_batches

        for part in parts:
            with self._store.open_input(part.path) as file:
                if self._format == "csv":
                    batches = csv_batches(file, {name: pa.string()})
                else:
                    batches = parquet_batches(file, [name])
                for batch in batches:
                    array = batch.column(0)
                    yield array.storage if isinstance(array, pa.ExtensionArray) else array


__all__ = ["GateResult", "QualityReport", "evaluate", "require_gate_columns"]
