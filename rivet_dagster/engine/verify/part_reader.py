"""Reads finished parts again, a bounded piece at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq

from rivet_dagster.engine.types.decision import Column
from rivet_dagster.engine.types.iso_times import parse_times

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


def csv_types(columns: Sequence[Column]) -> dict[str, pa.DataType]:
    """Columns whose CSV text reads back as exactly their Arrow type. The others are text in the file."""

    exact = (
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_date32,
        pa.types.is_timestamp,
        pa.types.is_string,
        pa.types.is_decimal,
    )
    return {column.name: column.arrow for column in columns if any(test(column.arrow) for test in exact)}


def csv_batches(file: BinaryIO, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    """The rows of a CSV part, with these columns and types; an empty field is NULL, ``""`` is not."""
    # Arrow's CSV reader knows neither years outside 1 to 9999 nor decimal256
    times = {name for name, kind in types.items() if pa.types.is_date32(kind) or pa.types.is_timestamp(kind)}
    wide = {name for name, kind in types.items() if pa.types.is_decimal256(kind)}
    schema = pa.schema(dict(types))
    convert = pv.ConvertOptions(
        column_types={**types, **dict.fromkeys(times | wide, pa.string())},
        include_columns=list(types),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    read = pv.ReadOptions(use_threads=False, block_size=_BATCH_BYTES)
    parse = pv.ParseOptions(newlines_in_values=True)
    with pv.open_csv(file, read, parse, convert) as reader:
        for batch in reader:
            columns = [
                parse_times(column, types[name]) if name in times else column.cast(types[name])
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _rows_a_batch(group: Any) -> int:
    width = max(1, group.total_byte_size // max(1, group.num_rows))
    return int(max(1, min(_BATCH_ROWS, _BATCH_BYTES // width)))


__all__ = ["csv_batches", "csv_rows", "csv_types", "parquet_batches", "parquet_header"]
