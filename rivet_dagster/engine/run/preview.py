"""What a run would do, for people who want to see it first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rivet_dagster.engine.plan.guarantees import cursor_notes
from rivet_dagster.engine.plan.plan import Plan
from rivet_dagster.engine.plan.planner import plan_export
from rivet_dagster.engine.plan.units import WorkUnit
from rivet_dagster.engine.run.resume import versions_read
from rivet_dagster.engine.sources.base import SourceFacts
from rivet_dagster.engine.types.decision import type_report

if TYPE_CHECKING:
    from rivet_dagster.engine.run.engine import Engine

_SHOWN = 10


def preview(engine: Engine, name: str) -> str:
    """The plan of a fresh run of ``name`` as text: units, reason, and what becomes of each column."""
    export = engine.export(name)
    cursor = engine.state.cursor(name, str(engine.prefix(export))) if export.accumulates else None
    with engine.source(export).planner(snapshot=export.reads_one_snapshot) as planner:
        plan = plan_export(
            export, planner, cursor.value if cursor else None, versions_read(engine.state, cursor)
        )
        notes = dict.fromkeys((*plan.notes, *cursor_notes(export, planner.facts)))
        return _text(name, plan, planner.facts, tuple(notes))


def _text(name: str, plan: Plan, facts: SourceFacts, notes: tuple[str, ...]) -> str:
    rows = f"about {facts.est_rows} rows" if facts.est_rows else "an unknown number of rows"
    lines = [f"{name}: {plan.strategy}, {len(plan.units)} units, {rows}", f"  why: {plan.reason}"]
    lines += [f"  note: {note}" for note in notes]
    lines += [f"  {_unit(u)}" for u in plan.units[:_SHOWN]]
    if len(plan.units) > _SHOWN:
        lines.append(f"  ... and {len(plan.units) - _SHOWN} more")
    report = type_report(facts.columns)
    width = max(len(entry["column"]) for entry in report)
    lines += [f"  {entry['column']:{width}}  {_type(entry)}" for entry in report]
    return "\n".join(lines)


def _type(entry: Mapping[str, Any]) -> str:
    words = [entry["fidelity"], entry["text_form"]]
    words += [word for word, holds in (("declared", "declared"), ("never NULL", "required")) if entry[holds]]
    words.append(entry["note"])
    return f"{entry['source']} -> {entry['file']} ({', '.join(word for word in words if word)})"


def _unit(unit: WorkUnit) -> str:
    bounds = f" {unit.start_key or ''} .. {unit.end_key or ''}" if unit.start_key or unit.end_key else ""
    return f"unit {unit.index} ({unit.kind}){bounds}"
