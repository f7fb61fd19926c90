"""When a worker may begin a unit, and when one has to stop: kindness to the source and to this machine.

One thread looks at the source beside the workers. A read that keeps somebody from altering its table is
ended and nothing is begun until the alteration is through; with ``tuning.adaptive`` the number of workers
follows how busy others are. Whoever cannot be seen slows nothing down.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import Struct

from rivet_dagster.engine.errors import RivetError
from rivet_dagster.engine.memory import resident_bytes
from rivet_dagster.engine.sources.base import Sighting, SourceWatch, UnitReader
from rivet_dagster.engine.state.models import JournalEvent

#: Seconds between two looks; nobody waits longer for us than that. A run that is over by then never looks.
INTERVAL_S = 1.0
#: How long nothing is begun because of an alteration that does not end, if no lock_timeout says it.
PATIENCE_S = 60.0
#: Seconds that a worker alone pauses when the process takes too much memory.
MEMORY_PAUSE_S = 2.0

_POLL_S: Final = 0.1
_BLIND_LOOKS: Final = 3
_KEPT: Final = 500
_BLIND_INTERVAL_S: Final = 10.0


@dataclass(slots=True)
class Governor:
    """Workers that may run at once: one less for each busy session of others, within the bounds.

    What two looks in a row show makes it fall, all at once. It rises by one a look, to what the
    busiest of the last three allows.
    """

    lowest: int
    highest: int
    limit: int = field(init=False)
    _loads: deque[int] = field(init=False, default_factory=lambda: deque(maxlen=3))

    def __post_init__(self) -> None:
        self.limit = self.highest

    def observe(self, load: int) -> int:
        """The limit after a look that showed ``load`` busy sessions."""
        self._loads.append(load)
        lasting = min(list(self._loads)[-2:]) if len(self._loads) > 1 else 0
        allowed = max(self.lowest, self.highest - lasting)
        if self.limit > allowed:
            self.limit = allowed
        elif len(self._loads) == 3 and self.limit < max(self.lowest, self.highest - max(self._loads)):
            self.limit += 1
        return self.limit

    def blind(self) -> int:
        """The limit after a look that showed nothing: rising, for a source that is not seen is not slow."""
        self._loads.clear()
        self.limit = min(self.highest, self.limit + 1)
        return self.limit


class PaceRules(Struct, frozen=True):
    """parallel: workers at most. min_parallel: at least, None when the number is fixed.
    memory_bytes: of the process, above which no unit begins beside another; 0: any.
    patience_s: see ``PATIENCE_S``; 0: that."""

    parallel: int
    min_parallel: int | None = None
    memory_bytes: int = 0
    patience_s: float = 0.0


class Pacer:
    """Shared by the workers of one run. ``say`` gets a line for each decision."""

    def __init__(
        self, rules: PaceRules, new_watch: Callable[[], SourceWatch], say: Callable[[str], object]
    ) -> None:
        self._rules = rules
        self._new_watch = new_watch
        self._say = say
        self._ended = threading.Event()
        self._change = threading.Condition()
        self._active = 0
        self._limit = rules.parallel
        lowest = rules.min_parallel
        self._governor = None if lowest is None else Governor(min(lowest, rules.parallel), rules.parallel)
        self._held_since: float | None = None
        self._readers: list[UnitReader] = []
        self._thread: threading.Thread | None = None
        self._blind = 0
        self._crowded = False
        self.yields = 0
        self._decisions: list[JournalEvent] = []
        self._lowest = rules.parallel
        self._changes = 0

    @property
    def decisions(self) -> tuple[JournalEvent, ...]:
        """The first ``_KEPT`` changes of the number of workers, for the run's journal."""
        return tuple(self._decisions)

    def figures(self) -> dict[str, Any]:
        """What was decided, for the run's record; empty when nothing was."""
        found: dict[str, Any] = {"yields": self.yields} if self.yields else {}
        if self._changes:
            found |= {"parallel_changes": self._changes, "parallel_lowest": self._lowest}
        return found

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Look at the source while the block lasts."""
        self._thread = threading.Thread(target=self._watch, name="rivet-watch", daemon=True)
        self._thread.start()
        try:
            yield
        finally:
            self.end()
            self._thread.join(timeout=10)  # a server that does not answer must not hold up the run

    def end(self) -> None:
        """Let nobody wait any longer."""
        self._ended.set()
        with self._change:
            self._change.notify_all()

    def add(self, reader: UnitReader) -> None:
        with self._change:
            self._readers.append(reader)

    @contextlib.contextmanager
    def turn(self) -> Iterator[bool]:
        """Wait until one more unit may be worked on. False: the run has ended meanwhile."""
        came = time.monotonic()
        with self._change:
            while not self._ended.is_set() and not self._may_begin(came):
                self._change.wait(_POLL_S)
            self._active += 1
        try:
            yield not self._ended.is_set()
        finally:
            with self._change:
                self._active -= 1
                self._change.notify_all()

    def _held(self) -> bool:
        """Somebody alters what we read, and not for longer than our patience."""
        patience = self._rules.patience_s or PATIENCE_S
        return self._held_since is not None and time.monotonic() - self._held_since < patience

    def _may_begin(self, came: float) -> bool:
        if self._held() or self._active >= self._limit:
            return False
        limit = self._rules.memory_bytes
        if not limit or resident_bytes() <= limit:
            return True
        if not self._crowded:
            self._crowded = True
            self._say(f"the process takes more than {limit >> 20} MiB: no unit begins beside another")
        # nothing of ours will give memory back when nobody else works: then it goes on alone
        return self._active == 0 and time.monotonic() - came > MEMORY_PAUSE_S

    def _watch(self) -> None:
        watch = self._new_watch()
        pause = 2 * INTERVAL_S  # a run that is shorter needs no connection for it
        try:
            while not self._ended.wait(pause):
                self._look(watch)
                pause = INTERVAL_S if self._blind < _BLIND_LOOKS else _BLIND_INTERVAL_S
        finally:
            watch.close()

    def _look(self, watch: SourceWatch) -> None:
        with self._change:
            readers = {backend: r for r in self._readers if (backend := r.backend) is not None}
        try:
            seen = watch.look(readers)
        except RivetError as error:
            self._unseen(error)
            return
        self._blind = 0
        self._make_way(seen, readers)
        if self._governor is not None and seen.load is not None:
            self._set_limit(self._governor.observe(seen.load), f"{seen.load} sessions of others are busy")

    def _unseen(self, error: RivetError) -> None:
        self._blind += 1
        self._held_since = None
        if self._blind == _BLIND_LOOKS:
            self._say(f"the source cannot be watched ({error.code}): no read gives way to others")
        if self._blind >= _BLIND_LOOKS and self._governor is not None:
            self._set_limit(self._governor.blind(), "the source cannot be watched")

    def _make_way(self, seen: Sighting, readers: dict[int, UnitReader]) -> None:
        if not seen.altering:
            self._held_since = None
            return
        if self._held_since is None:
            self._held_since = time.monotonic()
        if not self._held():
            return
        for backend in seen.in_the_way:
            self.yields += readers[backend].give_way(backend)

    def _set_limit(self, limit: int, why: str) -> None:
        with self._change:
            before, self._limit = self._limit, limit
            self._change.notify_all()
        if limit != before:
            self._changes += 1
            self._lowest = min(self._lowest, limit)
            if len(self._decisions) < _KEPT:
                detail = {"workers": limit, "before": before, "of": self._rules.parallel, "why": why}
                self._decisions.append(JournalEvent("ParallelismAdjusted", detail))
            self._say(f"workers: {limit} of {self._rules.parallel} ({why})")
