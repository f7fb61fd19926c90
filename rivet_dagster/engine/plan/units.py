"""Work units: the one thing that modes differ in."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from msgspec import Struct, field

V = TypeVar("V")


class UnitKind(StrEnum):
    WHOLE = "whole"  # one statement, nothing to split by
    PAGES = "pages"  # heap pages; means something only inside one snapshot
    RANGE = "range"  # half-open integer range of chunk_column, last one closed
    KEY = "key"  # range of a NOT NULL unique key, ordered by it
    SPAN = "span"  # range of any ordered column that is not a key; ties stay together
    NULLS = "nulls"  # rows whose chunk key is NULL
    WINDOW = "window"  # (watermark, bound] of a cursor


class WorkUnit(Struct, frozen=True):
    """A part of an export that is read, written and committed as one.

    index: position in the plan, from 0. partition: the Dagster partition that shows it. spec: JSON
    that only the source adapter reads (bounds as text, relation, page numbers). start_key/end_key:
    bounds as a person reads them, None where there are none. est_rows: estimate, None if unknown.
    """

    index: int
    kind: UnitKind
    partition: str
    spec: Mapping[str, Any] = field(default_factory=dict)
    start_key: str | None = None
    end_key: str | None = None
    est_rows: int | None = None

    @property
    def folder(self) -> str:
        """Where its parts go, below the prefix; "" is the prefix itself."""
        folder = self.spec.get("folder")
        return str(folder["name"]) if folder else ""

    @property
    def outlives_snapshot(self) -> bool:
        """It means the same in a later snapshot: only some pages of a heap do not."""
        return self.kind is not UnitKind.PAGES or (self.spec["first"], self.spec["last"]) == (0, None)

    @property
    def label(self) -> str:
        """As the reference's reports name it, e.g. ``chunk 0 [1..400]``."""
        return f"chunk {self.index} [{self.start_key or ''}..{self.end_key or ''}]"


class Span(Struct, frozen=True):
    """Where the values of a stretch of rows lie: numbers, or the first 16 bytes of others as a number.

    low and high are not below and not above any of them. rising: each value is greater than the one
    before, so none comes twice.
    """

    low: int
    high: int
    rising: bool

    def joined(self, other: Span) -> Span:
        """Of both, when the rows of ``other`` follow."""
        rising = self.rising and other.rising and self.high < other.low
        return Span(min(self.low, other.low), max(self.high, other.high), rising)


def _merged(one: Mapping[str, V], other: Mapping[str, V], join: Callable[[V, V], V]) -> dict[str, V]:
    found = {**one, **other}
    return found | {name: join(one[name], other[name]) for name in one if name in other}


def _following(one: Span | None, other: Span | None) -> Span | None:
    return one.joined(other) if one and other else one or other


class PartStats(Struct, frozen=True):
    """Figures of a part's rows by column name; a column that was not measured is not there.

    nulls: NULL cells. widths: bytes of the longest text or binary. nulled: values that no type of the
    file holds and that the policy ``null`` replaced (of the whole unit, on its first part). spans: where
    the values lie, None without any but NULL.
    """

    nulls: Mapping[str, int] = field(default_factory=dict)
    widths: Mapping[str, int] = field(default_factory=dict)
    nulled: Mapping[str, int] = field(default_factory=dict)
    spans: Mapping[str, Span | None] = field(default_factory=dict)

    def as_json(self) -> dict[str, dict[str, Any]]:
        spans = {name: span and [span.low, span.high, span.rising] for name, span in self.spans.items()}
        return {
            "nulls": dict(self.nulls),
            "widths": dict(self.widths),
            "nulled": dict(self.nulled),
            "spans": spans,
        }

    def joined(self, other: PartStats) -> PartStats:
        """Of the rows of both, when those of ``other`` follow."""
        return PartStats(
            _merged(self.nulls, other.nulls, operator.add),
            _merged(self.widths, other.widths, max),
            _merged(self.nulled, other.nulled, operator.add),
            _merged(self.spans, other.spans, _following),
        )

    @classmethod
    def of_json(cls, found: Mapping[str, Mapping[str, Any]]) -> PartStats:
        spans = {name: span and Span(*span) for name, span in found.get("spans", {}).items()}
        return cls(found.get("nulls", {}), found.get("widths", {}), found.get("nulled", {}), spans)


class Part(Struct, frozen=True):
    """A finished file at the destination. path: relative to the export's prefix. size in bytes.

    fingerprint: ``xxh3:<16 hex>`` of the file's bytes. checksums: column -> order-free sum of cell
    hashes (None: not taken, e.g. CSV). stats: figures of its rows, None when none were asked for.
    """

    path: str
    rows: int
    size_bytes: int
    fingerprint: str
    md5: str = ""
    checksums: Mapping[str, int] | None = None
    stats: PartStats | None = None
