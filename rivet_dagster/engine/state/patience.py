"""A state that is away is asked again, for as long as a lease would live: the one place that waits for it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec, TypeVar

from rivet_dagster.engine.errors import TransientError

_T = TypeVar("_T")
_P = ParamSpec("_P")
_Asked = TypeVar("_Asked", bound="Asked")

#: Pauses between two attempts.
_AWAY_S: Final = 0.1
_AWAY_MOST_S: Final = 2.0


def _go_on() -> None: ...


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


class Patience:
    """Asks again for ``seconds`` after the first failure.

    check: raises when no answer is of use any more. pause: waits so many seconds; True ends it too.
    """

    def __init__(
        self,
        seconds: float,
        check: Callable[[], None] = _go_on,
        pause: Callable[[float], bool] = _sleep,
    ) -> None:
        self._seconds = seconds
        self._check = check
        self._pause = pause

    def ask(self, question: Callable[[], _T]) -> _T:
        """``question``, which may be asked twice though the first one was heard: its answer may be lost."""
        pause = _AWAY_S
        until: float | None = None
        self._check()
        while True:
            try:
                return question()
            except TransientError as error:
                if error.code != "RIVET_STATE_UNAVAILABLE":
                    raise
                now = time.monotonic()
                until = now + self._seconds if until is None else until
                if now >= until:
                    raise
                self._check()
                if self._pause(min(pause, until - now)):
                    raise
            pause = min(_AWAY_MOST_S, pause * 2)


#: Whoever answers a person, or has a loop of its own, hears at once that the state is away.
AT_ONCE: Final = Patience(0)


class Asked:
    """What ``repeatable`` methods belong to."""

    patience = AT_ONCE


def repeatable(
    method: Callable[Concatenate[_Asked, _P], _T],
) -> Callable[Concatenate[_Asked, _P], _T]:
    """Marks a method that does no more when it is called again because its answer was lost.

    It reads, or sets what it sets, or looks whether the call before came through. It is asked with the
    object's patience.
    """

    @functools.wraps(method)
    def asked(self: _Asked, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self.patience.ask(lambda: method(self, *args, **kwargs))

    return asked
