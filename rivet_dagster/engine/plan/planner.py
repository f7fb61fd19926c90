"""Modes become work units. Nothing here reads a row or knows an engine's SQL."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rivet_dagster.engine.errors import ConfigError, RefusalError
from rivet_dagster.engine.plan import columns, sizing
from rivet_dagster.engine.plan.units import UnitKind, WorkUnit
from rivet_dagster.engine.sources.base import Planner, SourceFacts

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig

MAX_PARTITIONS = 500  # each costs 40 to 75 ms of Dagster events
MAX_WINDOWS = 50_000_000
SPARSE_FACTOR = 4
SPARSE_MIN_WINDOWS = 64
MEMORY_CHUNK_ROWS = (10_000, 5_000_000)


@dataclass(frozen=True, slots=True)
class CursorWindow:
    """(low, high] of an incremental run; None: no lower bound (first run)."""

    column: str
    native_type: str
    low: str | None
    high: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """consistency: ``snapshot`` (all units read one snapshot) or ``chunk`` (each its own).

    resumable: the units mean the same in a later snapshot. skip_reason: there is nothing to do.
    """

    strategy: str
    units: tuple[WorkUnit, ...]
    consistency: str
    resumable: bool
    reason: str
    cursor: CursorWindow | None = None
    skip_reason: str | None = None


def plan_export(export: ExportConfig, planner: Planner, watermark: str | None) -> Plan:
    """The plan of one run. ``watermark``: the cursor value that the last run committed, or None.

    Raises ConfigError or RefusalError, naming export and key, before anything is written.
    """
    if export.mode == "full":
        return plan_full(planner)
    if export.mode == "incremental":
        return plan_incremental(export, planner, watermark)
    if export.chunk_by_key is not None:
        return plan_keyset(export, planner)
    return plan_range(export, planner)


def plan_full(planner: Planner) -> Plan:
    """Heap page ranges under one snapshot; one unit for each relation that cannot be split."""
    facts = planner.facts
    snapshot = planner.snapshot_id() is not None
    total = sum(heap.bytes for heap in facts.heaps)
    wanted = sizing.unit_bytes(total)
    units: list[WorkUnit] = []
    for heap in facts.heaps:
        if not (heap.split and snapshot and heap.pages):
            units.append(WorkUnit(len(units), UnitKind.WHOLE, "", dict(heap.spec)))
            continue
        for first, last in sizing.page_ranges(heap.pages, heap.bytes, wanted):
            spec = {
                **heap.spec,
                "first": first,
                "last": last,
                "step": sizing.page_step(heap.pages, heap.bytes, sizing.STATEMENT_BYTES),
                "pages": heap.pages,
            }
            end = "" if last is None else str(last - 1)
            units.append(
                WorkUnit(len(units), UnitKind.PAGES, "", spec, f"page {first}", end and f"page {end}")
            )
    if not units:
        units.append(WorkUnit(0, UnitKind.WHOLE, "", {}))
    paged = sum(u.kind is UnitKind.PAGES for u in units)
    reason = (
        f"{paged} page ranges of about {wanted // sizing.MIB} MiB under one snapshot"
        if paged
        else "read in one piece: nothing to split by"
    )
    return Plan(
        "full", _label_by_index(units), "snapshot" if snapshot else "chunk", resumable=False, reason=reason
    )


def plan_incremental(export: ExportConfig, planner: Planner, watermark: str | None) -> Plan:
    """(watermark, bound], the bound pinned in the snapshot that is read.

    The first run reads everything, rows without a cursor value included.
    """
    name = export.cursor_column
    assert name is not None
    require_column(planner.facts, export.name, "cursor_column", name)
    bounds = planner.cursor_bounds(name, watermark)
    window = CursorWindow(name, bounds.native_type, watermark, bounds.high)
    if watermark is None:
        plan = plan_full(planner)
        reason = f"first run: the whole table up to the pinned bound, {plan.reason}"
        return replace(plan, strategy="incremental", cursor=window, reason=reason)
    if bounds.high is None:
        reason = f"no row with {name} past the watermark"
        return Plan("incremental", (), "snapshot", False, reason, window, skip_reason=reason)
    spec = {"column": name, "gt": watermark, "le": bounds.high}
    unit = WorkUnit(0, UnitKind.WINDOW, "", spec, watermark, bounds.high)
    return Plan(
        "incremental",
        _label_by_index([unit]),
        "snapshot",
        False,
        f"rows with {name} past the watermark",
        window,
    )


def plan_keyset(export: ExportConfig, planner: Planner) -> Plan:
    """Ranges of a NOT NULL unique key, sampled once and kept in the plan."""
    key = export.chunk_by_key
    assert key is not None
    facts = planner.facts
    require_column(facts, export.name, "chunk_by_key", key)
    if key not in facts.unique_keys:
        raise ConfigError(
            f"'{key}' is not a NOT NULL column with a full unique index of its own",
            code="RIVET_CONFIG_CHUNK_KEY_UNSUITABLE",
            export=export.name,
            field="chunk_by_key",
            fix=_key_fix(facts),
        )
    size = chunk_rows(export, facts)
    ranges = max(1, -(-(facts.est_rows or 0) // size))
    bounds: list[str | None] = [None, *planner.key_boundaries(key, ranges), None]
    units = []
    for index, (low, high) in enumerate(itertools.pairwise(bounds)):
        spec = {"column": key, "gt": low, "le": high}
        units.append(WorkUnit(index, UnitKind.KEY, "", spec, low, high, size if facts.est_rows else None))
    reason = f"{len(units)} ranges of {key}, about {size} rows each, boundaries sampled from the table"
    return Plan("keyset", _label_by_index(units), "chunk", resumable=True, reason=reason)


def plan_range(export: ExportConfig, planner: Planner) -> Plan:
    """Closed integer ranges of ``chunk_column`` between its pinned minimum and maximum."""
    facts = planner.facts
    column = range_column(export, facts)
    bounds = planner.integer_bounds(column)
    units: list[WorkUnit] = []
    partitions: Callable[[list[WorkUnit]], tuple[WorkUnit, ...]] = _label_by_index
    if bounds is not None:
        low, high = bounds
        size = chunk_rows(export, facts)
        if export.chunk_count is not None:
            ranges = sizing.counted_ranges(low, high, export.chunk_count)
        else:
            refuse_sparse(export, facts, column, sizing.range_count(low, high, size))
            ranges = sizing.integer_ranges(low, high, size)
            partitions = _grid_labels(size, sizing.range_count(low, high, size))
        for lo, hi in ranges:
            spec = {"column": column, "ge": str(lo), "le": str(hi)}
            units.append(WorkUnit(len(units), UnitKind.RANGE, "", spec, str(lo), str(hi)))
    labelled = partitions(units)
    if column in facts.nullable and planner.has_nulls(column):
        nulls = WorkUnit(len(units), UnitKind.NULLS, "null", {"column": column}, "NULL", "NULL")
        labelled = (*labelled, nulls)
    if not labelled:
        labelled = _label_by_index([WorkUnit(0, UnitKind.WHOLE, "", {})])
    return Plan("chunked", labelled, "chunk", True, f"{len(labelled)} ranges of {column}")


def range_column(export: ExportConfig, facts: SourceFacts) -> str:
    """``chunk_column``, or the single integer primary key when none is named."""
    name = export.chunk_column
    if name is None:
        if len(facts.primary_key) == 1 and facts.primary_key[0] in facts.integer_columns:
            return facts.primary_key[0]
        raise ConfigError(
            "mode chunked needs a key, and the table has no single integer primary key",
            code="RIVET_CONFIG_CHUNK_KEY_UNSUITABLE",
            export=export.name,
            field="chunk_column",
            fix=_key_fix(facts),
        )
    require_column(facts, export.name, "chunk_column", name)
    if name not in facts.integer_columns:
        column = facts.column(name)
        kind = column.native_type if column else "unknown"
        raise ConfigError(
            f"'{name}' is {kind}, and ranges need an integer column",
            code="RIVET_CONFIG_CHUNK_KEY_UNSUITABLE",
            export=export.name,
            field="chunk_column",
            fix=_key_fix(facts),
        )
    return name


def require_column(facts: SourceFacts, export: str, key: str, name: str) -> None:
    """Raise ConfigError unless the source has the column, exactly as spelled."""
    names = [c.name for c in facts.columns]
    columns.require_column(names, export, key, name, case_code="RIVET_CONFIG_CURSOR_COLUMN_CASE")


def chunk_rows(export: ExportConfig, facts: SourceFacts) -> int:
    """Rows of a chunk: ``chunk_size``, or what ``chunk_size_memory_mb`` holds by the mean row size."""
    if export.chunk_size_memory_mb is None:
        return export.chunk_size
    mean = facts.bytes / facts.est_rows if facts.bytes and facts.est_rows else 512
    low, high = MEMORY_CHUNK_ROWS
    return int(max(low, min(high, export.chunk_size_memory_mb * sizing.MIB / max(mean, 1))))


def refuse_sparse(export: ExportConfig, facts: SourceFacts, column: str, windows: int) -> None:
    """Refuse a key whose ranges would mostly be empty (proven by a row estimate) or far too many."""
    size = chunk_rows(export, facts)
    dense = -(-facts.est_rows // size) if facts.est_rows else None
    sparse = dense is not None and windows >= SPARSE_MIN_WINDOWS and windows >= SPARSE_FACTOR * max(dense, 1)
    if windows <= MAX_WINDOWS and not sparse:
        return
    why = f"about {dense} would hold rows" if dense is not None else f"the ceiling is {MAX_WINDOWS}"
    raise RefusalError(
        f"chunk_column '{column}' would need {windows} ranges of {size}, and {why}; "
        f"use chunk_by_key, a larger chunk_size, or mode: full",
        code="RIVET_PLAN_CHUNK_KEY_SPARSE",
        export=export.name,
        field="chunk_column",
    )


def _key_fix(facts: SourceFacts) -> str:
    keys = [f"chunk_by_key: {key}" for key in facts.unique_keys[:3]]
    if len(facts.primary_key) == 1 and facts.primary_key[0] in facts.integer_columns:
        keys.insert(0, f"chunk_column: {facts.primary_key[0]}")
    return " or ".join([*keys, "mode: full"])


def _label_by_index(units: list[WorkUnit]) -> tuple[WorkUnit, ...]:
    """Partition = position in the plan; past the cap, neighbours share one."""
    share = -(-max(len(units), 1) // MAX_PARTITIONS)
    return tuple(replace(u, partition=f"{u.index // share * share:06d}") for u in units)


def _grid_labels(size: int, count: int) -> Callable[[list[WorkUnit]], tuple[WorkUnit, ...]]:
    """Partition = lower bound on the grid of chunk_size; past the cap a coarser, power-of-two grid."""
    span = size
    while -(-count * size // span) > MAX_PARTITIONS:
        span *= 2

    def label(units: Iterable[WorkUnit]) -> tuple[WorkUnit, ...]:
        return tuple(replace(u, partition=_grid_key(int(u.start_key or 0), span)) for u in units)

    return label


def _grid_key(low: int, span: int) -> str:
    slot = low - low % span
    return f"{slot:012d}" if slot >= 0 else f"-{-slot:012d}"
