"""What the engine asks of a source: capabilities as data, planning facts, and a reader of units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from rivet_dagster.engine.errors import RivetError
from rivet_dagster.engine.plan.units import WorkUnit
from rivet_dagster.engine.types.decision import Column


@dataclass(frozen=True, slots=True)
class SourceCapabilities:
    engine: str
    exported_snapshot: bool  # one snapshot can be read by many connections
    page_ranges: bool  # a heap can be read in ranges of its own pages


@dataclass(frozen=True, slots=True)
class Heap:
    """A stored relation that is read on its own. pages/bytes: physical size; spec names it for units.

    split: its page ranges can be read cheaply (else it is read in one piece).
    """

    spec: dict[str, Any]
    pages: int
    bytes: int
    split: bool


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What planning needs to know about an export's source, read once.

    est_rows: None when unknown (never analysed). key: NOT NULL unique single columns.
    integer: names of integer columns. nullable: names that may hold NULL.
    signature: changes when the columns do.
    """

    schema: str | None
    table: str | None
    columns: tuple[Column, ...]
    heaps: tuple[Heap, ...]
    est_rows: int | None
    bytes: int | None
    unique_keys: tuple[str, ...]
    primary_key: tuple[str, ...]
    integer_columns: frozenset[str]
    nullable: frozenset[str]
    relation: Any = None
    notes: tuple[str, ...] = field(default=())

    @property
    def stream(self) -> str:
        """Which rows a cursor walks over: ``schema.table``, or ``query``."""
        return f"{self.schema}.{self.table}" if self.table else "query"

    def column(self, name: str) -> Column | None:
        return next((c for c in self.columns if c.name == name), None)


@dataclass(frozen=True, slots=True)
class CursorBounds:
    """Bound of a cursor column as the source's own text; None where there is no value.

    native_type: the column's type name, which a literal of the bound is cast to.
    """

    high: str | None
    native_type: str


class Planner(Protocol):
    """Questions that planning asks the source, on one connection and inside one snapshot."""

    facts: SourceFacts
    capabilities: SourceCapabilities

    def snapshot_id(self) -> str | None: ...

    def integer_bounds(self, column: str) -> tuple[int, int] | None: ...

    def has_nulls(self, column: str) -> bool: ...

    def key_boundaries(self, column: str, ranges: int) -> list[str]: ...

    def cursor_bounds(self, column: str, after: str | None) -> CursorBounds: ...


class UnitReader(Protocol):
    """One worker's connection. ``batches`` streams one unit; memory is bounded by the batch size.

    nulled: column -> values of the last unit that the policy ``null`` replaced.
    """

    nulled: dict[str, int]

    def batches(self, unit: WorkUnit) -> Iterator[pa.RecordBatch]: ...

    def classify(self, error: BaseException) -> RivetError: ...

    def cancel(self) -> None:
        """Break a read from another thread."""
        ...

    def close(self) -> None: ...
