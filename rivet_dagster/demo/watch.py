"""How far the exports are, read from the engine's state while another process runs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rivet_dagster.engine.errors import RivetError
from rivet_dagster.engine.run.engine import Engine


@dataclass(frozen=True, slots=True)
class Standing:
    """Rows committed so far, exports that are finished, and whether anything has begun."""

    rows: int
    finished: int
    begun: bool


@dataclass(frozen=True, slots=True)
class Left:
    """What a killed run left behind of an export: units done, of how many."""

    run_id: str
    done: int
    total: int


class Watch:
    """Follows the runs that begin after it was made. ``rows``: how many each export is expected to have."""

    def __init__(self, engine: Engine, rows: Mapping[str, int]) -> None:
        self._state = engine.state
        self.rows = rows
        self._known = {name: self._latest(name) for name in rows}
        self.left = {name: left for name in rows if (left := self._left(name))}
        #: a run is still open, so one was killed, or goes on elsewhere
        self.interrupted = any(self._state.open_run(name) is not None for name in rows)
        self._finished: set[str] = set()

    @property
    def total(self) -> int:
        return sum(self.rows.values())

    def look(self) -> Standing:
        """Where the exports stand. A state that is busy at this moment counts as no news."""
        rows, begun = 0, False
        for name, expected in self.rows.items():
            if name not in self._finished and self._latest(name) != self._known[name]:
                self._finished.add(name)
            if name in self._finished:
                rows, begun = rows + expected, True
            elif (run := self._state.open_run(name)) is not None:
                done = [unit for unit in self._state.units(run.run_id) if unit.status == "completed"]
                rows += min(sum(unit.rows for unit in done), expected)
                left = self.left.get(name)
                begun = begun or left is None or left.run_id != run.run_id or len(done) > left.done
        return Standing(rows, len(self._finished), begun)

    def resumed(self, name: str) -> Left | None:
        """What the finished run of ``name`` found done by a killed one; None when it began anew."""
        left = self.left.get(name)
        return left if left is not None and left.run_id == self._latest(name) else None

    def _latest(self, name: str) -> str | None:
        run = self._state.latest_run(name)
        return None if run is None else run.run_id

    def _left(self, name: str) -> Left | None:
        run = self._state.open_run(name)
        if run is None:
            return None
        units = self._state.units(run.run_id)
        done = sum(unit.status == "completed" for unit in units)
        return Left(run.run_id, done, len(units)) if done else None


def look_calmly(watch: Watch, before: Standing) -> Standing:
    """``watch.look``, or ``before`` when the state cannot be read now: it is only a progress bar."""
    try:
        return watch.look()
    except RivetError:
        return before
