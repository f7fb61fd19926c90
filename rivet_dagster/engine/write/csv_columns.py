"""Which values a CSV takes as the server's own text, because Arrow would render them otherwise."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from rivet_dagster.engine.types.decision import Column

_PLAIN_DECIMAL_SCALE = 6  # Arrow turns to exponents below 1e-6


def needs_server_text(column: Column) -> bool:
    """The value's CSV text must come from the server (uuid, lists, decimals of a fine scale)."""
    arrow = column.arrow
    if pa.types.is_decimal(arrow):
        return bool(arrow.scale > _PLAIN_DECIMAL_SCALE)
    return pa.types.is_nested(arrow) or (
        isinstance(arrow, pa.BaseExtensionType) and pa.types.is_fixed_size_binary(arrow.storage_type)
    )


def as_server_text(column: Column, wire_text: int) -> Column:
    return replace(column, select=f"{column.select}::text", arrow=pa.string(), wire=wire_text, scale=0)


def as_server_hex(column: Column, wire_text: int) -> Column:
    return replace(column, select=f"encode({column.select}, 'hex')", arrow=pa.string(), wire=wire_text)
