"""CSV parts: RFC 4180, NULL is an empty field, the empty string is ``""``; rendered by Arrow, not by row.

What Arrow renders in another form than the documented one is selected as text from the server
(``csv_columns.py``), so that one text form exists for a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from rivet_dagster.engine.types.decision import Column
from rivet_dagster.engine.types.iso_times import time_text

_PLAIN_SCALE = 6  # Arrow turns to exponents below 1e-6
#: A line of ``\.`` alone is the end of data to PostgreSQL's COPY, hence such a field is quoted too.
_NEEDS_QUOTES = r'[",\r\n]|^\\\.$'
#: Every column's text and the joined lines are in memory at once, several times a slice's own size.
_SLICE_ROWS = 8_192


def quote_field(text: pa.Array) -> pa.Array:
    """Quote the fields that need it; NULL becomes the empty field."""
    special = pc.or_(pc.match_substring_regex(text, _NEEDS_QUOTES), pc.equal(text, ""))
    quoted = pc.binary_join_element_wise('"', pc.replace_substring(text, '"', '""'), '"', "")
    return pc.fill_null(pc.if_else(special, quoted, text), "")


def render(array: pa.Array) -> pa.Array:
    """One column as text, NULL as ``""`` without quotes. Types: see the module's docstring."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    kind = array.type
    if pa.types.is_string(kind):
        return quote_field(array)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return pc.fill_null(time_text(array), "")
    text = pc.cast(array, pa.string())
    if pa.types.is_decimal(kind) and kind.scale > _PLAIN_SCALE:
        text = _without_exponents(text)
    if pa.types.is_floating(kind):
        text = pc.if_else(pc.is_nan(array), "NaN", text)
    return pc.fill_null(text, "")


def _without_exponents(text: pa.Array) -> pa.Array:
    """Decimals as plain digits: the few that Arrow writes with an exponent are written again."""
    small = pc.fill_null(pc.match_substring(text, "E"), False)
    if not pc.any(small).as_py():
        return text
    plain = [format(Decimal(value), "f") for value in text.filter(small).to_pylist()]
    return pc.replace_with_mask(text, small, pa.array(plain, pa.string()))


class CsvPartWriter:
    """One CSV file with a header line; lines end in LF."""

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        self.rows = 0
        self._sink = pa.OSFile(str(path), "wb")
        header = ",".join(quote_field(pa.array([c.name], pa.string())).to_pylist()[0] for c in columns)
        self._sink.write(f"{header}\n".encode())

    def write(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, _SLICE_ROWS):
            self._write_lines(batch.slice(start, _SLICE_ROWS))
        self.rows += batch.num_rows

    def _write_lines(self, batch: pa.RecordBatch) -> None:
        fields = [render(column) for column in batch.columns]
        # the last argument is the separator: values are joined by it, and the "" before it ends the line
        lines = pc.binary_join_element_wise(*fields, ",")
        lines = pc.binary_join_element_wise(lines, "", "\n")
        self._sink.write(_values_buffer(lines))

    def tell(self) -> int:
        return int(self._sink.tell())

    def close(self) -> None:
        self._sink.close()

    def abort(self) -> None:
        self._sink.close()


def _values_buffer(lines: pa.Array) -> pa.Buffer:
    """The contiguous text of a non-sliced string array."""
    combined = lines.combine_chunks() if isinstance(lines, pa.ChunkedArray) else lines
    offsets, values = combined.buffers()[1], combined.buffers()[2]
    last = int.from_bytes(memoryview(offsets)[4 * len(combined) : 4 * len(combined) + 4], "little")
    return values.slice(0, last)
