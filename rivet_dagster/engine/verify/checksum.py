"""The value checksum ``xxh3-64-sum-v2``: one order-free sum of cell hashes for each column.

A cell adds xxh3-64 of its bytes, preceded by the bytes of the row's key cell when the export has a
checksum key; sums wrap at 2^64 (a XOR would cancel duplicates). NULL cells add nothing. Without a key
a sum sees that a *column* holds other values than were read; with a key it also sees values that
changed rows. Byte forms: docs/adr/0010-manifest-and-value-checksum.md.

The functions here are the definition, one Python call a cell. The kernel computes the same natively.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import xxhash

from rivet_dagster.engine.errors import InternalError
from rivet_dagster.engine.verify.fingerprint import storage_type

RENDER: Final = "xxh3-64-sum-v2"
MASK: Final = 0xFFFF_FFFF_FFFF_FFFF

_BOOL, _INT16, _INT32, _INT64, _FLOAT32, _FLOAT64, _UTF8 = 1, 2, 3, 4, 5, 6, 7
#: tags of list elements; the reference has 1 to 7 only
_ELEMENT_TAGS: Final[dict[pa.DataType, int]] = {
    pa.bool_(): _BOOL,
    pa.int16(): _INT16,
    pa.int32(): _INT32,
    pa.int64(): _INT64,
    pa.float32(): _FLOAT32,
    pa.float64(): _FLOAT64,
    pa.string(): _UTF8,
}
_NULL_ELEMENT: Final = b"\x00\x00\x00\x00\x00"

_PLAIN_COVERED: Final = frozenset(
    {*_ELEMENT_TAGS, pa.uint64(), pa.date32(), pa.time64("us"), pa.binary()},
)


def add(left: int, right: int) -> int:
    """Sum of two checksums of the same column."""
    return (left + right) & MASK


def peer_covers(kind: pa.DataType) -> bool:
    """Whether the reference recomputes a column of this type; it reads 0 for any other."""
    kind = storage_type(kind)
    if pa.types.is_list(kind):
        return storage_type(kind.value_type) in _ELEMENT_TAGS
    return (
        kind in _PLAIN_COVERED
        or (pa.types.is_timestamp(kind) and kind.unit == "us")
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_decimal256(kind)
    )


def element_tag(kind: pa.DataType) -> int | None:
    """Tag of a list element's type, None when no form is defined."""
    kind = storage_type(kind)
    if (tag := _ELEMENT_TAGS.get(kind)) is not None:
        return tag
    tests: list[tuple[Callable[[pa.DataType], bool], int]] = [
        (pa.types.is_date32, 8),
        (pa.types.is_time64, 9),
        (pa.types.is_timestamp, 10),
        (pa.types.is_decimal, 11),
        (pa.types.is_fixed_size_binary, 12),
        (pa.types.is_binary, 13),
    ]
    return next((tag for test, tag in tests if test(kind)), None)


def covers(kind: pa.DataType) -> bool:
    """Whether this module defines a byte form for the type."""
    kind = storage_type(kind)
    return (element_tag(kind.value_type) is not None) if pa.types.is_list(kind) else _width(kind) is not None


def cell_bytes(array: pa.Array) -> list[bytes | None]:
    """Byte form of each cell, None for NULL. Raises InternalError for a type without a form."""
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    kind = array.type
    if pa.types.is_list(kind):
        return _list_bytes(array)
    width = _width(kind)
    if width is None:
        raise InternalError(f"no checksum form for type {kind}")
    if pa.types.is_boolean(kind):
        return [None if v is None else bytes((v,)) for v in array.to_pylist()]
    if width == 0:
        return [None if v is None else _encoded(v) for v in array.to_pylist()]
    if not len(array):
        return []
    data = memoryview(array.buffers()[1])[array.offset * width :]
    valid = array.is_valid().to_pylist()
    return [bytes(data[i * width : (i + 1) * width]) if ok else None for i, ok in enumerate(valid)]


def reference_checksum(array: pa.Array, key: pa.Array | None = None) -> int:
    """Checksum of one array, 0 <= n < 2^64. ``key``: the row keys, of the same length."""
    cells = cell_bytes(array)
    if key is None:
        return sum(xxhash.xxh3_64_intdigest(cell) for cell in cells if cell is not None) & MASK
    absent = b"\x00" * (_width(storage_type(key.type)) or 0)
    keys = [absent if k is None else k for k in cell_bytes(key)]
    pairs = zip(keys, cells, strict=True)
    return sum(xxhash.xxh3_64_intdigest(k + cell) for k, cell in pairs if cell is not None) & MASK


def column_checksum(array: pa.Array, key: pa.Array | None = None) -> int:
    """The same as ``reference_checksum``, by the kernel where it knows the types."""
    # late: the definition has to load, and to be testable, without the compiled kernel
    from rivet_dagster.engine.sources.postgres import kernel

    found = kernel.column_checksum(array, key)
    return reference_checksum(array, key) if found is None else found


def _encoded(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _width(kind: pa.DataType) -> int | None:
    """Bytes of a fixed-width cell, 0 for variable ones, None for types without a form."""
    if pa.types.is_boolean(kind):
        return 1
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 0
    fixed = (
        pa.types.is_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_temporal(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_fixed_size_binary(kind)
    )
    return int(kind.bit_width) // 8 if fixed else None


def _list_bytes(array: pa.Array) -> list[bytes | None]:
    tag = element_tag(array.type.value_type)
    if tag is None:
        raise InternalError(f"no checksum form for type {array.type}")
    elements = cell_bytes(array.values)
    framed = [_NULL_ELEMENT if e is None else struct.pack("<BI", tag, len(e)) + e for e in elements]
    offsets = array.offsets.to_pylist()
    valid = array.is_valid().to_pylist()
    return [b"".join(framed[offsets[i] : offsets[i + 1]]) if ok else None for i, ok in enumerate(valid)]


__all__ = [
    "MASK",
    "RENDER",
    "add",
    "cell_bytes",
    "column_checksum",
    "covers",
    "element_tag",
    "peer_covers",
    "reference_checksum",
]
