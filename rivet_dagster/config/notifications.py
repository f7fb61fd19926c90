"""``notifications``: who is told about a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator

from rivet_dagster.config.base import Context, Problem, Secret, Section, Text, read_list

Event = Literal["failure", "schema_change", "degraded"]


class SlackConfig(Section):
    webhook_url: Secret | None = None
    webhook_url_env: Text | None = None
    on: Annotated[tuple[Event, ...], BeforeValidator(read_list)] = ()

    def problems(self, context: Context) -> Iterator[Problem]:
        if self.given("webhook_url") == self.given("webhook_url_env"):
            yield Problem(
                (),
                "a Slack channel needs one of `webhook_url` and `webhook_url_env`",
                "set exactly one of them",
            )


class NotificationsConfig(Section):
    slack: SlackConfig | None = None

    def problems(self, context: Context) -> Iterator[Problem]:
        if self.slack is not None:
            yield from (p.under("slack") for p in self.slack.problems(context))
