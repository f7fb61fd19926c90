"""Files: Parquet and CSV parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rivet_dagster.engine.types.decision import Column
from rivet_dagster.engine.write.base import PartWriter, WriteOptions


def new_part_writer(path: Path, columns: Sequence[Column], options: WriteOptions) -> PartWriter:
    """A writer of the options' format at ``path``."""
    return load_writer(options)(path, columns, options)


def load_writer(options: WriteOptions) -> Callable[[Path, Sequence[Column], WriteOptions], PartWriter]:
    """The writer of the options' format; each loads what it needs of Arrow, which takes up to 0.1 s."""
    if options.format == "csv":
        from rivet_dagster.engine.write.csv import CsvPartWriter

        return lambda path, columns, _: CsvPartWriter(path, columns)
    from rivet_dagster.engine.write.parquet import ParquetPartWriter

    return ParquetPartWriter
