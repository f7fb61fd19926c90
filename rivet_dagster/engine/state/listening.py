"""A connection that gives up a server which keeps the line open and says nothing: stopped, or behind a proxy.

TCP sees a living peer there, so none of libpq's timeouts applies.
"""

from __future__ import annotations

import time
from typing import Any, Final

import psycopg
from psycopg.abc import RV, PQGen

#: Longer than any lock is waited for, after which the server speaks up.
LEAST_S: Final = 15.0


class ListeningConnection(psycopg.Connection[Any]):
    """silence_s: how long nothing may come or go while an answer is awaited."""

    silence_s = LEAST_S

    def wait(self, gen: PQGen[RV], *args: Any, **how: Any) -> RV:
        try:
            return super().wait(_listened(gen, self.silence_s), *args, **how)
        except _SilenceError:
            self.close()  # a rollback would wait for an answer too
            raise


class _SilenceError(psycopg.OperationalError):
    """The server did not answer."""


def _listened(gen: PQGen[RV], seconds: float) -> PQGen[RV]:
    heard = time.monotonic()
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if ready:
                heard = time.monotonic()
            elif time.monotonic() - heard > seconds:
                raise _SilenceError
            wanted = gen.send(ready)
    except StopIteration as end:
        result: RV = end.value
        return result
