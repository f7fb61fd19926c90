"""Work units: the one thing that modes differ in."""

from __future__ import annotations

from collections.abc import Mapping
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
    def label(self) -> str:
        """As the reference's reports name it, e.g. ``chunk 0 [1..400]``."""
        return f"chunk {self.index} [{self.start_key or ''}..{self.end_key or ''}]"


@dataclass(frozen=True, slots=True)
class Part:
    """A finished file at the destination. path: relative to the export's prefix. size in bytes.

    fingerprint: ``xxh3:<16 hex>`` of the file's bytes. checksums: column -> order-free sum of cell
    hashes (None: not taken, e.g. CSV).
    """

    path: str
    rows: int
    size_bytes: int
    fingerprint: str
    md5: str = ""
    checksums: Mapping[str, int] | None = None
