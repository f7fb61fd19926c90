"""Which Parquet encoding a column gets: decided from the catalog, before the first row.

A dictionary on a column of unique values hashes every value for nothing and falls back in the end;
on a column of few values it is the smallest and cheapest form there is. Everything else that counts
up or lies close together is delta-packed. Hashes do neither: packing them costs six times the plain form.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from rivet_dagster.engine.types.decision import Column

#: More distinct values than this cost more to hash than the dictionary saves (benchmarks/, zstd 3).
TEXT_MAX_DISTINCT = 5_000
#: Numbers have delta packing, which is nearly as small and needs no hashing.
NUMBER_MAX_DISTINCT = 64


def wants_dictionary(column: Column) -> bool:
    if pa.types.is_boolean(column.arrow):
        return False
    if pa.types.is_nested(column.arrow):
        return True
    text = pa.types.is_string(column.arrow) or isinstance(column.arrow, pa.BaseExtensionType)
    if column.distinct is None:  # never analysed: text is more often repeated than not
        return text
    return 0 < column.distinct <= (TEXT_MAX_DISTINCT if text else NUMBER_MAX_DISTINCT)


def _delta(arrow: pa.DataType) -> bool:
    return bool(
        pa.types.is_int16(arrow)
        or pa.types.is_int32(arrow)
        or pa.types.is_int64(arrow)
        or pa.types.is_timestamp(arrow)
        or pa.types.is_time64(arrow)
        or pa.types.is_date32(arrow)
        or (pa.types.is_decimal128(arrow) and arrow.precision <= 18)
    )


def encodings(columns: Sequence[Column]) -> tuple[list[str], dict[str, str]]:
    """(columns with a dictionary, column -> encoding of the others). Names are Parquet leaf paths."""
    dictionary: list[str] = []
    encoding: dict[str, str] = {}
    for column in columns:
        leaf = f"{column.name}.list.item" if pa.types.is_list(column.arrow) else column.name
        if wants_dictionary(column):
            dictionary.append(leaf)
        elif not column.random and _delta(column.arrow):
            encoding[leaf] = "DELTA_BINARY_PACKED"
    return dictionary, encoding
