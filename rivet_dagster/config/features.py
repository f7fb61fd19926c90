"""What of the language this version runs, as data.

Every key of the reference's language is read and checked. A key stands here when this version cannot
do what some of its values ask for; the loader then refuses the file instead of ignoring the key.
``INERT`` lists keys that only describe an export for planning and change nothing about a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rivet_dagster.config.base import KeyPath, Problem, Section

if TYPE_CHECKING:
    from rivet_dagster.config.root import RivetConfig

NOT_BUILT: Final = "RIVET_CONFIG_NOT_BUILT"


@dataclass(frozen=True, slots=True)
class Feature:
    """section: dotted place of the key. built: the values that work; anything else is refused.

    ``instead`` is what a person can do today.
    """

    section: str
    key: str
    built: tuple[Any, ...]
    instead: str

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}" if self.section else self.key


FEATURES: Final[tuple[Feature, ...]] = (
    Feature("", "parallel_exports", (False,), "let Dagster run the assets side by side"),
    Feature("", "parallel_export_processes", (False,), "let Dagster run the assets side by side"),
    Feature("", "load", (None,), "load the files in a step of your own"),
    Feature("source", "type", ("postgres",), "use `type: postgres`"),
    Feature("source", "mongo", (None,), "use `type: postgres`"),
    Feature("export", "mode", ("full", "incremental", "chunked", "time_window"), "use another mode"),
    Feature("export", "load", (None,), "load the files in a step of your own"),
)

#: Tokens of a destination that nothing fills in yet.
UNFILLED_TOKENS: Final = ("run_id",)

#: Key -> what it is for. Read and kept, without effect on a run.
INERT: Final[dict[str, str]] = {
    "export.source_group": "label of exports that share a source's capacity",
    "export.reconcile_required": "label for planning",
    "export.target": "which warehouse a type report is for",
}


def not_built(config: RivetConfig) -> Iterator[Problem]:
    """What the file asks for and this version cannot do."""
    yield from _check("", config, ())
    yield from _check("source", config.source, ("source",))
    for at, export in enumerate(config.exports):
        here: KeyPath = ("exports", at)
        yield from _check("export", export, here)
        yield from _check("export.destination", export.destination, (*here, "destination"))
        for token in export.destination.tokens():
            if token in UNFILLED_TOKENS:
                yield Problem(
                    (*here, "destination", "path"),
                    f"the token `{{{token}}}` is not built yet",
                    "use {date}, {export} or {table}",
                    NOT_BUILT,
                )


def _check(name: str, section: Section, path: KeyPath) -> Iterator[Problem]:
    for feature in _BY_SECTION[name]:
        if feature.key not in section.model_fields_set:
            continue
        value = getattr(section, feature.key)
        if value not in feature.built:
            what = f"`{feature.key}: {value}`" if isinstance(value, str) else f"`{feature.key}`"
            yield Problem((*path, feature.key), f"{what} is not built yet", feature.instead, NOT_BUILT)


_BY_SECTION: Final[dict[str, tuple[Feature, ...]]] = {
    name: tuple(f for f in FEATURES if f.section == name)
    for name in ("", "source", "export", "export.destination")
}
