"""Cutting by rows: ranges of a unique key, sampled, and ranges of any ordered column, counted."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rivet_dagster.engine.errors import ConfigError
from rivet_dagster.engine.plan.guards import (
    chunk_rows,
    key_fix,
    key_rows,
    refuse_scan,
    require_column,
    require_order,
)
from rivet_dagster.engine.plan.incremental import cursor_of
from rivet_dagster.engine.plan.plan import (
    KEYSET_INCREMENTAL,
    CursorWindow,
    Plan,
    chunk_plan,
    label_by_index,
    with_nulls,
)
from rivet_dagster.engine.plan.units import UnitKind, WorkUnit
from rivet_dagster.engine.sources.base import Cursor, Planner, SourceFacts

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig


def plan_keyset(export: ExportConfig, planner: Planner) -> Plan:
    """Ranges of a NOT NULL unique key, sampled once and kept in the plan."""
    facts = planner.facts
    key = export.key_columns
    require_key(export, facts, key)
    require_order(export, planner, "chunk_by_key", key)
    size = key_rows(export, facts, key)
    ranges = max(1, -(-(facts.est_rows or 0) // size))
    bounds: list[tuple[str, ...] | None] = [None, *planner.key_boundaries(key, ranges), None]
    units: list[WorkUnit] = []
    for low, high in itertools.pairwise(bounds):
        est = size if facts.est_rows else None
        units.append(
            WorkUnit(len(units), UnitKind.KEY, "", key_spec(key, low, high), _shown(low), _shown(high), est)
        )
    name = ", ".join(key)
    reason = f"{len(units)} ranges of {name}, about {size} rows each, boundaries sampled from the table"
    return chunk_plan("keyset", label_by_index(units), planner, reason)


def plan_keyset_incremental(export: ExportConfig, planner: Planner, watermark: str | None) -> Plan:
    """Ranges of the key past the last one that a run finished with, up to the pinned last one of now."""
    facts = planner.facts
    key = export.key_columns
    require_key(export, facts, key)
    require_order(export, planner, "chunk_by_key", key)
    cursor, size = cursor_of(export), chunk_rows(export, facts)
    name = ", ".join(key)
    found = planner.cursor_bounds(cursor, watermark, None, wait=export.waits_for_writers)
    window: CursorWindow | None = CursorWindow(cursor.identity, found.native_type, watermark, found.high)
    if found.high is None:
        reason = found.held or f"no row with {name} past the last key"
        if watermark is not None or found.held:
            return Plan(KEYSET_INCREMENTAL, (), "chunk", False, reason, window, skip_reason=reason)
        units = [WorkUnit(0, UnitKind.WHOLE, "", {})]
        window = None
    else:
        high = cursor.values(found.high)
        low = None if watermark is None else cursor.values(watermark)
        if low is None:
            ranges = max(1, -(-(facts.est_rows or 0) // key_rows(export, facts, key)))
            cuts = planner.key_boundaries(key, ranges, high)
        # the estimate says nothing about the new rows; their part of the index does
        elif len(key) == 1:
            cuts = [(cut,) for cut in planner.index_cuts(name, size, low[0], high[0])]
        else:
            cuts = planner.counted_keys(key, size, low, high)
        units = [
            WorkUnit(i, UnitKind.KEY, "", key_spec(key, a, b), _shown(a), _shown(b))
            for i, (a, b) in enumerate(itertools.pairwise([low, *cuts, high]))
        ]
    plan = chunk_plan(KEYSET_INCREMENTAL, label_by_index(units), planner, f"{len(units)} ranges of {name}")
    return replace(plan, cursor=window, notes=(found.held,) if found.held else ())


def window_of(units: Sequence[WorkUnit], cursor: Cursor, facts: SourceFacts) -> CursorWindow | None:
    """The window of a run of ``plan_keyset_incremental`` from its units, as the state keeps them."""
    if units[0].kind is not UnitKind.KEY:
        return None
    found = [facts.column(name) for name in cursor.key]
    native = ", ".join(column.native_type for column in found if column)
    low, high = (
        None if bound is None else cursor.text([bound] if isinstance(bound, str) else bound)
        for bound in (units[0].spec["gt"], units[-1].spec["le"])
    )
    return CursorWindow(cursor.identity, native, low, high)


def plan_dense(export: ExportConfig, planner: Planner) -> Plan:
    """Ranges of ``chunk_column`` that hold ``chunk_size`` rows each, counted once; ties stay together."""
    facts = planner.facts
    column = export.chunk_column or (facts.primary_key[0] if len(facts.primary_key) == 1 else None)
    if column is None:
        raise ConfigError(
            "`chunk_dense` needs a column, and the table has no primary key of one column",
            code="RIVET_CONFIG_CHUNK_KEY_UNSUITABLE",
            export=export.name,
            field="chunk_column",
            fix="set `chunk_column`",
        )
    require_column(facts, export.name, "chunk_column", column)
    refuse_scan(export, facts, "chunk_column", (column,))
    require_order(export, planner, "chunk_column", (column,))
    size = chunk_rows(export, facts)
    bounds: list[str | None] = [None, *planner.row_boundaries(column, size), None]
    units = [
        WorkUnit(i, UnitKind.SPAN, "", {"column": column, "gt": low, "le": high}, low, high, size)
        for i, (low, high) in enumerate(itertools.pairwise(bounds))
    ]
    labelled = with_nulls(label_by_index(units), column, planner)
    return chunk_plan("chunked", labelled, planner, f"{len(labelled)} ranges of {column}, {size} rows each")


def require_key(export: ExportConfig, facts: SourceFacts, key: tuple[str, ...]) -> None:
    """Raise ConfigError unless ``key`` is NOT NULL and has a whole unique index in exactly this order."""
    for name in key:
        require_column(facts, export.name, "chunk_by_key", name)
    if key[0] in facts.unique_keys if len(key) == 1 else key in facts.composite_keys:
        return
    what = (
        f"'{key[0]}' is not a NOT NULL column with a full unique index of its own"
        if len(key) == 1
        else f"({', '.join(key)}) are not NOT NULL columns with a full unique index in exactly this order"
    )
    raise ConfigError(
        what,
        code="RIVET_CONFIG_CHUNK_KEY_UNSUITABLE",
        export=export.name,
        field="chunk_by_key",
        fix=key_fix(facts),
    )


def key_spec(
    key: tuple[str, ...], low: tuple[str, ...] | None, high: tuple[str, ...] | None
) -> dict[str, object]:
    if len(key) == 1:
        return {"column": key[0], "gt": low and low[0], "le": high and high[0]}
    return {"columns": list(key), "gt": low and list(low), "le": high and list(high)}


def _shown(bound: tuple[str, ...] | None) -> str | None:
    return None if bound is None else ", ".join(bound)
