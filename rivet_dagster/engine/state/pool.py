"""A small pool of database connections: the one used last is lent first, so that few are kept busy."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import Struct

KEPT: Final = 4  # idle connections that stay open
MOST: Final = 16  # open at once, lent ones included
WAIT_S: Final = 10.0


class PoolExhaustedError(Exception):
    """Every connection has been in use for ``WAIT_S``."""


class _Entry(Struct, frozen=True):
    raw: Any
    opened_at: float
    generation: int


class Pool:
    """Threads share it; a forked child opens connections of its own.

    connect: opens one. clean: undoes what a block left open; False when the connection is of no
    more use. max_age_s: older ones are replaced (None: none is).
    """

    def __init__(
        self, connect: Callable[[], Any], clean: Callable[[Any], bool], *, max_age_s: float | None = None
    ) -> None:
        self._connect = connect
        self._clean = clean
        self._max_age_s = max_age_s
        self._kept = KEPT
        self._generation = 0
        self._inherited: list[_Entry] = []
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._returned = threading.Condition()
        self._idle: list[_Entry] = []
        self._open = 0

    @contextlib.contextmanager
    def lend(self) -> Iterator[Any]:
        """A connection for the block. Raises PoolExhaustedError and whatever ``connect`` raises."""
        entry = self._take()
        try:
            yield entry.raw
        finally:
            self._give_back(entry)

    def close(self) -> None:
        """Close what is idle; what is lent, or is lent from now on, is closed when it comes back."""
        self._kept = 0
        self._renew()

    def _renew(self) -> None:
        """Lend no connection again that is open now."""
        self._leave_to_parent()
        with self._returned:
            self._generation += 1
            idle, self._idle = self._idle, []
            self._open -= len(idle)
            self._returned.notify_all()
        for entry in idle:
            entry.raw.close()

    def _take(self) -> _Entry:
        self._leave_to_parent()
        deadline = time.monotonic() + WAIT_S
        with self._returned:
            while not self._idle and self._open >= MOST:
                if not self._returned.wait(deadline - time.monotonic()):
                    raise PoolExhaustedError
            entry = self._idle.pop() if self._idle else None
            self._open += entry is None
            generation = self._generation
        try:
            if entry is not None and self._max_age_s is not None:
                if time.monotonic() - entry.opened_at <= self._max_age_s:
                    return entry
                entry.raw.close()
                entry = None
            return entry or _Entry(self._connect(), time.monotonic(), generation)
        except BaseException:
            self._forget_one()
            raise

    def _leave_to_parent(self) -> None:
        """In a forked child: closing, or forgetting, what the parent still uses would end it there."""
        if self._pid != os.getpid():
            self._inherited += self._idle
            self._start()

    def _forget_one(self) -> None:
        with self._returned:
            self._open -= 1
            self._returned.notify()

    def _give_back(self, entry: _Entry) -> None:
        usable = False
        try:
            usable = self._clean(entry.raw)
        finally:
            if not usable:  # the server may have been restarted: the others are no better
                self._renew()
            self._shelve(entry, usable=usable)

    def _shelve(self, entry: _Entry, *, usable: bool) -> None:
        with self._returned:
            if usable and entry.generation == self._generation and len(self._idle) < self._kept:
                self._idle.append(entry)
                self._returned.notify()
                return
        entry.raw.close()
        self._forget_one()
