"""How far a run is: a bar on a terminal, a line now and then where there is none."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

import click

_LINE_EVERY_S: Final = 10.0
#: Empties the line that a terminal's cursor is in.
CLEAR: Final = "\r\033[K"


class Progress:
    """Told of each finished unit, it shows units and rows on stderr. ``quiet`` shows nothing.

    clock: seconds, monotonic.
    """

    def __init__(
        self, name: str, units: int, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name, self._units, self._quiet, self._clock = name, units, quiet, clock
        self._done = self._rows = 0
        self._told_at = clock()
        self._bar: Any = None
        if not quiet and sys.stderr.isatty() and units > 1:
            self._bar = click.progressbar(
                length=units, label=name, file=sys.stderr, show_pos=True, item_show_func=self._shown
            )

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.__enter__()
            self._bar.render_progress()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.__exit__(kind, error, trace)

    def unit(self, rows: int) -> None:
        """One more unit is done."""
        self._done += 1
        self._rows += rows
        if self._bar is not None:
            self._bar.update(1, rows)
        elif not self._quiet and self._done < self._units and self._clock() - self._told_at >= _LINE_EVERY_S:
            self._told_at = self._clock()
            click.echo(
                f"{self._name}: {self._done} of {self._units} units, {self._rows:,} rows so far", err=True
            )

    def say(self, text: str) -> None:
        """A line between; it does not tear the bar."""
        click.echo(f"{CLEAR if self._bar is not None else ''}{self._name}: {text}", err=True)
        if self._bar is not None:
            self._bar.render_progress()

    def _shown(self, _: Any) -> str:
        return f"{self._rows:,} rows"
