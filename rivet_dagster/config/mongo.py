"""``source.mongo``: how documents are read."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from rivet_dagster.config.base import Context, Flag, Int, Problem, Section


class MongoConfig(Section):
    json_: Literal["relaxed", "canonical"] = Field("relaxed", alias="json")
    read_concern: Literal["server", "snapshot"] = "server"
    no_cursor_timeout: Flag = True
    page_size: Annotated[Int, Field(ge=1)] | None = None
    resume: Flag = False

    def problems(self, context: Context) -> Iterator[Problem]:
        if self.resume and self.page_size is None:
            yield Problem(("resume",), "`resume` needs `page_size`", "set `page_size`, or remove `resume`")
