"""A mode for each table, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow.types as t

from rivet_dagster.engine.plan.guards import MEMORY_CHUNK_ROWS, SPARSE_FACTOR
from rivet_dagster.engine.plan.sizing import MIB, shown_bytes
from rivet_dagster.engine.sources.postgres.catalog import Relation
from rivet_dagster.engine.sources.postgres.survey import Found, integer_key
from rivet_dagster.engine.types.decision import Column, Fidelity

#: Above it a table is cut into units that a killed run goes on with.
LARGE_MB: Final = 256
_UNIT_BYTES: Final = 128 * MIB
_NUMBER: Final = "decimal(38,9)"
_UNKNOWN_ROW: Final = 512  # bytes, where the table was never analysed

_CHANGED: Final = (
    *("updated_at", "modified_at", "last_modified", "last_updated", "changed_at", "updated_on"),
    *("modified_on", "updated", "modified", "date_modified", "date_updated", "mtime", "lastmodified"),
    *("update_time", "updatedat", "modifiedat", "write_date", "last_update", "modifieddate"),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """keys: of the export, after its table. why: lines of comment. options: what could be chosen instead.

    review: what a person should decide. refused: why the role cannot read it, None when it can.
    leave_out: columns that no file holds. overrides: column types to switch on, written as a comment.
    """

    keys: dict[str, Any]
    why: tuple[str, ...]
    options: tuple[str, ...] = ()
    review: tuple[str, ...] = ()
    refused: str | None = None
    leave_out: tuple[str, ...] = ()
    overrides: Mapping[str, str] = field(default_factory=dict)


def choose(found: Found, *, large_mb: int = LARGE_MB) -> Choice:
    """How ``found`` is read: whole when it is small, else in ranges of the best key it has."""
    relation = found.relation
    refused = _refused(relation)
    keys, why = _mode(found, large_mb)
    return Choice(
        keys,
        (f"{_size(relation)}.", *why),
        tuple(_options(relation)),
        tuple(_review(relation)),
        refused,
        tuple(c.name for c in relation.columns if c.fidelity is Fidelity.UNSUPPORTED),
        {c.name: _NUMBER for c in relation.columns if _open_numeric(c)},
    )


def _mode(found: Found, large_mb: int) -> tuple[dict[str, Any], list[str]]:
    relation = found.relation
    if relation.bytes < large_mb * MIB:
        return {"mode": "full"}, ["full: small enough to be read whole, under one snapshot."]
    size = _chunk_rows(relation)
    cut: dict[str, Any] = {"mode": "chunked"}
    rest = {"chunk_size": size, "chunk_checkpoint": True}
    goes_on = "a killed run goes on with the ranges that are missing."
    key = integer_key(relation)
    if key is not None and not _sparse(found):
        return {**cut, "chunk_column": key, **rest}, [f"chunked: ranges of the integer key {key}; {goes_on}"]
    unique = _unique_key(relation)
    if unique is None:
        return {"mode": "full"}, [
            "full: it has no unique key to cut it by. Its heap pages are read under one snapshot,",
            "and a killed run starts anew.",
        ]
    name = unique[0] if len(unique) == 1 else list(unique)
    shown = ", ".join(unique)
    why = f"chunked by key: ranges of {shown}, about {size:,} rows each; {goes_on}"
    if key is not None:
        why = f"chunked by key: {key} has large gaps, so ranges of equal width would be mostly empty."
    return {**cut, "chunk_by_key": name, **rest}, [why]


def _unique_key(relation: Relation) -> tuple[str, ...] | None:
    """The primary key, else the shortest NOT NULL unique one."""
    keys = [k for k in relation.unique_keys if k.not_null]
    keys.sort(key=lambda k: (not k.primary, len(k.columns)))
    return keys[0].columns if keys else None


def _sparse(found: Found) -> bool:
    rows = found.relation.tuples
    return bool(found.span and rows and found.span > SPARSE_FACTOR * rows)


def _chunk_rows(relation: Relation) -> int:
    rows = relation.tuples
    mean = relation.bytes / rows if rows else _UNKNOWN_ROW
    low, high = MEMORY_CHUNK_ROWS
    exact: int = int(max(low, min(high, _UNIT_BYTES / max(mean, 1))))
    step = 10 ** (len(str(exact)) - 1)
    return int(exact // step * step)


def _options(relation: Relation) -> Iterator[str]:
    column = _changed_column(relation)
    if column is None:
        return
    yield f"Or only what changed since the last run: `mode: incremental` with `cursor_column: {column.name}`."
    if column.name in relation.indexed:
        yield "It does not see deleted rows, nor all late commits (docs/guarantees.md)."
    else:
        yield f"Create an index on {column.name} first: without one each run scans the table."


def _changed_column(relation: Relation) -> Column | None:
    times = {c.name.lower(): c for c in relation.columns if t.is_timestamp(c.source_arrow)}
    return next((times[name] for name in _CHANGED if name in times), None)


def _review(relation: Relation) -> Iterator[str]:
    if relation.tuples is None and relation.bytes:
        yield "it was never analysed, so its size in rows is a guess: run ANALYZE."
    for column in relation.columns:
        if column.fidelity is Fidelity.UNSUPPORTED:
            yield f"{column.name} ({column.native_type}) is left out: no file type holds its values."
        elif _open_numeric(column):
            yield f"{column.name} is numeric without a precision: text, until `columns:` below is set."


def _open_numeric(column: Column) -> bool:
    return column.native_type == "numeric" and column.fidelity is Fidelity.TEXT


def _refused(relation: Relation) -> str | None:
    if not relation.schema_usage:
        return f"the role may not use schema {relation.schema}: GRANT USAGE ON SCHEMA"
    if not relation.can_select:
        return "the role may not read it: GRANT SELECT"
    if relation.rows_hidden:
        return "row-level security hides rows from the role: use the owner or a role with BYPASSRLS"
    return None


def _size(relation: Relation) -> str:
    size = relation.bytes
    shown = shown_bytes(size)
    rows = relation.tuples
    count = "an unknown number of rows" if rows is None else f"about {rows:,.0f} rows"
    key = f", key {', '.join(relation.primary_key)}" if relation.primary_key else ", no primary key"
    return f"{shown}, {count}{key}"
