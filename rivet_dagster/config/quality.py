"""``quality`` and ``meta_columns``: gates over the written rows, columns added to them."""

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import Field

from rivet_dagster.config.base import Context, Flag, Int, Number, Problem, Section
from rivet_dagster.config.identifiers import ColumnList, ColumnName


class QualityConfig(Section):
    row_count_min: Annotated[Int, Field(ge=0)] | None = None
    row_count_max: Annotated[Int, Field(ge=0)] | None = None
    null_ratio_max: Mapping[ColumnName, Annotated[Number, Field(ge=0, le=1)]] = {}
    unique_columns: ColumnList = ()
    unique_max_entries: Annotated[Int, Field(ge=1)] | None = None

    def problems(self, context: Context) -> Iterator[Problem]:
        low, high = self.row_count_min, self.row_count_max
        if low is not None and high is not None and low > high:
            yield Problem(("row_count_min",), "`row_count_min` is above `row_count_max`", "swap the two")


class MetaColumns(Section):
    exported_at: Flag = False
    row_hash: Flag | ColumnList = False

    def problems(self, context: Context) -> Iterator[Problem]:
        if isinstance(self.row_hash, bool):
            return
        if not self.row_hash:
            yield Problem(
                ("row_hash",), "the list of columns is empty", "name columns, or write `row_hash: true`"
            )
        elif len(set(self.row_hash)) < len(self.row_hash):
            yield Problem(("row_hash",), "a column stands twice in the list", "name every column once")
