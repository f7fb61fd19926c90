"""What the readers of one run share: how they read, how fast, and what they have learned on the way."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from rivet_dagster.engine.sources.postgres.connect import SessionLimits
from rivet_dagster.engine.sources.postgres.kernel import Wire
from rivet_dagster.engine.sources.postgres.predicate import Origin
from rivet_dagster.engine.sources.postgres.shape import Shape
from rivet_dagster.engine.types.decision import Column
from rivet_dagster.engine.write.csv_columns import as_server_hex, as_server_text, needs_server_text

#: Seconds of pauses that the rows of one statement over heap pages may cost.
STATEMENT_PAUSE_S: Final = 1.0
#: Rows that a heap page of 8 KiB holds at the most (MaxHeapTuplesPerPage).
_PAGE_ROWS: Final = 291
#: Rows that may have left the server and not have reached us; their pauses pass in an idle transaction.
_ROWS_UNDER_WAY: Final = 1_000_000
#: Times fewer pages after a statement that took too long: four such steps end at one page.
_SMALLER: Final = 8


class ReadOptions(Struct, frozen=True):
    """max_rows/max_bytes: where a batch closes. throttle_ms per ``throttle_rows`` rows (0: none)."""

    max_rows: int
    max_bytes: int
    max_value_bytes: int
    throttle_ms: int = 0
    throttle_rows: int = 10_000

    def pause_s(self, rows: int) -> float:
        """The pause that ``rows`` rows cost. By rows, not by batches: a fixed pause a batch would cost wide
        tables most of their time."""
        return self.throttle_ms / 1000 * rows / self.throttle_rows

    def pages(self, most: int, rows: int, pages: int) -> int:
        """Heap pages of the next statement, at most ``most``: their rows cost ``STATEMENT_PAUSE_S``.

        rows, pages: what the unit has read so far, which tells how many rows a page has.
        """
        if not self.throttle_ms:
            return most
        dense = max(rows, 1) / pages if pages else _PAGE_ROWS
        return max(1, min(most, int(STATEMENT_PAUSE_S / self.pause_s(1) / dense)))

    def limits(self, limits: SessionLimits, *, paused: bool) -> SessionLimits:
        """Of a read's transaction. paused: it pauses within a statement, and ``Deadline`` limits that."""
        away_ms = int(1000 * self.pause_s(max(_ROWS_UNDER_WAY, self.max_rows)))
        limits = replace(limits, idle_timeout_ms=limits.idle_timeout_ms and limits.idle_timeout_ms + away_ms)
        return replace(limits, statement_timeout_ms=0) if paused else limits


class ReadOrder(Struct, frozen=True):
    """What the readers of one run share. shape: of the read when the run was planned.

    oids: quoted name -> oid of the relations of the plan. snapshot: None when each unit reads its own.
    standby: the server replays another one's changes. pieces: units (by index) that it has cancelled for
    that, or that took too long, to be read in pieces from then on. too_many: heap pages of statements that
    took too long.
    """

    export: str
    origin: Origin
    columns: tuple[Column, ...]
    shape: Shape
    options: ReadOptions
    snapshot: str | None
    oids: dict[str, int]
    standby: bool = False
    pieces: set[int] = field(default_factory=set)
    too_many: list[int] = field(default_factory=list)

    def step(self, planned: int) -> int:
        """Heap pages of a statement at the most, of the ``planned`` ones."""
        return min([planned, *(max(1, pages // _SMALLER) for pages in self.too_many)])


def read_columns(columns: tuple[Column, ...], file_format: str) -> tuple[Column, ...]:
    """The columns as they are read for the format: CSV takes some values as the server's text."""
    if file_format != "csv":
        return columns
    return tuple(
        as_server_hex(c, Wire.TEXT)
        if pa.types.is_binary(c.arrow)
        else as_server_text(c, Wire.TEXT)
        if needs_server_text(c)
        else c
        for c in columns
    )
