"""What a step tells the run that it is part of: the entry of its export, for the sum over all of them."""

from __future__ import annotations

from typing import Any

_told: list[dict[str, Any]] = []


def tell_entry(entry: dict[str, Any]) -> None:
    """Keep the outcome of this process's step; a later one (of a retry) replaces it."""
    _told[:] = [entry]


def take_entry() -> dict[str, Any] | None:
    """The outcome that was told since the last call."""
    return _told.pop() if _told else None
