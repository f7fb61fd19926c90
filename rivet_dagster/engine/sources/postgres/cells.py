"""Native figures of Arrow arrays (``checksum.c``, ``unique.c``), with the GIL released.

What a cell's bytes are is defined in ``engine/verify/checksum.py``; this is the fast way to the same sums.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as t

from rivet_dagster.engine.errors import InternalError
from rivet_dagster.engine.plan.units import Span
from rivet_dagster.engine.sources.postgres.kernel import load

_BITS, _FIXED, _VARIABLE, _LIST = range(4)

#: element type -> tag in a list's bytes; ``engine/verify/checksum.py`` has the table, a test compares
_TAGS: Final = (
    (t.is_boolean, 1),
    (t.is_int16, 2),
    (t.is_int32, 3),
    (t.is_int64, 4),
    (t.is_float32, 5),
    (t.is_float64, 6),
    (t.is_string, 7),
    (t.is_date32, 8),
    (t.is_time64, 9),
    (t.is_timestamp, 10),
    (t.is_decimal, 11),
    (t.is_fixed_size_binary, 12),
    (t.is_binary, 13),
)
_FIXED_TYPES: Final = (
    t.is_integer,
    t.is_float32,
    t.is_float64,
    t.is_date,
    t.is_time,
    t.is_timestamp,
    t.is_decimal,
    t.is_fixed_size_binary,
)


#: Types whose order is that of their number, at most 16 bytes wide.
_NUMBERS: Final = (
    t.is_signed_integer,
    t.is_date,
    t.is_time,
    t.is_timestamp,
    t.is_decimal128,
)
_AS_NUMBERS, _AS_BYTES = range(2)


class _Span(ctypes.Structure):
    """``rivet_span`` of unique.c."""

    _fields_ = (
        ("cells", ctypes.c_int64),
        ("rising", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("low", ctypes.c_uint8 * 16),
        ("high", ctypes.c_uint8 * 16),
    )


class _Cells(ctypes.Structure):
    """``rivet_cells`` of cells.h."""


_Cells._fields_ = (
    ("form", ctypes.c_int32),
    ("width", ctypes.c_int32),
    ("tag", ctypes.c_int32),
    ("reserved", ctypes.c_int32),
    ("offset", ctypes.c_int64),
    ("valid", ctypes.c_void_p),
    ("values", ctypes.c_void_p),
    ("offsets", ctypes.c_void_p),
    ("elements", ctypes.POINTER(_Cells)),
)


def _storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _address(buffer: pa.Buffer | None) -> int | None:
    return None if buffer is None else int(buffer.address)


def _plain(array: pa.Array) -> _Cells | None:
    """The cells of an array that is not nested; None for a type that is not hashed natively."""
    kind = array.type
    cells = _Cells(offset=array.offset)
    if t.is_boolean(kind):
        cells.form = _BITS
    elif t.is_string(kind) or t.is_binary(kind):
        cells.form = _VARIABLE
    elif any(test(kind) for test in _FIXED_TYPES):
        cells.form, cells.width = _FIXED, kind.bit_width // 8
    else:
        return None
    buffers = array.buffers()
    cells.valid = _address(buffers[0]) if array.null_count else None
    cells.values = _address(buffers[-1])
    if cells.form == _VARIABLE:
        cells.offsets = _address(buffers[1])
    return cells


def _cells(array: pa.Array) -> _Cells | None:
    if not t.is_list(array.type):
        return _plain(array)
    values = _storage(array.values)
    elements = _plain(values)
    tag = next((tag for test, tag in _TAGS if test(values.type)), None)
    if elements is None or tag is None:
        return None
    buffers = array.buffers()
    cells = _Cells(form=_LIST, tag=tag, offset=array.offset, offsets=_address(buffers[1]))
    cells.valid = _address(buffers[0]) if array.null_count else None
    cells.elements = ctypes.pointer(elements)
    return cells


def column_checksum(array: pa.Array, key: pa.Array | None = None) -> int | None:
    """Sum of the cells' hashes, 0 <= n < 2^64; None when a type is not hashed natively.

    key: the row keys, of the same length. Sums of several arrays of a column add up modulo 2^64.
    """
    if key is not None and len(key) != len(array):
        raise ValueError(f"{len(key)} keys for {len(array)} cells")
    array = _storage(array)
    cells = _cells(array)
    keys = _plain(_storage(key)) if key is not None else None
    if cells is None or (key is not None and keys is None):
        return None
    if not len(array):
        return 0
    total = ctypes.c_uint64()
    pointer: Any = ctypes.byref(keys) if keys is not None else None
    if load().rivet_checksum(ctypes.byref(cells), pointer, len(array), ctypes.byref(total)) != 0:
        raise MemoryError("no memory to hash a cell")
    return total.value


def batch_checksums(batch: pa.RecordBatch, key: str | None = None) -> dict[str, int]:
    """Column name -> checksum, of the columns that are hashed natively."""
    keys = batch.column(key) if key is not None else None
    sums = ((name, column_checksum(batch.column(name), keys)) for name in batch.schema.names)
    return {name: found for name, found in sums if found is not None}


def row_hashes(arrays: Sequence[pa.Array]) -> pa.Array:
    """int64: XXH3-64 of each row's cells, framed so that no two rows have the same bytes (checksum.c).

    The arrays have one length and at least one is there. Raises InternalError for a type without bytes.
    """
    stored = [_storage(array) for array in arrays]
    rows = len(stored[0])
    cells = [_cells(array) for array in stored]
    if any(c is None for c in cells):
        raise InternalError("a column's type has no bytes to hash")
    out = pa.allocate_buffer(8 * rows)
    if rows:
        table = (_Cells * len(cells))(*(c for c in cells if c is not None))
        if load().rivet_row_hashes(ctypes.byref(table), len(cells), rows, out.address) != 0:
            raise MemoryError("no memory to hash a row")
    return pa.Array.from_buffers(pa.int64(), rows, [None, out])


def widest(array: pa.Array) -> int:
    """Bytes of the longest value of a text or binary array; 0 without any."""
    array = _storage(array)
    cells = _plain(array)
    if cells is None or cells.form != _VARIABLE:
        raise InternalError(f"{array.type} has no variable width")
    return int(load().rivet_widest(ctypes.byref(cells), len(array))) if len(array) else 0


def has_span(kind: pa.DataType) -> bool:
    """Whether ``cell_span`` knows the order of a type's cells."""
    return _span_kind(kind) is not None


