"""The shape of an export against that of its last complete run: columns, types, longest values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rivet_dagster.engine.types.decision import Column

#: How many times longer than ever before a value may be before a run says so.
WIDTH_FACTOR: Final = 2.0


def schema_drift(accepted: str, columns: Sequence[Column]) -> list[str]:
    """What the source changed since ``accepted`` (JSON of the state), a line a kind of change.

    What the config changed is not the source's: columns that it adds, types that it declares.
    """
    before = {c["name"]: c for c in json.loads(accepted) if not c.get("added")}
    now = {c.name: c.as_json() for c in columns if not c.added}
    changes = {
        "added": now.keys() - before.keys(),
        "removed": before.keys() - now.keys(),
        "retyped": {name for name in now.keys() & before.keys() if _retyped(before[name], now[name])},
    }
    return [
        f"schema drift: columns {what}: {', '.join(sorted(names))}"
        for what, names in changes.items()
        if names
    ]


def _retyped(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    if before.get("native") != now["native"]:
        return True
    same_decider = before.get("declared") is None and now.get("declared") is None
    return bool(same_decider and before["type"] != now["type"])


def width_drift(known: Mapping[str, int], now: Mapping[str, int], factor: float) -> list[str]:
    """Columns whose longest value grew past ``factor`` times the longest so far."""
    return [
        f"shape drift: '{name}' holds {size} bytes, {size / known[name]:.1f} times the longest so far"
        for name, size in now.items()
        if known.get(name) and size > factor * known[name]
    ]


def widest(known: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """The longest values from now on, of the columns that are still there."""
    return {name: max(size, known.get(name, 0)) for name, size in now.items()}


__all__ = ["WIDTH_FACTOR", "schema_drift", "widest", "width_drift"]
