"""What a run would do, for people and programs that want to know it first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from rivet_dagster.engine.errors import RivetError, error_object
from rivet_dagster.engine.plan.guarantees import cursor_notes
from rivet_dagster.engine.plan.plan import Plan
from rivet_dagster.engine.plan.planner import plan_export
from rivet_dagster.engine.plan.sizing import GIB, shown_bytes
from rivet_dagster.engine.plan.units import UnitKind, WorkUnit
from rivet_dagster.engine.run.quality import require_gate_columns
from rivet_dagster.engine.run.resume import versions_read
from rivet_dagster.engine.sources.base import SourceFacts
from rivet_dagster.engine.types.decision import Fidelity, type_report

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig
    from rivet_dagster.engine.run.engine import Engine

_SHOWN = 10
_PATIENCE_S = 1.0


class Preview(Struct, frozen=True):
    """The plan of a fresh run. warnings: what a person should look at before the first run."""

    export: ExportConfig
    plan: Plan
    facts: SourceFacts

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(_warnings(self.export, self.plan, self.facts))

    @property
    def notes(self) -> tuple[str, ...]:
        """What the plan says of itself; and what its cursor can miss, also when there is nothing to read."""
        found = (*self.plan.notes, *cursor_notes(self.export, self.facts))
        return tuple(dict.fromkeys(found))

    @property
    def verdict(self) -> str:
        return "review" if self.warnings else "ok"

    def text(self, *, units: bool = True) -> str:
        """Strategy, reason, units, and what becomes of each column."""
        plan, facts = self.plan, self.facts
        rows = f"about {facts.est_rows} rows" if facts.est_rows else "an unknown number of rows"
        lines = [f"{self.export.name}: {plan.strategy}, {len(plan.units)} units, {rows}"]
        lines.append(f"  why: {plan.reason}")
        lines += [f"  note: {note}" for note in self.notes]
        if units:
            lines += [f"  {_unit(u)}" for u in plan.units[:_SHOWN]]
            if len(plan.units) > _SHOWN:
                lines.append(f"  ... and {len(plan.units) - _SHOWN} more")
        report = type_report(facts.columns)
        width = max(len(entry["column"]) for entry in report)
        lines += [f"  {entry['column']:{width}}  {_type(entry)}" for entry in report]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Every key always; bounds of units are values of the table."""
        plan, facts = self.plan, self.facts
        cursor = plan.cursor
        return {
            "export_name": self.export.name,
            "verdict": self.verdict,
            "strategy": plan.strategy,
            "why": plan.reason,
            "skip_reason": plan.skip_reason,
            "consistency": plan.consistency,
            "resumable": self.resumes,
            "est_rows": facts.est_rows,
            "bytes": facts.bytes,
            "cursor": cursor and {"column": cursor.column, "low": cursor.low, "high": cursor.high},
            "unit_count": len(plan.units),
            "units": [
                {"index": u.index, "kind": str(u.kind), "partition": u.partition,
                 "start": u.start_key, "end": u.end_key}
                for u in plan.units
            ],
            "columns": type_report(facts.columns),
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "error": None,
        }  # fmt: skip

    @property
    def resumes(self) -> bool:
        """A killed run goes on with its units."""
        return self.plan.resumable and self.export.chunk_checkpoint


def refused(export_name: str, error: RivetError) -> dict[str, Any]:
    """What planning refused, with the keys of ``Preview.as_json``."""
    none: dict[str, Any] = dict.fromkeys(
        ("strategy", "why", "skip_reason", "consistency", "resumable", "est_rows", "bytes", "cursor")
    )
    lists: dict[str, Any] = {name: [] for name in ("units", "columns", "warnings", "notes")}
    told = {"export_name": export_name, "verdict": "refused", "error": error_object(error)}
    return none | lists | {"unit_count": 0} | told


def preview(engine: Engine, name: str) -> Preview:
    """Plan a fresh run of ``name``; nothing is written and no lease is taken. Raises as planning does."""
    export = engine.export(name)
    cursor = engine.state.cursor(name, engine.prefix(export)) if export.accumulates else None
    with engine.source(export).planner(snapshot=export.reads_one_snapshot) as planner:
        planner.patience_s = _PATIENCE_S
        require_gate_columns(export, planner.facts.columns)
        plan = plan_export(
            export, planner, cursor.value if cursor else None, versions_read(engine.state, cursor)
        )
        return Preview(export, plan, planner.facts)


def _warnings(export: ExportConfig, plan: Plan, facts: SourceFacts) -> list[str]:
    found = []
    size = facts.bytes or 0
    if facts.table and not facts.analysed and size:
        found.append("the table was never analysed, so sizes are guesses; run ANALYZE")
    if plan.resumable and not export.chunk_checkpoint and len(plan.units) > 1:
        found.append("a killed run starts anew; `chunk_checkpoint: true` lets it go on")
    elif not plan.resumable and size > GIB and not export.accumulates:
        found.append(f"{shown_bytes(size)} under one snapshot: a killed run starts anew")
    if size > GIB and any(unit.kind is UnitKind.WHOLE for unit in plan.units):
        found.append(f"{shown_bytes(size)} in one statement; cut it with `mode: chunked`")
    for column in facts.columns:
        if column.fidelity is Fidelity.LOSSY:
            found.append(f"column '{column.name}': {column.native_type} as {column.arrow} loses digits")
        if column.nulls_unfit:
            found.append(f"column '{column.name}': values that do not fit become NULL")
    return found


def _type(entry: Mapping[str, Any]) -> str:
    words = [entry["fidelity"], entry["text_form"]]
    words += [word for word, holds in (("declared", "declared"), ("never NULL", "required")) if entry[holds]]
    words.append(entry["note"])
    return f"{entry['source']} -> {entry['file']} ({', '.join(word for word in words if word)})"


def _unit(unit: WorkUnit) -> str:
    bounds = f" {unit.start_key or ''} .. {unit.end_key or ''}" if unit.start_key or unit.end_key else ""
    return f"unit {unit.index} ({unit.kind}){bounds}"
