"""Native value checksums of Arrow arrays (``checksum.c``), with the GIL released.

What a cell's bytes are is defined in ``engine/verify/checksum.py``; this is the fast way to the same sums.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as t

from rivet_dagster.engine.errors import InternalError
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


class _Cells(ctypes.Structure):
    """``rivet_cells`` of checksum.c."""


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


def xxh3_64(data: bytes) -> int:
    """XXH3-64 (seed 0, default secret) of ``data``, by the kernel's own implementation."""
    return int(load().rivet_xxh3_64(data, len(data)))
