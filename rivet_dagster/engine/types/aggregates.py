"""What two copies of the same rows are compared by: counts and, for each column, a few statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field


class ColumnAggregate(Struct, frozen=True):
    """Statistics of one column, by name, e.g. ``nulls``, ``min``, ``max``, ``sum``.

    Only statistics that mean the same on both sides are there (a text's minimum depends on a
    collation); values compare with ``==``. They are data of rows: they are compared, never reported.
    """

    statistics: Mapping[str, Any] = field(default_factory=dict)

    def differences(self, other: ColumnAggregate) -> list[str]:
        """Names of the statistics that both sides have and that differ."""
        return [
            name
            for name, value in self.statistics.items()
            if name in other.statistics and other.statistics[name] != value
        ]


class Aggregates(Struct, frozen=True):
    """rows: their number. columns: name -> statistics; a column without any is compared by count alone.

    digest: one number for all rows as wholes, whatever their order; None when it was not taken.
    """

    rows: int
    columns: Mapping[str, ColumnAggregate] = field(default_factory=dict)
    digest: int | None = None
