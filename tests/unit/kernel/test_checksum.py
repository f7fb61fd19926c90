"""Native checksums against the definition in engine/verify, and XXH3 against the xxhash package."""

from __future__ import annotations

import ctypes
import datetime as dt
import mmap
import random
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import xxhash

from rivet_dagster.engine.sources.postgres.cells import (
    _TAGS,
    _Cells,
    batch_checksums,
    column_checksum,
    xxh3_64,
)
from rivet_dagster.engine.verify.checksum import MASK, element_tag, reference_checksum


def test_every_length_up_to_2000() -> None:
    data = random.Random(1).randbytes(2000)
    for length in range(2001):
        assert xxh3_64(data[:length]) == xxhash.xxh3_64_intdigest(data[:length]), length


@pytest.mark.parametrize("length", [4095, 4096, 65537, 1 << 20, (1 << 20) + 1, 3_000_001])
def test_long_inputs(length: int) -> None:
    data = random.Random(length).randbytes(length)
    assert xxh3_64(data) == xxhash.xxh3_64_intdigest(data)


VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [-1, 5]),
    (pa.int16(), [-1, 300]),
    (pa.int32(), [-1, 70000]),
    (pa.int64(), [-1, 2**40]),
    (pa.uint64(), [2**64 - 1, 0]),
    (pa.float32(), [0.5, -0.0]),
    (pa.float64(), [0.1, float("nan")]),
    (pa.date32(), [dt.date(1999, 1, 2), dt.date(1, 1, 1)]),
    (pa.time64("us"), [dt.time(1, 2, 3)]),
    (pa.timestamp("us"), [dt.datetime(2020, 1, 1)]),
    (pa.timestamp("us", tz="UTC"), [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]),
    (pa.decimal128(12, 2), [Decimal("1.25"), Decimal("-9999.99")]),
    (pa.decimal256(60, 2), [Decimal("1.25")]),
    (pa.binary(16), [bytes(range(16))]),
    (pa.uuid(), [bytes(range(16))]),
    (pa.utf8(), ["", "abc", "é" * 200, "x" * 5000]),
    (pa.json_(), ['{"a": 1}']),
    (pa.binary(), [b"", b"\xff" * 30]),
]
LISTED = [(kind, values) for kind, values in VALUES if element_tag(kind) is not None]


def make(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    return pa.array(values, kind)


def forms(kind: pa.DataType, values: list[Any]) -> list[pa.Array]:
    """Without NULLs, with them, sliced, empty, all NULL."""
    mixed = make(kind, [None, *values, None, *values, *values, None] * 3)
    return [
        make(kind, values * 5),
        mixed,
        mixed.slice(3, 7),
        mixed.slice(len(values) + 2),
        mixed[:0],
        make(kind, [None] * 9),
    ]


def lists(kind: pa.DataType, values: list[Any]) -> list[pa.Array]:
    elements = make(kind, [None, *values, *values, None, *values] * 4)
    offsets = [0, 2, None, 3, 3, 7, len(elements)]
    whole = pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), elements, pa.list_(pa.field("item", elements.type))
    )
    return [whole, whole.slice(1, 4), pa.ListArray.from_arrays(pa.array([0, 1, 2]), elements.slice(1))]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[str(k) for k, _ in VALUES])
def test_columns_equal_the_definition(kind: pa.DataType, values: list[Any]) -> None:
    for array in forms(kind, values):
        assert column_checksum(array) == reference_checksum(array)
        for key_kind, key_values in VALUES:
            key = make(key_kind, ([*key_values, None] * (len(array) + 1))[: len(array)])
            assert column_checksum(array, key) == reference_checksum(array, key), key_kind


@pytest.mark.parametrize("key_type", [pa.int16(), pa.int32(), pa.int64()], ids=str)
def test_every_length_behind_a_key(key_type: pa.DataType) -> None:
    data = random.Random(2).randbytes(400)
    for length in range(len(data)):
        cells = pa.array([None, data[:length], data[-length:] if length else b"", None], pa.binary())
        key = pa.array([9, -2, 2**15 - 3, 1], key_type)
        assert column_checksum(cells, key) == reference_checksum(cells, key), length


def guarded(data: bytes) -> pa.Buffer:
    """``data`` right before a page that nobody may read."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, page * 2)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    memory[page - len(data) : page] = data
    assert libc.mprotect(address + page, page, 0) == 0, ctypes.get_errno()
    return pa.foreign_buffer(address + page - len(data), len(data), memory)


def test_nothing_is_read_behind_the_last_cell() -> None:
    """A read that is wider than the cell would end the process here."""
    for length in range(1, 260):
        buffer = guarded(bytes(range(length % 7, length % 7 + 1)) * length)
        cells = pa.Array.from_buffers(
            pa.binary(), 1, [None, pa.py_buffer(struct.pack("<2i", 0, length)), buffer]
        )
        for key in (None, pa.array([5], pa.int32()), pa.array([5], pa.int64())):
            assert column_checksum(cells, key) is not None, length


@pytest.mark.parametrize(("kind", "values"), LISTED, ids=[str(k) for k, _ in LISTED])
def test_lists_equal_the_definition(kind: pa.DataType, values: list[Any]) -> None:
    for array in lists(kind, values):
        key = pa.array(range(len(array)), pa.int64())
        assert column_checksum(array) == reference_checksum(array)
        assert column_checksum(array, key) == reference_checksum(array, key)


def test_struct_has_the_size_that_checksum_c_asserts() -> None:
    assert ctypes.sizeof(_Cells) == 56


def test_tags_are_those_of_the_definition() -> None:
    for kind, _ in LISTED:
        storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        assert next(tag for test, tag in _TAGS if test(storage)) == element_tag(kind)


def test_order_does_not_matter_and_parts_add_up() -> None:
    array = pa.array([f"v{i % 50}" for i in range(1000)])
    shuffled = array.take(pa.array(random.Random(1).sample(range(1000), 1000)))
    whole = column_checksum(array)
    assert whole == column_checksum(shuffled)
    parts = [column_checksum(array.slice(i, 300)) or 0 for i in range(0, 1000, 300)]
    assert sum(parts) & MASK == whole


def test_types_that_are_left_to_the_definition() -> None:
    assert column_checksum(pa.array([{"a": 1}])) is None
    assert column_checksum(pa.array([[[1]]])) is None
    assert column_checksum(pa.array([1]), pa.array([[1]])) is None
    batch = pa.record_batch({"k": [1, 2], "s": ["a", None], "d": [{"a": 1}, None]})
    assert batch_checksums(batch) == {
        "k": reference_checksum(batch["k"]),
        "s": reference_checksum(batch["s"]),
    }
    assert batch_checksums(batch, "k")["s"] == reference_checksum(batch["s"], batch["k"])


def test_keys_and_cells_must_have_one_length() -> None:
    with pytest.raises(ValueError, match="1 keys for 2 cells"):
        column_checksum(pa.array([1, 2]), pa.array([1]))
