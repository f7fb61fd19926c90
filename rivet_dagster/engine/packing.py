"""Which of many exports begins next: the most important first, then the longest, as far as it fits.

What an export takes is what its last runs took; of one without a past it is guessed by its table's size.
Longest first ends soonest: what is short fills the gaps that the long ones leave at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from rivet_dagster.engine.errors import RivetError

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig, RivetConfig
    from rivet_dagster.engine.run.engine import Engine

#: Rows from which an export is heavy: heavy ones never run together.
HEAVY_ROWS: Final = 10_000_000
#: Of an export that neither ran nor has a table with a size.
UNKNOWN_S: Final = 5.0
_BYTES_A_SECOND: Final = 50_000_000
_BASE_MB: Final = 110
_WORKER_MB: Final = 60
#: Sessions besides the workers: the planner's, which holds the snapshot, and one that watches for locks.
_OTHER_SESSIONS: Final = 2
_LAST_WAVE: Final = 1 << 31


class Past(Struct, frozen=True):
    """Figures of an export's last run that succeeded. ``seconds`` of a failed one is a floor.

    None: not known.
    """

    seconds: float | None = None
    rows: int | None = None
    peak_mb: int | None = None


class Need(Struct, frozen=True):
    """What running an export is expected to take. measured: by its own past, not guessed."""

    name: str
    seconds: float
    connections: int
    memory_mb: int
    heavy: bool
    wave: int | None = None
    measured: bool = False

    @property
    def order(self) -> tuple[int, float]:
        return (_LAST_WAVE if self.wave is None else self.wave, -self.seconds)


class Budget(Struct, frozen=True):
    """What all running exports may hold together. None: no limit."""

    connections: int | None = None
    memory_mb: int | None = None


@dataclass
class Packer:
    """Says what may begin beside what runs. An export that needs more than there is runs alone."""

    budget: Budget
    running: dict[str, Need] = field(default_factory=dict)

    def fits(self, need: Need) -> bool:
        others = [other for name, other in self.running.items() if name != need.name]
        if not others:
            return True
        if need.heavy and any(other.heavy for other in others):
            return False
        together = [need, *others]
        for limit, sum_of in (
            (self.budget.connections, sum(n.connections for n in together)),
            (self.budget.memory_mb, sum(n.memory_mb for n in together)),
        ):
            if limit is not None and sum_of > limit:
                return False
        return True

    def begin(self, need: Need) -> None:
        self.running[need.name] = need

    def end(self, name: str) -> None:
        self.running.pop(name, None)


def need_of(config: RivetConfig, export: ExportConfig, past: Past, size: int | None) -> Need:
    """size: bytes of the export's table, None for a query or where it is not known."""
    seconds = past.seconds
    if seconds is None:
        seconds = UNKNOWN_S if size is None else size / _BYTES_A_SECOND
    heavy = (past.rows or 0) >= HEAVY_ROWS if export.parallel_safe is None else not export.parallel_safe
    return Need(
        export.name,
        seconds,
        export.parallel + _OTHER_SESSIONS,
        past.peak_mb or _BASE_MB + _WORKER_MB * export.parallel,
        heavy,
        export.wave,
        past.seconds is not None,
    )


def budget_of(config: RivetConfig) -> Budget:
    return Budget(config.dagster.max_connections, config.dagster.max_memory_mb)


def in_order(needs: Iterable[Need]) -> list[Need]:
    """By wave (those without one last), then the longest first; equal ones stay as they come."""
    return sorted(needs, key=lambda need: need.order)


def needs(engine: Engine, names: Sequence[str], *, ask_source: bool = True) -> dict[str, Need]:
    """What each of ``names`` needs. Never fails for a state or source that does not answer: it guesses.

    ask_source: sizes of the tables that never ran, by one look into the catalog.
    """
    config = engine.config
    past: Mapping[str, Past] = {}
    with suppress(RivetError):  # the runs themselves will say it
        past = engine.state.pasts(names)
    exports = [config.export(name) for name in names]
    new = [e for e in exports if e.relation is not None and past.get(e.name, Past()).seconds is None]
    sizes: dict[str, int] = {}
    if ask_source and new:
        with suppress(RivetError):
            from rivet_dagster.engine.sources.postgres.sizes import table_sizes

            found = table_sizes(engine.source(new[0]), [e.relation for e in new if e.relation])
            sizes = {e.name: size for e, size in zip(new, found, strict=True) if size}
    return {e.name: need_of(config, e, past.get(e.name, Past()), sizes.get(e.name)) for e in exports}
