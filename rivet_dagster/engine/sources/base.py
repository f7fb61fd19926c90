"""What the engine asks of a source: capabilities as data, planning facts, and a reader of units."""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
from msgspec import Struct, field

from rivet_dagster.engine.errors import RivetError
from rivet_dagster.engine.plan.units import WorkUnit
from rivet_dagster.engine.types.decision import Column


class SourceCapabilities(Struct, frozen=True):
    engine: str
    exported_snapshot: bool  # one snapshot can be read by many connections
    page_ranges: bool  # a heap can be read in ranges of its own pages


class Heap(Struct, frozen=True):
    """A stored relation that is read on its own. pages/bytes: physical size; spec names it for units.

    split: its page ranges can be read cheaply (else it is read in one piece).
    """

    spec: dict[str, Any]
    pages: int
    bytes: int
    split: bool


class SourceFacts(Struct, frozen=True):
    """What planning needs to know about an export's source, read once.

    est_rows: None when unknown; a guess by the size alone unless ``analysed``.
    unique_keys: NOT NULL unique single columns; composite_keys: several, in the order of their index.
    integer_columns, nullable (may hold NULL), indexed (an index begins with it): names.
    signature: changes when the columns do. origins: columns that the server fills, and how.
    numbers: of the columns; one that takes the place of another of its name has its own.
    sequenced: columns that a sequence numbers one by one. unseen: why nobody can tell which transactions
    are open there, None where it can be told. in_order: columns that the table's rows lie in the order of,
    nearly, as far as statistics tell.
    """

    schema: str | None
    table: str | None
    columns: tuple[Column, ...]
    heaps: tuple[Heap, ...]
    est_rows: int | None
    bytes: int | None
    unique_keys: tuple[str, ...]
    composite_keys: tuple[tuple[str, ...], ...]
    primary_key: tuple[str, ...]
    integer_columns: frozenset[str]
    nullable: frozenset[str]
    indexed: frozenset[str]
    relation: Any = None
    origins: Mapping[str, str] = field(default_factory=dict)
    analysed: bool = True
    numbers: tuple[int, ...] = ()
    sequenced: frozenset[str] = frozenset()
    unseen: str | None = None
    in_order: frozenset[str] = frozenset()

    @property
    def stream(self) -> str:
        """Which rows a cursor walks over: ``schema.table``, or ``query``."""
        return f"{self.schema}.{self.table}" if self.table else "query"

    def column(self, name: str) -> Column | None:
        return next((c for c in self.columns if c.name == name), None)

    def draws(self, cursor: Cursor) -> bool:
        """The cursor, or the last column of a key, is numbered by a sequence."""
        return cursor.fallback is None and cursor.key[-1] in self.sequenced


class Cursor(Struct, frozen=True):
    """What an incremental export walks along: a column, the first of two that is not NULL, or a key.

    more: further columns of a key, which is compared as a row.
    """

    column: str
    fallback: str | None = None
    more: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """What a stored cursor value belongs to."""
        if self.more:
            return f"({', '.join(self.key)})"
        return self.column if self.fallback is None else f"coalesce({self.column},{self.fallback})"

    @property
    def columns(self) -> tuple[str, ...]:
        return self.key if self.fallback is None else (self.column, self.fallback)

    @property
    def key(self) -> tuple[str, ...]:
        return (self.column, *self.more)

    def text(self, values: Sequence[str]) -> str:
        """The stored form of a value: of one column its text, of several a JSON array of their texts."""
        return json.dumps(list(values), ensure_ascii=False) if self.more else values[0]

    def values(self, text: str) -> tuple[str, ...]:
        """What ``text`` made of the columns' values."""
        return tuple(json.loads(text)) if self.more else (text,)

    def spec(self) -> dict[str, str]:
        """The entries of a unit's spec that name the cursor."""
        return {"column": self.column} | ({} if self.fallback is None else {"fallback": self.fallback})


class Settle(Struct, frozen=True):
    """Rows are read once ``column`` (None: the cursor) is ``seconds`` old by the source's clock."""

    seconds: int
    column: str | None = None


