"""``meta_columns``: what this project adds to every row, in Arrow, after the source was read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from rivet_dagster.engine.errors import ConfigError
from rivet_dagster.engine.plan.columns import require_column
from rivet_dagster.engine.run.sink import Extend
from rivet_dagster.engine.sources.postgres.cells import row_hashes
from rivet_dagster.engine.types.decision import Column, arrow_schema

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig

EXPORTED_AT: Final = "_rivet_exported_at"
ROW_HASH: Final = "_rivet_row_hash"
#: XXH3-64 as a signed number, over the cells as the file holds them, each tagged and with its length.
ROW_HASH_RENDER: Final = "xxh3-64-i64-arrow-cells-v1"

_NATIVE: Final = "rivet_dagster"


def _added(name: str, arrow: pa.DataType, *, random: bool = False) -> Column:
    return Column(name, _NATIVE, arrow, select="", wire=0, nullable=False, added=True, random=random)


def added_columns(export: ExportConfig, columns: Sequence[Column]) -> tuple[Column, ...]:
    """The columns that follow the source's ``columns``. Raises ConfigError for names that clash or lack."""
    names = [c.name for c in columns]
    wanted = []
    if export.meta_columns.exported_at:
        wanted.append(_added(EXPORTED_AT, pa.timestamp("us", tz="UTC")))
    if export.meta_columns.row_hash:
        for name in _covered(export, columns):
            require_column(names, export.name, "meta_columns.row_hash", name)
        wanted.append(_added(ROW_HASH, pa.int64(), random=True))
    for column in wanted:
        if column.name in names:
            raise ConfigError(
                f"the source has a column '{column.name}' of its own",
                export=export.name,
                field="meta_columns",
                fix="rename it in `query:`, or remove the key",
            )
    return tuple(wanted)


def _covered(export: ExportConfig, columns: Sequence[Column]) -> list[str]:
    """Columns that the hash is taken of, in the order in which they are hashed."""
    chosen = export.meta_columns.row_hash
    return [c.name for c in columns] if chosen is True else list(chosen or ())


def row_hash_record(export: ExportConfig, columns: Sequence[Column]) -> dict[str, Any] | None:
    """What the manifest says about the hash. columns: of the source and added ones."""
    if not export.meta_columns.row_hash:
        return None
    covered = _covered(export, [c for c in columns if not c.added])
    return {"column": ROW_HASH, "covered": covered, "render": ROW_HASH_RENDER}


def extender(export: ExportConfig, columns: Sequence[Column], at: datetime) -> Extend | None:
    """Adds the values to a batch of ``columns`` (as the file holds them, added ones last).

    at: the run's own time, the same for all of its rows whenever they were read.
    """
    added = [c for c in columns if c.added]
    if not added:
        return None
    schema = arrow_schema(columns)
    covered = _covered(export, [c for c in columns if not c.added])

    def extend(batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = list(batch.columns)
        for column in added:
            if column.name == EXPORTED_AT:
                arrays.append(pa.repeat(pa.scalar(at, column.arrow), batch.num_rows))
            else:
                arrays.append(row_hashes([batch.column(name) for name in covered]))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    return extend


__all__ = ["EXPORTED_AT", "ROW_HASH", "ROW_HASH_RENDER", "added_columns", "extender", "row_hash_record"]
