"""What planning refuses, and the column that each mode may cut by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rivet_dagster.engine.errors import ConfigError, RefusalError
from rivet_dagster.engine.plan import columns, sizing
from rivet_dagster.engine.sources.base import Planner, SourceFacts

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig

MAX_WINDOWS = 50_000_000
SPARSE_FACTOR = 4
SPARSE_MIN_WINDOWS = 64
MEMORY_CHUNK_ROWS = (10_000, 5_000_000)
SCAN_BYTES = sizing.GIB
_ROW_BYTES = 28  # of a row without columns: its header and line pointer


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
            fix=key_fix(facts),
        )
    require_column(facts, export.name, "chunk_column", name)
    if name not in facts.integer_columns:
        raise wrong_kind(export, facts, "chunk_column", "ranges need an integer column")
    return name


def wrong_kind(export: ExportConfig, facts: SourceFacts, key: str, need: str) -> ConfigError:
    """What is raised when the column that ``key`` names has a type which ``need`` rules out."""
    name = getattr(export, key)
    column = facts.column(name)
    return ConfigError(
        f"'{name}' is {column.native_type if column else 'unknown'}, and {need}",
        code="RIVET_CONFIG_CHUNK_KEY_UNSUITABLE",
        export=export.name,
        field=key,
        fix=key_fix(facts),
    )


def refuse_scan(export: ExportConfig, facts: SourceFacts, key: str, columns: Sequence[str]) -> None:
    """Refuse to look for bounds in a large table without an index, unless ``allow_scan`` is set.

    An index over an expression is not known here.
    """
    size = facts.bytes or 0
    if export.allow_scan or size <= SCAN_BYTES or (len(columns) == 1 and columns[0] in facts.indexed):
        return
    raise RefusalError(
        f"no index begins with {' or '.join(columns)}, so finding its bounds reads the whole table, "
        f"{size / sizing.GIB:.1f} GiB, before the first row is exported; "
        "create an index, or set `allow_scan: true`",
        code="RIVET_PLAN_SCAN_REFUSED",
        export=export.name,
        field=key,
    )


def require_column(facts: SourceFacts, export: str, key: str, name: str) -> None:
    """Raise ConfigError unless the source has the column, exactly as spelled."""
    names = [c.name for c in facts.columns]
    columns.require_column(names, export, key, name, case_code="RIVET_CONFIG_CURSOR_COLUMN_CASE")


def require_order(export: ExportConfig, planner: Planner, key: str, columns: Sequence[str]) -> None:
    """Raise ConfigError unless values of the columns can be sorted and compared."""
    for name in columns:
        if not planner.has_order(name):
            column = planner.facts.column(name)
            raise ConfigError(
                f"'{name}' is {column.native_type if column else 'unknown'}, which has no order",
                code="RIVET_CONFIG_INVALID"
                if key.startswith("cursor")
                else "RIVET_CONFIG_CHUNK_KEY_UNSUITABLE",
                export=export.name,
                field=key,
                fix="name a column that can be sorted",
            )


def chunk_rows(export: ExportConfig, facts: SourceFacts) -> int:
    """Rows of a chunk: ``chunk_size``, or what ``chunk_size_memory_mb`` holds by the mean row size."""
    if export.chunk_size_memory_mb is None:
        return export.chunk_size
    low, high = MEMORY_CHUNK_ROWS
    return int(max(low, min(high, export.chunk_size_memory_mb * sizing.MIB / mean_row_bytes(facts))))


def key_rows(export: ExportConfig, facts: SourceFacts, key: Sequence[str]) -> int:
    """Rows of a range of a key: ``chunk_rows``, and more where no size is named and it costs nothing.

    A table that lies in the order of its key is read page by page, so a range is as large as a unit of
    pages. Of any other each row may lie in a page of its own.
    """
    rows = chunk_rows(export, facts)
    named = export.given("chunk_size") or export.chunk_size_memory_mb is not None
    if named or not facts.bytes or key[0] not in facts.in_order:
        return rows
    size = min(sizing.unit_bytes(facts.bytes), sizing.STATEMENT_BYTES)
    return max(rows, int(size / mean_row_bytes(facts)) + 1)


def mean_row_bytes(facts: SourceFacts) -> float:
    """Bytes of a row in the source, at least 1; a guess where the size is unknown."""
    return max(1.0, facts.bytes / facts.est_rows) if facts.bytes and facts.est_rows else 512.0


def refuse_sparse(export: ExportConfig, facts: SourceFacts, column: str, windows: int) -> None:
    """Refuse a key whose ranges would mostly be empty (proven by a row estimate) or far too many."""
    size, rows = chunk_rows(export, facts), facts.est_rows
    if rows and not facts.analysed:
        rows = (facts.bytes or 0) // _ROW_BYTES  # a guess proves nothing, but more rows do not fit
    dense = -(-rows // size) if rows else None
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


def key_fix(facts: SourceFacts) -> str:
    keys = [f"chunk_by_key: {key}" for key in facts.unique_keys[:3]]
    keys += [f"chunk_by_key: [{', '.join(key)}]" for key in facts.composite_keys[:2]]
    if len(facts.primary_key) == 1 and facts.primary_key[0] in facts.integer_columns:
        keys.insert(0, f"chunk_column: {facts.primary_key[0]}")
    return " or ".join([*keys, "mode: full"])
