"""Reads finished parts again, a bounded piece at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

_BATCH_ROWS: Final = 65_536
_BATCH_BYTES: Final = 32 << 20
_BLOCK: Final = 1 << 20


def parquet_batches(file: BinaryIO, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file, in batches of at most 65,536 rows and about 32 MB.

    columns: only these, in this order; None for all. Raises pyarrow's errors for a file that is none.
    """
    with pq.ParquetFile(file, pre_buffer=False, buffer_size=_BLOCK) as parquet:
        for group in range(parquet.num_row_groups):
            rows = _rows_a_batch(parquet.metadata.row_group(group))
            yield from parquet.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False)


def parquet_header(file: BinaryIO) -> tuple[pa.Schema, int]:
    """Schema and declared rows of a Parquet file."""
    with pq.ParquetFile(file, pre_buffer=False) as parquet:
        return parquet.schema_arrow, int(parquet.metadata.num_rows)


def csv_rows(file: BinaryIO) -> int:
    """Records of an RFC 4180 file after its header line; a line break inside quotes ends no record."""
    lines, quoted, last = 0, False, b"\n"
    while block := file.read(_BLOCK):
        for number, run in enumerate(block.split(b'"')):
            if number:
                quoted = not quoted  # a doubled quote flips twice
            if not quoted:
                lines += run.count(b"\n")
        last = block[-1:]
    if last != b"\n":
        lines += 1
    return max(0, lines - 1)


def _rows_a_batch(group: Any) -> int:
    width = max(1, group.total_byte_size // max(1, group.num_rows))
    return int(max(1, min(_BATCH_ROWS, _BATCH_BYTES // width)))


__all__ = ["csv_rows", "parquet_batches", "parquet_header"]
