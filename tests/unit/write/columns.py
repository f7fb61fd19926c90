"""Columns and batches as a source would decide and send them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from rivet_dagster.engine.types.decision import Column, arrow_schema


def column(name: str, arrow: pa.DataType, **decided: Any) -> Column:
    return Column(name, "native", arrow, f'"{name}"', 0, **decided)


def batch(columns: list[Column], *values: list[Any]) -> pa.RecordBatch:
    arrays = []
    for c, items in zip(columns, values, strict=True):
        if isinstance(c.arrow, pa.BaseExtensionType):
            arrays.append(pa.ExtensionArray.from_storage(c.arrow, pa.array(items, c.arrow.storage_type)))
        else:
            arrays.append(pa.array(items, c.arrow))
    return pa.record_batch(arrays, schema=arrow_schema(columns))
