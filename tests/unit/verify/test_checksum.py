"""Byte forms against sums that rivet-cli 0.32.2 wrote for the same single cells."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from rivet_dagster.engine.errors import InternalError
from rivet_dagster.engine.verify.checksum import (
    MASK,
    add,
    column_checksum,
    covers,
    element_tag,
    peer_covers,
    reference_checksum,
)

UTC_US = pa.timestamp("us", "UTC")
ONE_CELL: list[tuple[pa.DataType, Any, int]] = [
    (pa.bool_(), True, 16226181191752404715),
    (pa.bool_(), False, 14144645293874801883),
    (pa.int16(), 1, 12363696039452112576),
    (pa.int16(), -2, 65244720915931959),
    (pa.int32(), 70000, 11865166763197533532),
    (pa.int64(), -9000000000, 9682215904350589073),
    (pa.float32(), 1.5, 12532231060461997488),
    (pa.float32(), -0.0, 7513848233174832419),
    (pa.float32(), float("inf"), 7407755016406576001),
    (pa.float64(), 1.5, 2693614958850487384),
    (pa.float64(), float("nan"), 767333564151873895),
    (pa.date32(), dt.date(1960, 5, 5), 1290991380479298442),
    (pa.timestamp("us"), dt.datetime(2026, 1, 1, 0, 0, 0, 123456), 7732884969267517245),
    (UTC_US, dt.datetime(1960, 1, 1, tzinfo=dt.UTC), 14669829395598091753),
    (pa.time64("us"), dt.time(12, 34, 56, 789012), 5525510039590243700),
    (pa.string(), "hello", 10760762337991515389),
    (pa.string(), "", 3244421341483603138),
    (pa.string(), "ünï", 6574230039953973664),
    (pa.json_(pa.string()), '{"a": 1}', 10784334337557595772),
    (pa.binary(), b"\x00\x01\xff", 10014172824849140082),
    (pa.uuid(), bytes.fromhex("c4ca4238a0b923820dcc509a6f75849b"), 6458599490470517864),
    (pa.decimal128(12, 2), Decimal("-3.10"), 18344731578112283990),
    (pa.decimal128(38, 10), Decimal("12345678901234567890.5"), 953729015432055333),
    (pa.decimal256(60, 10), Decimal("-1"), 12944507456817208479),
    (pa.list_(pa.bool_()), [True, False], 3931816130759000029),
    (pa.list_(pa.int16()), [1], 12119831524884986947),
    (pa.list_(pa.int32()), [1, 2], 259586289601319585),
    (pa.list_(pa.int32()), [None, 3], 1874981542593820709),
    (pa.list_(pa.int32()), [], 3244421341483603138),
    (pa.list_(pa.int64()), [1], 13420122745913304811),
    (pa.list_(pa.float32()), [1.5], 12255172380016706888),
    (pa.list_(pa.float64()), [1.5, -2.0], 8109107816080951583),
    (pa.list_(pa.string()), ["a", "", None], 11771506830935553491),
]


def build(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    return pa.array(values, kind)


@pytest.mark.parametrize(("kind", "value", "expected"), ONE_CELL, ids=lambda v: str(v)[:24])
def test_a_cell_adds_what_the_reference_adds(kind: pa.DataType, value: Any, expected: int) -> None:
    assert reference_checksum(build(kind, [value])) == expected
    assert column_checksum(build(kind, [value])) == expected
    assert reference_checksum(build(kind, [None, value, None])) == expected
    assert reference_checksum(build(kind, [None])) == 0
    assert peer_covers(kind)
    assert covers(kind)


@pytest.mark.parametrize(("kind", "value", "expected"), ONE_CELL, ids=lambda v: str(v)[:24])
def test_a_slice_counts_only_its_own_cells(kind: pa.DataType, value: Any, expected: int) -> None:
    array = build(kind, [value, None, value, value])
    assert reference_checksum(array.slice(2, 1)) == expected
    assert reference_checksum(array.slice(1, 1)) == 0


VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=300),
    pa.binary(): st.binary(max_size=300),
    pa.binary(16): st.binary(min_size=16, max_size=16),
    pa.decimal128(38, 0): st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
    pa.list_(pa.string()): st.lists(st.none() | st.text(max_size=40), max_size=4),
    pa.list_(pa.int32()): st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=60),
    pa.list_(pa.decimal128(9, 0)): st.lists(st.integers(-99, 99).map(Decimal), max_size=4),
}
KEYS: list[pa.DataType] = [pa.int64(), pa.string(), pa.binary(16), pa.bool_()]


@given(data=st.data(), kind=st.sampled_from(list(VALUES)), key_kind=st.none() | st.sampled_from(KEYS))
def test_the_kernel_hashes_as_the_definition_says(
    data: st.DataObject, kind: pa.DataType, key_kind: pa.DataType | None
) -> None:
    values = data.draw(st.lists(st.none() | VALUES[kind], max_size=20))
    size = len(values)
    start = data.draw(st.integers(0, size))
    array = build(kind, values).slice(start)
    key = None
    if key_kind is not None:
        keys = data.draw(st.lists(st.none() | VALUES[key_kind], min_size=size, max_size=size))
        key = build(key_kind, keys).slice(start)
    assert column_checksum(array, key) == reference_checksum(array, key)


def test_sums_wrap_and_do_not_depend_on_order_or_batches() -> None:
    array = pa.array(range(100), pa.int64())
    whole = reference_checksum(array)
    assert whole == reference_checksum(pa.array(reversed(range(100)), pa.int64()))
    assert whole == add(reference_checksum(array[:40]), reference_checksum(array[40:]))
    assert whole == sum(xxhash.xxh3_64_intdigest(struct.pack("<q", i)) for i in range(100)) & MASK


def test_duplicates_do_not_cancel() -> None:
    assert reference_checksum(pa.array(["a", "a"])) != 0
    assert reference_checksum(pa.array(["a", "a", "b"])) != reference_checksum(pa.array(["b"]))


def test_keyed_sums_are_the_reference_ones() -> None:
    key = pa.array([1, 2], pa.int32())
    assert reference_checksum(pa.array(["a", "b"]), key) == 4512397052566083030
    assert reference_checksum(key, key) == 5123278496736876268
    assert reference_checksum(pa.array([True, None]), key) == 10146686621065345469
    text_key = pa.array(["k1", "k2"])
    assert reference_checksum(pa.array(["a", "b"]), text_key) == 12534287539580153765


def test_a_null_key_hashes_as_its_empty_slot() -> None:
    key = pa.array([1, None, 3], pa.int32())
    assert reference_checksum(pa.array(["a", "b", None]), key) == 1050450597271210315
    assert reference_checksum(pa.array([[7], None, []], pa.list_(pa.int32())), key) == 15227274558874404008
    assert reference_checksum(key, key) == 11629095003192481079


def test_only_a_keyed_sum_sees_values_that_changed_rows() -> None:
    key = pa.array([1, 2, 3], pa.int64())
    before, after = pa.array(["x", "y", "z"]), pa.array(["y", "x", "z"])
    assert reference_checksum(before) == reference_checksum(after)
    assert reference_checksum(before, key) != reference_checksum(after, key)


@pytest.mark.parametrize(
    "kind",
    [pa.date32(), pa.time64("us"), UTC_US, pa.decimal128(9, 2), pa.binary(16), pa.binary(), pa.uuid()],
    ids=str,
)
def test_lists_beyond_the_reference_have_a_form_of_their_own(kind: pa.DataType) -> None:
    assert covers(pa.list_(kind))
    assert not peer_covers(pa.list_(kind))
    tags = [
        element_tag(k) for k in (pa.string(), pa.date32(), pa.time64("us"), UTC_US, pa.binary(4), pa.binary())
    ]
    assert len(set(tags)) == len(tags)


def test_a_type_without_a_form_is_refused_by_name() -> None:
    struct_array = pa.array([{"a": 1}])
    assert not covers(struct_array.type)
    with pytest.raises(InternalError, match="struct"):
        reference_checksum(struct_array)
    assert not peer_covers(pa.timestamp("ns"))
    assert not peer_covers(pa.int8())
