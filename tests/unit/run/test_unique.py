"""Values that come twice in the parts of a run: what spans prove, and how the rest is counted."""

from __future__ import annotations

import math
import struct
from typing import Any

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from rivet_dagster.engine.plan.units import Part, PartStats, Span
from rivet_dagster.engine.run import unique
from rivet_dagster.engine.run.unique import count_duplicates, in_doubt
from rivet_dagster.engine.sources.postgres.cells import cell_span


def part(name: str, span: Span | None, **more: Any) -> Part:
    return Part(name, 1, 1, "", stats=PartStats(spans={"id": span}), **more)


def doubtful(*spans: tuple[int, int, bool] | None) -> str:
    parts = [part("abcdefgh"[i], span and Span(*span)) for i, span in enumerate(spans)]
    return "".join(p.path for p in in_doubt(parts, "id"))


def test_spans_that_rise_side_by_side_prove_their_parts() -> None:
    assert doubtful((5, 9, True), (1, 4, True), None, (10, 10, True)) == ""
    assert doubtful() == ""


def test_parts_that_share_a_span_are_in_doubt_and_no_others() -> None:
    assert doubtful((1, 4, True), (8, 9, True), (4, 7, True)) == "ac"
    assert doubtful((1, 100, True), (2, 3, True), (50, 60, True), (101, 102, True)) == "abc"
    assert doubtful((1, 4, False), (5, 9, True)) == "a"
    assert doubtful((10, 20, True), (0, 9, False), (20, 30, True)) == "abc"
    assert doubtful((1, 2, True), (3, 4, True), (1, 2, True), (3, 4, True), (9, 9, True)) == "abcd"


def test_a_part_that_was_not_measured_puts_all_in_doubt() -> None:
    parts = [part("a", Span(1, 2, True)), Part("b", 1, 1, ""), part("c", Span(5, 6, True))]
    assert in_doubt(parts, "id") == parts
    assert in_doubt([part("a", Span(1, 2, True))], "other") != []


@given(st.lists(st.lists(st.integers(0, 12), max_size=4).map(lambda v: v if len(v) < 3 else sorted(v))))
def test_what_the_spans_clear_holds_no_value_twice(files: list[list[int]]) -> None:
    parts = [part(str(i), cell_span(pa.array(values, pa.int64()))) for i, values in enumerate(files)]
    left = {int(p.path) for p in in_doubt(parts, "id")}
    cleared = [v for i, values in enumerate(files) if i not in left for v in values]
    others = {v for i in left for v in files[i]}
    assert len(set(cleared)) == len(cleared)
    assert not others & set(cleared)


@pytest.mark.parametrize("held", [1, 3, 10, 1000])
def test_duplicates_are_counted_in_any_number_of_passes(held: int) -> None:
    values = [1, 2, None, 2, 3, None, 1, 1, 9]
    batches = [pa.array(values[i : i + 2], pa.int64()) for i in range(0, len(values), 2)]
    assert count_duplicates(lambda: iter(batches), 9, held) == 3
    assert count_duplicates(lambda: iter(batches), 4, held) == 1
    assert count_duplicates(lambda: iter(()), 0, held) == 0


@given(
    st.lists(st.lists(st.none() | st.text("ab", max_size=3), max_size=20), max_size=8),
    st.integers(1, 60),
    st.integers(0, 100),
)
def test_duplicates_are_those_of_the_values(files: list[list[str | None]], held: int, rows: int) -> None:
    values = [v for file in files for v in file][:rows]
    there = [v for v in values if v is not None]
    found = count_duplicates(lambda: (pa.array(file, pa.string()) for file in files), rows, held)
    assert found == len(there) - len(set(there))


def test_few_values_in_many_rows_stay_in_little_memory() -> None:
    batch = pa.array([1, 2] * 500, pa.int64())
    before = pa.default_memory_pool().max_memory()
    assert count_duplicates(lambda: (batch for _ in range(100)), 100_000, held=2_000) == 100_000 - 2
    assert pa.default_memory_pool().max_memory() - before < 1 << 20


def colliding() -> list[bytes]:
    """Two values of 16 bytes with one XXH3-64: one half cancels the secret, the other carries the sum."""
    secret = (0x1F67B3B7A4A44072 ^ 0x78E5C0CC4EE679CB, 0x2172FFCC7DD05A82 ^ 0x8E2443F7744608B8)
    total = 0x0123456789ABCDEF
    swapped = struct.unpack("<Q", struct.pack(">Q", total))[0]
    pairs = [(0, total), (swapped, 0)]
    return [struct.pack("<2Q", low ^ secret[0], high ^ secret[1]) for low, high in pairs]


def test_two_values_of_one_hash_are_no_duplicate() -> None:
    one, other = colliding()
    assert one != other
    assert xxhash.xxh3_64_digest(one) == xxhash.xxh3_64_digest(other)
    kind = pa.binary(16)
    assert count_duplicates(lambda: iter([pa.array([one, b"x" * 16, other], kind)]), 3) == 0
    twice = [pa.array([one, other], kind), pa.array([None, other, other, one], kind)]
    assert count_duplicates(lambda: iter(twice), 6) == 3


def test_floats_and_lists_are_compared_by_their_bytes() -> None:
    floats = pa.array([0.0, -0.0, math.nan, math.nan, 1.5])
    assert count_duplicates(lambda: iter([floats]), 5) == 1
    lists = pa.array([[1, None], [1], [], [1, None], None], pa.list_(pa.int32()))
    assert count_duplicates(lambda: iter([lists]), 5) == 1


def test_more_repeats_than_are_looked_at_by_value_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unique, "ROOM", 2)
    values = pa.array([*range(5), *range(5)], pa.int64())
    assert count_duplicates(lambda: iter([values]), 10) == 5
