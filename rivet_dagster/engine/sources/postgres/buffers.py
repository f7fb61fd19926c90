"""The Arrow buffers of one column while the kernel fills them.

pyarrow allocates every buffer, so a finished batch is handed over without a copy. Sizes are guesses
that only cost memory: the kernel stops and asks when one is too small.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pyarrow as pa

from rivet_dagster.engine.errors import InternalError
from rivet_dagster.engine.sources.postgres.kernel import ColumnState, Wire
from rivet_dagster.engine.types.decision import Column

#: bytes of a fixed-width value; a bool is a bit and counts one byte where sizes are added up
_WIDTH: dict[Wire, int] = {
    Wire.BOOL: 1,
    Wire.INT16: 2,
    Wire.INT32: 4,
    Wire.INT64: 8,
    Wire.OID: 8,
    Wire.FLOAT32: 4,
    Wire.FLOAT64: 8,
    Wire.DATE: 4,
    Wire.TIMESTAMP: 8,
    Wire.TIME: 8,
    Wire.DECIMAL128: 16,
    Wire.UUID: 16,
    Wire.DECIMAL256: 32,
    Wire.TIMESTAMP_NS: 8,
}
_FIXED_TYPES: dict[Wire, pa.DataType] = {
    Wire.BOOL: pa.bool_(),
    Wire.INT16: pa.int16(),
    Wire.INT32: pa.int32(),
    Wire.INT64: pa.int64(),
    Wire.OID: pa.int64(),
    Wire.FLOAT32: pa.float32(),
    Wire.FLOAT64: pa.float64(),
    Wire.DATE: pa.date32(),
    Wire.TIME: pa.time64("us"),
    Wire.UUID: pa.binary(16),
    Wire.TEXT: pa.utf8(),
    Wire.BYTES: pa.binary(),
    Wire.JSONB: pa.utf8(),
}
_DECIMALS = {Wire.DECIMAL128: pa.types.is_decimal128, Wire.DECIMAL256: pa.types.is_decimal256}
_SMALLEST = 1024


def storage_type(arrow: pa.DataType) -> pa.DataType:
    return arrow.storage_type if isinstance(arrow, pa.BaseExtensionType) else arrow


def _fits(kind: Wire, arrow: pa.DataType) -> bool:
    stored = storage_type(arrow)
    if kind in (Wire.TIMESTAMP, Wire.TIMESTAMP_NS):
        unit = "us" if kind is Wire.TIMESTAMP else "ns"
        return bool(pa.types.is_timestamp(stored) and stored.unit == unit)
    if kind in _DECIMALS:
        return bool(_DECIMALS[kind](stored) and 0 <= stored.scale <= stored.precision)
    return bool(stored == _FIXED_TYPES[kind])


def _wrap(arrow: pa.DataType, array: pa.Array) -> pa.Array:
    return pa.ExtensionArray.from_storage(arrow, array) if isinstance(arrow, pa.BaseExtensionType) else array


class ColumnBuffers:
    """One column: its ``ColumnState`` in the kernel's table, and the buffers behind the addresses.

    InternalError when the column's wire code and Arrow type do not belong together: the type decision
    is ours, and a wrong pair would read one kind of bytes as another.
    """

    def __init__(self, column: Column, state: ColumnState, *, null_policy: bool) -> None:
        self.column = column
        self.state = state
        self.is_list = bool(column.wire & Wire.LIST)
        try:
            self.kind = Wire(column.wire & ~Wire.LIST)
        except ValueError:
            raise InternalError(f"column {column.name!r}: no wire kind {column.wire:#x}") from None
        self.element = storage_type(column.arrow).value_type if self.is_list else column.arrow
        if not _fits(self.kind, self.element):
            raise InternalError(f"column {column.name!r}: {column.arrow} is not decoded by {self.kind.name}")
        self.variable = self.kind >= Wire.TEXT
        state.kind, state.is_list = int(self.kind), int(self.is_list)
        state.null_policy = int(null_policy)
        if self.kind in _DECIMALS:
            state.precision, state.scale = (
                storage_type(self.element).precision,
                storage_type(self.element).scale,
            )
        self._data_hint = column.avg_width or 16
        self._seen: tuple[int, int, int] | None = None  # rows, data bytes, elements of the last batch
        self._buffers: dict[str, Any] = {}
        self._rows = 0

    @property
    def fixed_bytes(self) -> int:
        """Arrow bytes a row takes whatever its value: part of the batch's size by rows."""
        return 4 if self.variable or self.is_list else _WIDTH[self.kind]

    @property
    def guessed_bytes(self) -> int:
        """Arrow bytes of an average row, as far as the catalog knows."""
        return self.fixed_bytes + (self._data_hint if self.variable or self.is_list else 0)

    def allocate(self, rows: int) -> None:
        """New empty buffers for ``rows`` rows."""
        self._buffers = {}
        self._rows = 0
        state = self.state
        state.nulls = state.child_nulls = state.data_used = state.child_used = 0
        state.data_cap = state.child_cap = 0
        data, elements = self._guess(rows)
        self.grow_rows(rows)
        if self.is_list:
            self._grow_elements(elements)
        if self.variable:
            self._grow_data(data)

    def _guess(self, rows: int) -> tuple[int, int]:
        """Bytes of variable data and elements that ``rows`` rows probably take."""
        if self._seen is None:
            return rows * self._data_hint + _SMALLEST, rows * 2 + _SMALLEST
        seen_rows, data, elements = self._seen
        share = 1.07 * rows / max(seen_rows, 1)
        return int(data * share) + _SMALLEST, int(elements * share) + _SMALLEST

    def grow_rows(self, rows: int) -> None:
        """Room for ``rows`` rows in the buffers that have a slot by row; contents stay."""
        state = self.state
        state.valid = self._bits("valid", rows, 0xFF)
        if self.variable or self.is_list:
            state.offsets = self._resize("offsets", 4 * (rows + 1))
            if self._rows == 0:
                ctypes.memset(state.offsets, 0, 4)
        elif self.kind is Wire.BOOL:
            state.values = self._bits("values", rows, 0)
        else:
            state.values = self._resize("values", rows * _WIDTH[self.kind])
        self._rows = rows

    def grow_space(self, need: int) -> None:
        """Room for a value of ``need`` bytes on the wire, with some to spare."""
        state = self.state
        if self.is_list and state.child_cap - state.child_used < need // 4:
            self._grow_elements(max(state.child_used + need // 4, state.child_cap * 3 // 2))
        if self.variable and state.data_cap - state.data_used < need:
            self._grow_data(max(state.data_used + need, state.data_cap * 3 // 2))

    def _grow_data(self, size: int) -> None:
        self.state.values = self._resize("values", size)
        self.state.data_cap = size

    def _grow_elements(self, count: int) -> None:
        state = self.state
        first = state.child_cap == 0
        state.child_valid = self._bits("child_valid", count, 0xFF)
        if self.variable:
            state.child_offsets = self._resize("child_offsets", 4 * (count + 1))
            if first:
                ctypes.memset(state.child_offsets, 0, 4)
        elif self.kind is Wire.BOOL:
            state.values = self._bits("values", count, 0)
        else:
            state.values = self._resize("values", count * _WIDTH[self.kind])
        state.child_cap = count

    def _resize(self, name: str, size: int) -> int:
        buffer = self._buffers.get(name)
        if buffer is None:
            buffer = self._buffers[name] = pa.allocate_buffer(size, resizable=True)
        else:
            buffer.resize(size, shrink_to_fit=False)
        return int(buffer.address)

    def _bits(self, name: str, count: int, fill: int) -> int:
        """A bitmap of ``count`` bits whose new bytes are ``fill``."""
        old = self._buffers[name].size if name in self._buffers else 0
        size = (count + 7) // 8
        address = self._resize(name, size)
        ctypes.memset(address + old, fill, max(size - old, 0))
        return address

    def finish(self, rows: int) -> pa.Array:
        """The array of the first ``rows`` rows. The buffers now belong to it."""
        state = self.state
        self._seen = rows, state.data_used, state.child_used
        valid = self._trim("valid", (rows + 7) // 8) if state.nulls else None
        if not (self.variable or self.is_list):
            size = (rows + 7) // 8 if self.kind is Wire.BOOL else rows * _WIDTH[self.kind]
            array = self._from_buffers(
                self.column.arrow, rows, [valid, self._trim("values", size)], state.nulls
            )
        else:
            offsets = self._trim("offsets", 4 * (rows + 1))
            if self.is_list:
                stored = storage_type(self.column.arrow)
                array = pa.Array.from_buffers(
                    stored, rows, [valid, offsets], null_count=state.nulls, children=[self._elements()]
                )
                array = _wrap(self.column.arrow, array)
            else:
                data = self._trim("values", state.data_used)
                array = self._from_buffers(self.column.arrow, rows, [valid, offsets, data], state.nulls)
        self._buffers = {}
        return array

    def _elements(self) -> pa.Array:
        state = self.state
        count = state.child_used
        buffers = [self._trim("child_valid", (count + 7) // 8) if state.child_nulls else None]
        if self.variable:
            buffers += [self._trim("child_offsets", 4 * (count + 1)), self._trim("values", state.data_used)]
        else:
            size = (count + 7) // 8 if self.kind is Wire.BOOL else count * _WIDTH[self.kind]
            buffers.append(self._trim("values", size))
        return self._from_buffers(self.element, count, buffers, state.child_nulls)

    def _from_buffers(self, arrow: pa.DataType, rows: int, buffers: list[Any], nulls: int) -> pa.Array:
        return _wrap(arrow, pa.Array.from_buffers(storage_type(arrow), rows, buffers, null_count=nulls))

    def _trim(self, name: str, size: int) -> Any:
        buffer = self._buffers[name]
        buffer.resize(size, shrink_to_fit=False)  # pages that were never touched cost nothing
        return buffer
