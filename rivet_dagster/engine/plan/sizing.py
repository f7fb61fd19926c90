"""How large a unit is: by the bytes it should hold, never by the number of workers."""

from __future__ import annotations

from collections.abc import Iterator

MIB = 1 << 20
GIB = 1 << 30

UNIT_MIN_BYTES = 16 * MIB
UNIT_MAX_BYTES = 512 * MIB
#: Below the largest unit size a table is cut in about this many units, so that a handful of workers
#: stay busy to the end; the count does not depend on how many there are.
UNITS_WANTED = 8
#: Heap bytes of one statement: about a second or two of reading, far below the 5 s it may take.
STATEMENT_BYTES = 48 * MIB
#: Rows that a statement takes along an index: each may lie in a page of its own.
STATEMENT_ROWS = 100_000


def shown_bytes(size: int) -> str:
    """``size`` for people."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (1024, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"


def unit_bytes(total: int) -> int:
    """Bytes of source data one unit of a table of ``total`` bytes should cover."""
    return max(UNIT_MIN_BYTES, min(UNIT_MAX_BYTES, -(-total // UNITS_WANTED)))


def statement_rows(mean_bytes: float) -> int:
    """Rows of so many bytes that one statement may take along an index."""
    return max(1, min(STATEMENT_ROWS, int(STATEMENT_BYTES / mean_bytes)))


def page_step(pages: int, total_bytes: int, wanted_bytes: int) -> int:
    """Pages that hold about ``wanted_bytes``, values stored out of line included; at least one."""
    if pages <= 0 or total_bytes <= 0:
        return 1
    return max(1, wanted_bytes * pages // total_bytes)


def page_ranges(pages: int, total_bytes: int, wanted_bytes: int) -> Iterator[tuple[int, int | None]]:
    """Half-open page ranges that cover every page; the last is open (None).

    The ranges differ by at most one page, so the last unit is not a sliver.
    """
    # rounded, not up: 8.01 units of the size wanted are 8, and a ninth would leave a worker alone at the end
    count = min(max(1, pages), max(1, round(total_bytes / wanted_bytes)))
    for i in range(count):
        first, last = pages * i // count, pages * (i + 1) // count
        yield first, (None if i == count - 1 else last)


def integer_ranges(low: int, high: int, size: int) -> Iterator[tuple[int, int]]:
    """Closed ranges on the grid of multiples of ``size`` that cover [low, high] exactly once.

    A grid keeps the meaning of a range when the table grows: growth appends ranges.
    """
    start = low - low % size
    while start <= high:
        yield max(start, low), min(start + size - 1, high)
        start += size


def counted_ranges(low: int, high: int, count: int) -> Iterator[tuple[int, int]]:
    """At most ``count`` closed ranges of equal width that cover [low, high] exactly once."""
    size = -(-(high - low + 1) // count)
    start = low
    while start <= high:
        yield start, min(start + size - 1, high)
        start += size


def range_count(low: int, high: int, size: int) -> int:
    """How many ranges ``integer_ranges`` would make, without making them."""
    return high // size - low // size + 1
