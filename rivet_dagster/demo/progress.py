"""One progress bar for the whole command; plain lines where there is no terminal."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType
from typing import Final, TextIO

_WIDTH: Final = 28
_FULL: Final = "█"
_EMPTY: Final = "░"


class Progress:
    """A bar over ``fraction`` 0..1 with a label. It never moves backwards.

    On a terminal one line is redrawn in place; elsewhere each new ``step`` prints one line.
    """

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._started = time.monotonic()
        self._fraction = 0.0
        self._step = ""
        self._drawn = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def update(self, fraction: float, step: str, detail: str = "") -> None:
        """Show ``fraction`` of the work as done. ``step`` says what goes on; ``detail`` is for bars."""
        self._fraction = max(self._fraction, min(fraction, 1.0))
        if self._live:
            self._draw(step, detail)
        elif step != self._step:
            print(f"[{self.seconds:4.0f} s] {step}", file=self._stream, flush=True)
        self._step = step

    def close(self) -> None:
        """Take the bar away, so that what is printed next stands on a clean line."""
        if self._drawn:
            print("\r\x1b[K", end="", file=self._stream, flush=True)
        self._drawn = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _draw(self, step: str, detail: str) -> None:
        done = round(self._fraction * _WIDTH)
        bar = _FULL * done + _EMPTY * (_WIDTH - done)
        line = f"{bar} {self._fraction:4.0%}  {step}  {detail}  {self.seconds:.0f} s"
        columns = shutil.get_terminal_size().columns
        print(f"\r\x1b[K{line[: columns - 1]}", end="", file=self._stream, flush=True)
        self._drawn = True
