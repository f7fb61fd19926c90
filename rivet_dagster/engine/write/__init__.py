"""Files: Parquet and CSV parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rivet_dagster.engine.types.decision import Column
from rivet_dagster.engine.write.base import PartWriter, WriteOptions
from rivet_dagster.engine.write.parquet import ParquetPartWriter


def new_part_writer(path: Path, columns: Sequence[Column], options: WriteOptions) -> PartWriter:
    """A writer of the options' format at ``path``."""
    if options.format == "csv":
        # pyarrow.compute costs 0.1 s to import, and only CSV needs it
        from rivet_dagster.engine.write.csv import CsvPartWriter

        return CsvPartWriter(path, columns)
    return ParquetPartWriter(path, columns, options)
