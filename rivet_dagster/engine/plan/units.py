"""Work units: the one thing that modes differ in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class UnitKind(StrEnum):
    WHOLE = "whole"  # one statement, nothing to split by
    PAGES = "pages"  # heap pages; means something only inside one snapshot
    RANGE = "range"  # half-open integer range of chunk_column, last one closed
    KEY = "key"  # range of a NOT NULL unique key, ordered by it
    SPAN = "span"  # range of any ordered column that is not a key; ties stay together
    NULLS = "nulls"  # rows whose chunk key is NULL
    WINDOW = "window"  # (watermark, bound] of a cursor


@dataclass(frozen=True, slots=True)
class WorkUnit:
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


def _merged(
    one: Mapping[str, int], other: Mapping[str, int], join: Callable[[list[int]], int]
) -> dict[str, int]:
    names = dict.fromkeys([*one, *other])
    return {name: join([side[name] for side in (one, other) if name in side]) for name in names}


@dataclass(frozen=True, slots=True)
class PartStats:
    """Figures of a part's rows by column name; a column that was not measured is not there.

    nulls: NULL cells. widths: bytes of the longest text or binary. nulled: values that no type of the
    file holds and that the policy ``null`` replaced (of the whole unit, on its first part).
    """

    nulls: Mapping[str, int] = field(default_factory=dict)
    widths: Mapping[str, int] = field(default_factory=dict)
    nulled: Mapping[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, dict[str, int]]:
        return {name: dict(getattr(self, name)) for name in self.__slots__}

    def joined(self, other: PartStats) -> PartStats:
        """Of the rows of both."""
        return PartStats(
            _merged(self.nulls, other.nulls, sum),
            _merged(self.widths, other.widths, max),
            _merged(self.nulled, other.nulled, sum),
        )

    @classmethod
    def of_json(cls, found: Mapping[str, Mapping[str, int]]) -> PartStats:
        return cls(found.get("nulls", {}), found.get("widths", {}), found.get("nulled", {}))


@dataclass(frozen=True, slots=True)
class Part:
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
