"""Dates and timestamps as text in ISO 8601, the year 0 being 1 BC; UTC ends in Z.

Arrow renders no year past 32767 and reads none but 0000 to 9999. Such values go through the day in
another 400 years, in which the calendar is the same. Elsewhere Arrow does it all, as for nanoseconds,
which hold no such year.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_DAY_US: Final = 86_400_000_000
_FAR_DAYS: Final = 11_248_738  # since 1970: the year 32768
_CYCLE_DAYS: Final = 146_097  # of 400 years
_YEAR: Final = re.compile(r"(-?\d{4,})(-.*)", re.DOTALL)


def time_text(array: pa.Array) -> pa.Array:
    """``2024-02-29`` or ``2024-02-29T00:00:00.000000Z`` of a date32 or timestamp, NULL for NULL.

    A timestamp is of microseconds, or of nanoseconds, which have nine digits.
    """
    if pa.types.is_date(array.type):
        return _text(array.view(pa.int32()), pa.date32(), 1)
    # without its zone: Arrow renders it eight times faster, and past the year 32767 not as another year
    count = array.view(pa.int64())
    text = (
        pc.cast(count.view(pa.timestamp("ns")), pa.string())
        if array.type.unit == "ns"
        else _text(count, pa.timestamp("us"), _DAY_US)
    )
    text = pc.replace_substring(text, " ", "T")
    return text if array.type.tz is None else pc.binary_join_element_wise(text, "Z", "")


def parse_times(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values of ``time_text``. Raises pyarrow's ArrowInvalid for a text that is none."""
    far = pc.invert(pc.match_substring_regex(text, r"^\d{4}-"))
    if not pc.any(far).as_py() or (pa.types.is_timestamp(kind) and kind.unit == "ns"):
        return pc.cast(text, kind)
    near, turns = [], []
    for value in text.filter(pc.fill_null(far, False)).to_pylist():
        found = _YEAR.fullmatch(value)
        if found is None:
            raise pa.ArrowInvalid("a date or timestamp is none")
        turn, year = divmod(int(found[1]), 400)
        near.append(f"{year + 2000:04d}{found[2]}")
        turns.append(turn - 5)
    count, cycle = (
        (pa.int32(), _CYCLE_DAYS) if pa.types.is_date(kind) else (pa.int64(), _CYCLE_DAYS * _DAY_US)
    )
    read = pc.cast(pa.array(near, pa.string()), kind).view(count).to_pylist()
    moved = pa.array([value + turn * cycle for value, turn in zip(read, turns, strict=True)], count)
    held = pc.cast(pc.if_else(far, pa.scalar(None, pa.string()), text), kind).view(count)
    return pc.replace_with_mask(held, pc.fill_null(far, False), moved).view(kind)


def _text(count: pa.Array, kind: pa.DataType, day: int) -> pa.Array:
    """Of times counted since 1970, ``day`` to a day."""
    far = pc.fill_null(pc.greater_equal(count, pa.scalar(_FAR_DAYS * day, count.type)), False)
    if not pc.any(far).as_py():
        return pc.cast(count.view(kind), pa.string())
    values, cycle = count.filter(far).to_pylist(), _CYCLE_DAYS * day
    near = pa.array([value % cycle for value in values], count.type).view(kind)
    texts = pc.cast(near, pa.string()).to_pylist()
    moved = [f"{int(s[:4]) + value // cycle * 400}{s[4:]}" for s, value in zip(texts, values, strict=True)]
    held = pc.if_else(far, pa.scalar(None, count.type), count).view(kind)
    return pc.replace_with_mask(pc.cast(held, pa.string()), far, pa.array(moved, pa.string()))
