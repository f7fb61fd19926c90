"""Ranges of whole days of a date or timestamp column."""

from __future__ import annotations

import re
from datetime import date
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from msgspec.structs import replace

from rivet_dagster.engine.errors import ConfigError, RefusalError
from rivet_dagster.engine.plan.guards import key_fix, refuse_scan, require_column, wrong_kind
from rivet_dagster.engine.plan.plan import MAX_PARTITIONS, Plan, chunk_plan, with_nulls
from rivet_dagster.engine.plan.units import UnitKind, WorkUnit
from rivet_dagster.engine.sources.base import Planner, SourceFacts

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig

#: The grid's first line: ranges of N days start at multiples of N from here, so that growth shifts none.
EPOCH: Final = date(1970, 1, 1).toordinal()
MAX_DAY_RANGES: Final = 50_000
_DAY = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?![0-9]).*(?<!BC)", re.DOTALL)


def plan_days(export: ExportConfig, planner: Planner) -> Plan:
    """Half-open ranges of ``chunk_by_days`` UTC days; the last one ends at the pinned maximum."""
    facts, days = planner.facts, export.chunk_by_days
    assert days is not None
    column = day_column(export, facts)
    refuse_scan(export, facts, "chunk_column", (column,))
    bounds = planner.text_bounds(column)
    units = () if bounds is None else _units(export, facts, column, days, bounds)
    labelled = with_nulls(units, column, planner)
    if not labelled:
        labelled = (WorkUnit(0, UnitKind.WHOLE, "empty", {}),)
    return chunk_plan("chunked", labelled, planner, f"{len(labelled)} ranges of {days} days of {column}")


def _units(
    export: ExportConfig, facts: SourceFacts, column: str, days: int, bounds: tuple[str, str]
) -> tuple[WorkUnit, ...]:
    low, high = (day_of(export, "chunk_column", column, text) for text in bounds)
    first = EPOCH + (low - EPOCH) // days * days
    count = (high - first) // days + 1
    if count > MAX_DAY_RANGES:
        raise RefusalError(
            f"'{column}' runs from {_text(low)} to {_text(high)}, which is {count} ranges of {days} days; "
            "raise chunk_by_days, or use chunk_by_key",
            code="RIVET_PLAN_CHUNK_KEY_SPARSE",
            export=export.name,
            field="chunk_by_days",
        )
    found = []
    for index in range(count):
        start = first + index * days
        last = index == count - 1
        spec = {"column": column, "ge": day_literal(facts, column, start)}
        # the year 10000 has no date here, so the last range needs another end anyway
        end = {"le": bounds[1]} if last else {"lt": day_literal(facts, column, start + days)}
        shown = _text(max(start, 1)), bounds[1] if last else _text(start + days - 1)
        found.append(WorkUnit(index, UnitKind.SPAN, "", {**spec, **end}, *shown))
    return _labelled(found, first, days)


def _labelled(units: list[WorkUnit], first: int, days: int) -> tuple[WorkUnit, ...]:
    """Partition = first day of the range; past the cap, a coarser grid of a power of two."""
    span = days
    while len(units) * days // span > MAX_PARTITIONS:
        span *= 2
    slots = ((first + u.index * days - EPOCH) // span * span + EPOCH for u in units)
    return tuple(replace(u, partition=_text(max(slot, 1))) for u, slot in zip(units, slots, strict=True))


def day_column(export: ExportConfig, facts: SourceFacts) -> str:
    """``chunk_column``, which must hold dates or timestamps."""
    name = export.chunk_column
    if name is None:
        raise ConfigError(
            "`chunk_by_days` needs `chunk_column`",
            code="RIVET_CONFIG_CHUNK_KEY_UNSUITABLE",
            export=export.name,
            field="chunk_column",
            fix=key_fix(facts),
        )
    require_column(facts, export.name, "chunk_column", name)
    if not is_day(facts, name):
        raise wrong_kind(export, facts, "chunk_column", "days need a date or timestamp column")
    return name


def is_date(facts: SourceFacts, name: str) -> bool:
    column = facts.column(name)
    return column is not None and pa.types.is_date(column.source_arrow)


def is_day(facts: SourceFacts, name: str) -> bool:
    column = facts.column(name)
    return column is not None and (is_date(facts, name) or pa.types.is_timestamp(column.source_arrow))


def day_literal(facts: SourceFacts, column: str, ordinal: int) -> str:
    """Midnight in UTC at the start of a day, as text of the column's type."""
    return instant_literal(facts, column, _text(max(ordinal, 1)))


def instant_literal(facts: SourceFacts, column: str, day: str) -> str:
    """Midnight in UTC at the start of the ISO date ``day``, as text of the column's type."""
    found = facts.column(column)
    zoned = found and pa.types.is_timestamp(found.source_arrow) and found.source_arrow.tz
    return f"{day} 00:00:00+00" if zoned else day


def day_of(export: ExportConfig, key: str, column: str, text: str) -> int:
    """Ordinal of the UTC day that the server's text stands for. key: what names ``column``."""
    found = _DAY.fullmatch(text)
    if not found:
        raise RefusalError(
            f"'{column}' holds {text}, which lies outside the years 1 to 9999",
            code="RIVET_PLAN_BOUNDS_UNREADABLE",
            export=export.name,
            field=key,
        )
    return date(int(found[1]), int(found[2]), int(found[3])).toordinal()


def _text(ordinal: int) -> str:
    return date.fromordinal(ordinal).isoformat()