def _span_kind(kind: pa.DataType) -> int | None:
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    if any(test(kind) for test in _NUMBERS):
        return _AS_NUMBERS
    ordered = t.is_string(kind) or t.is_binary(kind) or t.is_fixed_size_binary(kind)
    return _AS_BYTES if ordered else None


def cell_span(array: pa.Array) -> Span | None:
    """Where the cells lie; None when all are NULL. Raises InternalError for a type without an order here."""
    kind = _span_kind(array.type)
    cells = _plain(_storage(array))
    if kind is None or cells is None:
        raise InternalError(f"the cells of {array.type} have no order")
    if not len(array):
        return None
    found = _Span()
    if load().rivet_cell_span(ctypes.byref(cells), len(array), kind, ctypes.byref(found)) != 0:
        raise InternalError(f"the cells of {array.type} have no order")
    if not found.cells:
        return None
    numbers = kind == _AS_NUMBERS
    low, high = (
        int.from_bytes(bytes(end), "little" if numbers else "big", signed=numbers)
        for end in (found.low, found.high)
    )
    return Span(low, high, bool(found.rising))


def cell_hashes(array: pa.Array, into: pa.Buffer, *, mask: int = 0, slot: int = 0) -> int:
    """XXH3-64 of each cell that is not NULL, written to ``into`` (8 bytes a cell); returns how many.

    mask, slot: only of hashes that have these low bits. Raises InternalError for a type without bytes.
    """
    cells = _cells(_storage(array))
    if cells is None:
        raise InternalError(f"{array.type} has no bytes to hash")
    if into.size < 8 * len(array):
        raise ValueError(f"{len(array)} hashes do not fit into {into.size} bytes")
    if not len(array):
        return 0
    found = int(load().rivet_cell_hashes(ctypes.byref(cells), len(array), mask, slot, into.address))
    if found < 0:
        raise MemoryError("no memory to hash a cell")
    return found


def keep_distinct(hashes: pa.Buffer, count: int, *, room: int) -> tuple[int, list[int], int]:
    """Sort the first ``count`` hashes in place and keep each once, at the front.

    Returns how many are kept, the hashes that came more than once (``room`` at the most), and how many
    those were.
    """
    repeated, found = (ctypes.c_uint64 * room)(), ctypes.c_int64()
    kept = load().rivet_keep_distinct(hashes.address, count, repeated, room, ctypes.byref(found))
    return int(kept), list(repeated[: min(room, found.value)]), found.value


def xxh3_64(data: bytes) -> int:
    """XXH3-64 (seed 0, default secret) of ``data``, by the kernel's own implementation."""
    return int(load().rivet_xxh3_64(data, len(data)))
