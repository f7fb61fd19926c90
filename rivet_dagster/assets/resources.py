"""The Dagster resource that opens the engine, late: nothing is read before a run needs it."""

import os
from functools import cache
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field, PrivateAttr

from rivet_dagster.assets.launcher import Worker
from rivet_dagster.config import RivetConfig
from rivet_dagster.engine.redact import register_secret

if TYPE_CHECKING:
    from rivet_dagster.engine.run.engine import Engine


@cache
def schema_of(config: type[dg.Config]) -> dict[str, Any]:
    """The schema of a step's config, made once for the steps of all exports.

    A step that takes its config and its resource as parameters has both inferred again for each export,
    which is a fifth of the time in which 300 of them load.
    """
    return dict(config.to_fields_dict())


class RivetResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Where the engine keeps its state. Holds the *name* of a variable, never a secret."""

    state_url_env: str = Field(
        default="RIVET_STATE_URL",
        description="Environment variable with the URL of the engine's state (unset: SQLite files).",
    )

    _state_url: str | None = PrivateAttr(default=None)

    @classmethod
    def with_state_url(cls, state_url: str | None, **fields: str) -> "RivetResource":
        """A resource with an explicit URL, which stays out of the resource's (stored) config."""
        resource = cls(**fields)
        resource._state_url = state_url
        return resource

    @classmethod
    @cache
    def of_environment(cls) -> "RivetResource":
        """The one that reads the environment; the same object each time, so that definitions merge."""
        return cls()

    def state_url(self) -> str | None:
        """Explicit URL, else the environment's, else None. Its password is registered as a secret."""
        url = self._state_url or os.environ.get(self.state_url_env) or None
        _register_password(url)
        return url

    def engine(self, config: RivetConfig, worker: Worker) -> "Engine":
        """A new engine on ``config``; close it after use (it is a context manager).

        Raises RefusalError (RIVET_STATE_EPHEMERAL) where the state would not outlive ``worker``.
        """
        from rivet_dagster.engine.run.engine import Engine

        engine = Engine(config, state_url=self.state_url())
        worker.require_lasting(engine.state_location)
        return engine


def _register_password(url: str | None) -> None:
    if not url or "@" not in url:
        return
    userinfo = url.split("://", 1)[-1].rsplit("@", 1)[0]
    if ":" in userinfo:
        register_secret(userinfo.split(":", 1)[1])
