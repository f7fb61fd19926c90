"""Parquet parts: one row group a batch, page index, encodings from the catalog."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rivet_dagster.engine.types.decision import Column, arrow_schema
from rivet_dagster.engine.write.base import WriteOptions
from rivet_dagster.engine.write.encoding import encodings


class ParquetPartWriter:
    """One Parquet file. Identical batches give identical bytes: nothing in it depends on time or host."""

    def __init__(self, path: Path, columns: Sequence[Column], options: WriteOptions) -> None:
        dictionary, column_encoding = encodings(columns)
        settings: dict[str, Any] = {
            "compression": options.codec or "none",
            "use_dictionary": dictionary or False,
            "column_encoding": column_encoding or None,
            "write_page_index": True,
            "store_decimal_as_integer": True,
            "use_compliant_nested_type": False,  # list elements are named `item`, as the reference does
            "data_page_size": 256 << 10,  # fits a core's cache: compresses faster
            "version": "2.6",
        }
        if options.level is not None:
            settings["compression_level"] = options.level
        self.rows = 0
        self._sink = pa.OSFile(str(path), "wb")
        try:
            self._writer = pq.ParquetWriter(self._sink, arrow_schema(columns), **settings)
        except BaseException:
            self._sink.close()
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._writer.write_batch(batch, row_group_size=batch.num_rows)
            self.rows += batch.num_rows

    def tell(self) -> int:
        return int(self._sink.tell())

    def close(self) -> None:
        self._writer.close()
        self._sink.close()

    def abort(self) -> None:
        # closing the sink first makes the footer fail: no valid, short file is ever left
        self._sink.close()
        with suppress(pa.ArrowException, OSError, ValueError):
            self._writer.close()
