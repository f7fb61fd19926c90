"""``parquet``: how rows are grouped inside a file."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from rivet_dagster.config.base import Context, Int, Problem, Section

Strategy = Literal["auto", "fixed_rows", "fixed_memory"]


class ParquetConfig(Section):
    row_group_strategy: Strategy | None = None
    row_group_rows: Annotated[Int, Field(ge=1)] | None = None
    target_row_group_mb: Annotated[Int, Field(ge=1)] | None = None
    max_row_group_mb: Annotated[Int, Field(ge=1)] | None = None

    def problems(self, context: Context) -> Iterator[Problem]:
        if self.row_group_strategy == "fixed_rows" and self.row_group_rows is None:
            yield Problem(
                ("row_group_strategy",), "`fixed_rows` needs `row_group_rows`", "set `row_group_rows`"
            )
        if self.row_group_rows is not None and self.row_group_strategy in ("auto", "fixed_memory"):
            yield Problem(
                ("row_group_rows",),
                f"`row_group_rows` has no effect with `row_group_strategy: {self.row_group_strategy}`",
                "use `row_group_strategy: fixed_rows`, or remove `row_group_rows`",
            )
