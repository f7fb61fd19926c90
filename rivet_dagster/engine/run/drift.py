"""The shape of an export against that of its last complete run: columns, types, longest values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from rivet_dagster.engine.errors import SchemaDriftError
from rivet_dagster.engine.types.decision import Column

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig

#: How many times longer than ever before a value may be before a run says so.
WIDTH_FACTOR: Final = 2.0


class Drift(Struct, frozen=True):
    """What changed. Names of columns; wider: name -> (bytes of the longest value now, and so far)."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    retyped: tuple[str, ...] = ()
    wider: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def schema_lines(self) -> list[str]:
        """A line a kind of change of the columns."""
        kinds = {"added": self.added, "removed": self.removed, "retyped": self.retyped}
        return [f"schema drift: columns {what}: {', '.join(names)}" for what, names in kinds.items() if names]

    @property
    def shape_lines(self) -> list[str]:
        """A line a column whose values grew."""
        return [
            f"shape drift: '{name}' holds {size} bytes, {size / before:.1f} times the longest so far"
            for name, (size, before) in self.wider.items()
        ]

    def as_json(self) -> dict[str, Any]:
        wider = {name: list(sizes) for name, sizes in self.wider.items()}
        return {
            "added": list(self.added),
            "removed": list(self.removed),
            "retyped": list(self.retyped),
            "wider": wider,
        }


def schema_drift(accepted: str, columns: Sequence[Column]) -> Drift:
    """What the source changed about its columns since ``accepted`` (JSON of the state).

    What the config changed is not the source's: columns that it adds, types that it declares.
    """
    before = {c["name"]: c for c in json.loads(accepted) if not c.get("added")}
    now = {c.name: c.as_json() for c in columns if not c.added}
    return Drift(
        tuple(sorted(now.keys() - before.keys())),
        tuple(sorted(before.keys() - now.keys())),
        tuple(sorted(name for name in now.keys() & before.keys() if _retyped(before[name], now[name]))),
    )


def _retyped(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    if before.get("native") != now["native"]:
        return True
    same_decider = before.get("declared") is None and now.get("declared") is None
    return bool(same_decider and before["type"] != now["type"])


def look_for_drift(export: ExportConfig, accepted: str | None, columns: Sequence[Column]) -> Drift:
    """What the source changed about its columns since the last complete run, if the export wants to know.

    Raises SchemaDriftError with ``on_schema_drift: fail``.
    """
    if accepted is None or export.on_schema_drift == "continue":
        return Drift()
    drift = schema_drift(accepted, columns)
    if drift.schema_lines and export.on_schema_drift == "fail":
        error = SchemaDriftError("; ".join(drift.schema_lines), export=export.name)
        error.details["drift"] = drift.as_json()
        raise error
    return drift


def width_drift(
    known: Mapping[str, int], now: Mapping[str, int], factor: float
) -> dict[str, tuple[int, int]]:
    """Columns whose longest value grew past ``factor`` times the longest so far."""
    return {
        name: (size, known[name])
        for name, size in now.items()
        if known.get(name) and size > factor * known[name]
    }


def widest(known: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """The longest values from now on, of the columns that are still there."""
    return {name: max(size, known.get(name, 0)) for name, size in now.items()}


__all__ = ["WIDTH_FACTOR", "Drift", "look_for_drift", "schema_drift", "widest", "width_drift"]
