"""``notifications``: who is told about a run."""

import os
from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator

from rivet_dagster.config.base import Context, Problem, Secret, Section, Text, read_list

Event = Literal["failure", "schema_change", "degraded"]
EVENTS: Final[tuple[Event, ...]] = ("failure", "schema_change", "degraded")


class SlackConfig(Section):
    """webhook_url_env: the variable that holds the address; it is a secret. on: by default everything."""

    webhook_url: Secret | None = None
    webhook_url_env: Text | None = None
    on: Annotated[tuple[Event, ...], BeforeValidator(read_list)] | None = None

    @property
    def events(self) -> tuple[Event, ...]:
        return EVENTS if self.on is None else self.on

    def url(self) -> str | None:
        """The address, read now; None when its variable is not set. Register it before using it."""
        if self.webhook_url is not None:
            return self.webhook_url.get_secret_value()
        return os.environ.get(self.webhook_url_env or "") or None

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
