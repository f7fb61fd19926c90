"""Ranges are a partition of what they cover, whatever the bounds."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rivet_dagster.engine.plan import sizing
from rivet_dagster.engine.plan.plan import grid_labels, label_by_index
from rivet_dagster.engine.plan.units import UnitKind, WorkUnit

BIGINT = st.integers(-(2**63), 2**63 - 1)


@st.composite
def bounds(draw: st.DrawFn) -> tuple[int, int]:
    low = draw(BIGINT)
    return low, min(2**63 - 1, low + draw(st.integers(0, 5_000)))


def assert_partition(ranges: list[tuple[int, int]], low: int, high: int) -> None:
    assert ranges[0][0] == low
    assert ranges[-1][1] == high
    assert all(a <= b for a, b in ranges)
    assert all(after[0] == before[1] + 1 for before, after in itertools.pairwise(ranges))


@given(bounds(), st.one_of(st.integers(1, 700), st.integers(1, 2**63 - 1)))
def test_integer_ranges_cover_the_keys_once(span: tuple[int, int], size: int) -> None:
    low, high = span
    if (high - low) // size > 5_000:
        size = 7
    ranges = list(sizing.integer_ranges(low, high, size))
    assert_partition(ranges, low, high)
    assert len(ranges) == sizing.range_count(low, high, size)
    assert all(a % size == 0 for a, _ in ranges[1:])


@given(bounds(), st.integers(1, 300))
def test_counted_ranges_cover_the_keys_once(span: tuple[int, int], count: int) -> None:
    low, high = span
    ranges = list(sizing.counted_ranges(low, high, count))
    assert_partition(ranges, low, high)
    assert len(ranges) <= count


@given(st.integers(0, 50_000), st.integers(0, 2**40), st.integers(1, 2**30))
def test_page_ranges_cover_the_pages_once(pages: int, size: int, wanted: int) -> None:
    wanted = max(wanted, size // 2_000 + 1)
    ranges = list(sizing.page_ranges(pages, size, wanted))
    assert ranges[0][0] == 0
    assert ranges[-1][1] is None
    for (_, end), (start, _) in itertools.pairwise(ranges):
        assert end == start
    lengths = [end - start for start, end in ranges[:-1] if end is not None]
    if lengths:
        last = pages - ranges[-1][0]
        assert max([*lengths, last]) - min([*lengths, last]) <= 1


@given(st.integers(0, 2**45))
def test_unit_size_is_bounded(total: int) -> None:
    assert sizing.UNIT_MIN_BYTES <= sizing.unit_bytes(total) <= sizing.UNIT_MAX_BYTES


def units(count: int, size: int = 1, low: int = 0) -> list[WorkUnit]:
    return [
        WorkUnit(i, UnitKind.RANGE, "", {}, str(low + i * size), str(low + (i + 1) * size - 1))
        for i in range(count)
    ]


@given(st.integers(1, 6_000))
def test_partitions_stay_few_and_in_order(count: int) -> None:
    labelled = label_by_index(units(count))
    keys = list(dict.fromkeys(u.partition for u in labelled))
    assert len(keys) <= 500
    assert keys == sorted(keys)


@given(st.integers(1, 6_000), st.integers(1, 1_000), st.integers(0, 10**6))
def test_growth_only_appends_partitions(count: int, size: int, slot: int) -> None:
    low = slot * size
    before = grid_labels(size, count)(units(count, size, low))
    grown = count + 1
    after = grid_labels(size, grown)(units(grown, size, low))
    old, new = {u.partition for u in before}, {u.partition for u in after}
    assert len(new) <= 501
    same_grid = -(-count // 500) == -(-grown // 500)
    if same_grid and count < 500:
        assert old <= new


def test_negative_bounds_have_keys_of_their_own() -> None:
    labelled = grid_labels(10, 4)(units(4, 10, -20))
    assert [u.partition for u in labelled] == [
        "-000000000020",
        "-000000000010",
        "000000000000",
        "000000000010",
    ]