class CursorBounds(Struct, frozen=True):
    """Bound of a cursor as the source's own text; None where there is no value to read up to.

    native_type: the cursor's type name. held: rows with a value past ``high`` are left to a later
    run, for the reason given. capped: there are rows past ``high``, or may be.
    """

    high: str | None
    native_type: str
    held: str | None = None
    capped: bool = False


class LateBounds(Struct, frozen=True):
    """What a run with ``late_rows`` reads: row versions past ``edge`` that ``versions`` selects.

    high: the new watermark, None when there is no such row. versions: for the spec of the units and for
    the run after this one.
    """

    native_type: str
    edge: str | None
    high: str | None
    versions: dict[str, Any]


class Planner(Protocol):
    """Questions that planning asks the source, on one connection and inside one snapshot."""

    facts: SourceFacts
    capabilities: SourceCapabilities

    def snapshot_id(self) -> str | None: ...

    def text_bounds(self, column: str) -> tuple[str, str] | None: ...

    def integer_bounds(self, column: str) -> tuple[int, int] | None: ...

    def has_nulls(self, column: str) -> bool: ...

    def holds_rows(self, units: Iterable[WorkUnit]) -> bool: ...

    def within(self, unit: WorkUnit) -> Planner:
        """The same questions about the rows of ``unit`` alone, in the same snapshot."""
        ...

    def spans(self, column: str, granularity: str, low: str, high: str) -> list[str]:
        """First days (``YYYY-MM-DD``, UTC) of the days, months or years that hold a row, ascending.

        low, high: bounds of ``column``, as text; what lies outside is not looked at.
        """
        ...

    def key_boundaries(
        self, columns: Sequence[str], ranges: int, upto: Sequence[str] | None = None, *, pages: int = 0
    ) -> list[tuple[str, ...]]: ...

    def has_order(self, column: str) -> bool: ...

    def row_boundaries(self, column: str, rows: int) -> list[str]: ...

    def index_cuts(self, column: str, rows: int, after: str, upto: str) -> list[str]: ...

    def counted_keys(
        self, columns: Sequence[str], rows: int, after: Sequence[str], upto: Sequence[str]
    ) -> list[tuple[str, ...]]: ...

    def cursor_bounds(
        self, cursor: Cursor, after: str | None, settle: Settle | None, *, wait: bool = False
    ) -> CursorBounds:
        """wait: for the transactions that may bring rows below it. The snapshot is another one then."""
        ...

    def late_bounds(
        self, cursor: Cursor, watermark: str | None, seconds: int, seen: Mapping[str, Any] | None
    ) -> LateBounds: ...

    def today(self) -> int: ...


class Sighting(Struct, frozen=True):
    """What a look at the source shows. in_the_way: backends of ours that somebody waits for to alter what
    they read. altering: somebody waits for that, or is at it. load: how busy others are, in sessions;
    None when it was not asked for."""

    in_the_way: frozenset[int]
    altering: bool
    load: int | None


class SourceWatch(Protocol):
    """Looks at the source beside the reads, on a connection of its own, from one thread."""

    def look(self, backends: Collection[int]) -> Sighting:
        """``backends``: those of our reads. Raises the engine's errors; the next look connects again."""
        ...

    def close(self) -> None: ...


class UnitReader(Protocol):
    """One worker's connection. ``batches`` streams one unit; memory is bounded by the batch size.

    nulled: column -> values of the last unit that the policy ``null`` replaced.
    """

    nulled: dict[str, int]

    def batches(self, unit: WorkUnit) -> Generator[pa.RecordBatch]: ...

    def classify(self, error: BaseException) -> RivetError:
        """The error tree's form of ``error``. Any thread may ask."""
        ...

    @property
    def backend(self) -> int | None:
        """What the source knows the read under way by, None between two reads."""
        ...

    def give_way(self, backend: int) -> bool:
        """End the read that is under way in ``backend``, from another thread; nothing if it is over.

        It fails with RIVET_SOURCE_YIELDED. True when it had not been asked before."""
        ...

    def cancel(self) -> None:
        """Break a read from another thread."""
        ...

    def close(self) -> None:
        """Give the connection up; ``batches`` opens another."""
        ...
