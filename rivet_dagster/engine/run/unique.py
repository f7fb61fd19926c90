"""Do values come twice in the parts of a run? Proven by what was noted while they were written where that
is possible, else by reading the column again.

A part whose values rise, in a span of its own, holds no value twice and shares none with another part.
Of all other parts each value is hashed; what repeats by its hash is then compared by its bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from rivet_dagster.engine.plan.units import Part, Span
from rivet_dagster.engine.sources.postgres.cells import cell_hashes, keep_distinct
from rivet_dagster.engine.verify.checksum import cell_bytes

#: Hashes (8 bytes each) that are held at a time; more rows are looked at in several passes.
PASS_HASHES: Final = 1 << 23
#: Repeated hashes that are looked at by value. So many that differ by value are no accident of 64 bits.
ROOM: Final = 4096

Read = Callable[[], Iterator[pa.Array]]


def in_doubt(parts: Sequence[Part], name: str) -> list[Part]:
    """The parts that may hold a value twice or share one, as far as their spans tell, in their order."""
    spans: list[tuple[Span, Part]] = []
    for part in parts:
        if part.stats is None or name not in part.stats.spans:
            return list(parts)  # it was written without the gate, and its values may lie anywhere
        if (span := part.stats.spans[name]) is not None:
            spans.append((span, part))
    spans.sort(key=lambda pair: pair[0].low)
    doubtful: set[str] = set()
    group: list[Part] = []
    proven, high = True, 0
    for span, part in spans:
        if group and span.low <= high:
            proven, high = False, max(high, span.high)
        else:
            doubtful.update(() if proven else (p.path for p in group))
            group, proven, high = [], span.rising, span.high
        group.append(part)
    doubtful.update(() if proven else (p.path for p in group))
    return [part for part in parts if part.path in doubtful]


def count_duplicates(read: Read, rows: int, held: int = PASS_HASHES) -> int:
    """How many of the first ``rows`` values repeat an earlier one; NULLs repeat nothing.

    read: the values anew, for each pass over them. held: hashes in memory at a time, about.
    """
    passes = 1 << max(0, -(-rows // held) - 1).bit_length()
    duplicates, repeated, more = 0, set[int](), False
    for number in range(passes):
        # a pass takes its share of the hashes, give or take a little
        hashes = _Hashes(min(rows, held + held // 8), passes - 1, number)
        for array in _first(read, rows):
            hashes.add(array)
        hashes.settle()
        duplicates += hashes.duplicates
        repeated |= hashes.repeated
        more |= hashes.more
    return duplicates if more or not repeated else _by_value(read, rows, repeated)


def _first(read: Read, rows: int) -> Iterator[pa.Array]:
    left = rows
    for found in read():
        yield found.slice(0, left)
        left -= len(found)
        if left <= 0:
            return


class _Hashes:
    """The distinct hashes of one pass. repeated: those that came twice, unless there were ``more``."""

    def __init__(self, capacity: int, mask: int, slot: int) -> None:
        self._mask, self._slot = mask, slot
        self._buffer = pa.allocate_buffer(8 * capacity)
        self._used = 0
        self.duplicates = 0
        self.repeated: set[int] = set()
        self.more = False

    def add(self, array: pa.Array) -> None:
        into = pa.allocate_buffer(8 * len(array))
        count = cell_hashes(array, into, mask=self._mask, slot=self._slot)
        if 8 * (self._used + count) > self._buffer.size:
            self.settle()
            if 16 * (self._used + count) > self._buffer.size:  # else the next ones would be sorted one by one
                self._grow(2 * (self._used + count))
        ctypes.memmove(self._buffer.address + 8 * self._used, into.address, 8 * count)
        self._used += count

    def settle(self) -> None:
        kept, repeated, found = keep_distinct(self._buffer, self._used, room=ROOM)
        self.duplicates += self._used - kept
        self._used = kept
        self.repeated.update(repeated)
        self.more |= found > len(repeated) or len(self.repeated) > ROOM

    def _grow(self, capacity: int) -> None:
        larger = pa.allocate_buffer(8 * capacity)
        ctypes.memmove(larger.address, self._buffer.address, 8 * self._used)
        self._buffer = larger


def _by_value(read: Read, rows: int, hashes: set[int]) -> int:
    """The same count, of the values that have one of these hashes."""
    import pyarrow.compute as pc  # costs 0.1 s, and only a gate that is about to fail needs it

    wanted = pa.array(sorted(hashes), pa.uint64())
    found, values = 0, set[bytes | None]()
    for array in _first(read, rows):
        cells = array.drop_null()
        buffer = pa.allocate_buffer(8 * len(cells))
        cell_hashes(cells, buffer)
        own = pa.Array.from_buffers(pa.uint64(), len(cells), [None, buffer])
        chosen = cells.filter(pc.is_in(own, wanted))
        found += len(chosen)
        if not (pa.types.is_nested(chosen.type) or pa.types.is_floating(chosen.type)):
            chosen = chosen.unique()  # a value that comes a million times is one
        values.update(cell_bytes(chosen))
    return found - len(values)


__all__ = ["PASS_HASHES", "count_duplicates", "in_doubt"]
