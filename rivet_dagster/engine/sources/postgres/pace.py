"""A time limit that does not count the pauses of the reader."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self


class Deadline:
    """Calls ``end`` once, from a thread of its own, when the block has lasted ``seconds``, pauses aside.

    The server counts them: of a statement that waits for us it cannot tell why. seconds 0: never.
    """

    def __init__(self, seconds: float, end: Callable[[], object]) -> None:
        self._left = seconds
        self._end = end
        self._change = threading.Condition()
        self._since: float | None = None  # when the time began to run; None: it does not
        self._thread = threading.Thread(target=self._watch, name="rivet-deadline", daemon=True)
        self._over = not seconds

    def __enter__(self) -> Self:
        self._since = time.monotonic()
        if not self._over:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._change:
            self._over = True
            self._change.notify()
        if self._thread.ident is not None:
            self._thread.join()  # so that ``end`` never meets what comes after the block

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        with self._change:
            self._left -= time.monotonic() - (self._since or 0.0)
            self._since = None
            self._change.notify()
        try:
            yield
        finally:
            with self._change:
                self._since = time.monotonic()
                self._change.notify()

    def _watch(self) -> None:
        with self._change:
            while not self._over:
                if self._since is None:
                    self._change.wait()
                    continue
                left = self._left - (time.monotonic() - self._since)
                if left <= 0:
                    break
                self._change.wait(left)
            else:
                return
        self._end()
