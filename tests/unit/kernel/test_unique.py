"""Spans of cells, hashes of cells and hashes that come twice, against what they are defined as."""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from rivet_dagster.engine.errors import InternalError
from rivet_dagster.engine.plan.units import Span
from rivet_dagster.engine.sources.postgres.cells import cell_hashes, cell_span, has_span, keep_distinct
from rivet_dagster.engine.verify.checksum import cell_bytes
from tests.unit.kernel.test_checksum import VALUES
from tests.unit.kernel.test_row_hash import cycled, typed


def first_bytes(value: bytes | str) -> int:
    data = value.encode() if isinstance(value, str) else value
    return int.from_bytes(data[:16].ljust(16, b"\0"), "big")


def expected(values: Sequence[Any], number: Callable[[Any], int]) -> Span | None:
    there = [v for v in values if v is not None]
    if not there:
        return None
    keys = [v.encode() if isinstance(v, str) else v for v in there]
    rising = all(a < b for a, b in itertools.pairwise(keys))
    return Span(number(min(keys)), number(max(keys)), rising)


INTEGERS = {
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
}


@pytest.mark.parametrize("kind", INTEGERS, ids=str)
@given(data=st.data())
def test_numbers_lie_between_the_least_and_the_greatest(kind: pa.DataType, data: st.DataObject) -> None:
    values: list[int | None] = data.draw(st.lists(st.none() | INTEGERS[kind], max_size=12))
    if data.draw(st.booleans()):
        values = [*sorted(v for v in values if v is not None)]
    array = pa.array([None, *values, 7], kind)
    assert cell_span(array.slice(1, len(values))) == expected(values, int)


@given(st.lists(st.none() | st.text(max_size=20)), st.booleans())
def test_texts_are_compared_by_their_bytes(values: list[str | None], in_order: bool) -> None:
    if in_order:
        values = sorted((v for v in values if v is not None), key=lambda v: str(v).encode())
    assert cell_span(pa.array(values, pa.string())) == expected(values, first_bytes)


def test_uuids_decimals_and_times_have_spans_too() -> None:
    uuids = [bytes([i]) * 16 for i in (1, 2, 255)]
    assert cell_span(typed(pa.uuid(), uuids)) == expected(uuids, first_bytes)
    amounts = [Decimal("-12.30"), None, Decimal("0.01"), Decimal("99999999999999999999.99")]
    found = cell_span(pa.array(amounts, pa.decimal128(30, 2)))
    assert found == Span(-1230, 9999999999999999999999, rising=True)
    assert cell_span(pa.array([date(1970, 1, 3), date(1969, 12, 31)])) == Span(-1, 2, rising=False)
    assert cell_span(pa.array([time(0, 0, 1), time(0, 0, 2)], pa.time64("us"))) == Span(
        10**6, 2 * 10**6, True
    )
    at = [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)]
    assert cell_span(pa.array(at, pa.timestamp("us", "UTC"))) == Span(10**6, 10**6, rising=True)
    for kind in (pa.float64(), pa.bool_(), pa.list_(pa.int32()), pa.decimal256(40, 2), pa.uint32()):
        assert not has_span(kind)
        with pytest.raises(InternalError):
            cell_span(pa.array([None], kind))


@given(st.lists(st.integers(0, 40)), st.integers(0, 5))
def test_stretches_join_to_the_span_of_all(values: list[int], cut: int) -> None:
    whole = pa.array(values, pa.int64())
    one, other = cell_span(whole.slice(0, cut)), cell_span(whole.slice(cut))
    joined = one.joined(other) if one and other else one or other
    assert joined == cell_span(whole)


def test_an_equal_beginning_of_long_values_is_in_doubt() -> None:
    one, other = (cell_span(pa.array([f"the same sixteen bytes {i}"])) for i in (1, 2))
    assert one is not None
    assert other is not None
    assert not one.joined(other).rising


def hashes(array: pa.Array, **chosen: int) -> list[int]:
    buffer = pa.allocate_buffer(8 * len(array))
    count = cell_hashes(array, buffer, **chosen)
    return [int(n) for n in struct.unpack(f"<{count}Q", bytes(buffer)[: 8 * count])]


def test_cells_of_every_type_hash_as_their_bytes() -> None:
    lists: list[tuple[pa.DataType, list[Any]]] = [
        (pa.list_(pa.int32()), [[1, None], []]),
        (pa.list_(pa.string()), [["a"], [None]]),
    ]
    for kind, values in [*VALUES, *lists]:
        array = typed(kind, cycled(values, 9))
        wanted = [xxhash.xxh3_64_intdigest(cell) for cell in cell_bytes(array) if cell is not None]
        assert hashes(array) == wanted
        assert hashes(array.slice(2, 3)) == [
            xxhash.xxh3_64_intdigest(cell) for cell in cell_bytes(array.slice(2, 3)) if cell is not None
        ]
        assert hashes(array, mask=3, slot=1) == [h for h in wanted if h & 3 == 1]
    with pytest.raises(InternalError):
        cell_hashes(pa.array([{"a": 1}]), pa.allocate_buffer(8))
    with pytest.raises(ValueError, match="do not fit"):
        cell_hashes(pa.array([1, 2]), pa.allocate_buffer(8))


WORDS = st.integers(0, 2**64 - 1) | st.integers(0, 5) | st.integers(0, 255).map(lambda n: n << 56)


@given(
    st.lists(WORDS, max_size=200).map(lambda few: few * 3) | st.lists(WORDS, max_size=400), st.integers(0, 3)
)
def test_each_hash_is_kept_once_and_repeats_are_named(values: list[int], room: int) -> None:
    buffer = pa.py_buffer(bytearray(struct.pack(f"<{len(values)}Q", *values)))
    kept, repeated, count = keep_distinct(buffer, len(values), room=room)
    assert list(struct.unpack(f"<{kept}Q", bytes(buffer)[: 8 * kept])) == sorted(set(values))
    twice = sorted(v for v, n in Counter(values).items() if n > 1)
    assert (repeated, count) == (twice[:room], len(twice))
