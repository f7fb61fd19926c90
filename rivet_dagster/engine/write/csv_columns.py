"""Which values a CSV takes as the server's own text, because Arrow would render them otherwise."""

from __future__ import annotations

import pyarrow as pa
from msgspec.structs import replace

from rivet_dagster.engine.types.decision import Column


def needs_server_text(column: Column) -> bool:
    """The value's CSV text must come from the server (uuid, lists)."""
    arrow = column.arrow
    return pa.types.is_nested(arrow) or (
        isinstance(arrow, pa.BaseExtensionType) and pa.types.is_fixed_size_binary(arrow.storage_type)
    )


def as_server_text(column: Column, wire_text: int) -> Column:
    return replace(column, select=f"{column.select}::text", arrow=pa.string(), wire=wire_text, scale=0)


def as_server_hex(column: Column, wire_text: int) -> Column:
    return replace(column, select=f"encode({column.select}, 'hex')", arrow=pa.string(), wire=wire_text)
