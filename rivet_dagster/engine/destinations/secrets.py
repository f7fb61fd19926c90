"""Secrets of destinations: rivet.yaml names the environment variable, only the process knows the value."""

from __future__ import annotations

import os

from rivet_dagster.engine.errors import InternalError, UsageError


def named(variable: str | None, key: str) -> str | None:
    """The value of the variable that the config's ``key`` names; None when it names none.

    Raises UsageError RIVET_CONFIG_ENV_UNSET when it is not set or empty.
    """
    if variable is None:
        return None
    value = os.environ.get(variable)
    if not value:
        raise UsageError(
            f"the environment variable {variable} is not set",
            code="RIVET_CONFIG_ENV_UNSET",
            field=f"destination.{key}",
        )
    return value


def required(value: str | None) -> str:
    """A key that the config's own check requires."""
    if value is None:
        raise InternalError("a destination without what its type requires")
    return value
