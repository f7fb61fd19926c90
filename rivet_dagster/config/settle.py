"""``settle``: leave rows alone until they are old enough by the source's clock."""

from collections.abc import Iterator

from rivet_dagster.config.base import Context, Problem, Section, Text
from rivet_dagster.config.identifiers import ColumnName
from rivet_dagster.config.sizes import parse_duration


class SettleConfig(Section):
    after: Text
    column: ColumnName | None = None

    @property
    def seconds(self) -> int:
        return parse_duration(self.after)

    def problems(self, context: Context) -> Iterator[Problem]:
        try:
            parse_duration(self.after)
        except ValueError:
            yield Problem(
                ("after",), "`after` is not a duration", "write a number and s, m, h or d, e.g. `1h`"
            )
