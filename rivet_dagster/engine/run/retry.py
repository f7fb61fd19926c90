"""How long to wait before the next attempt."""

from __future__ import annotations

import random

from rivet_dagster.engine.errors import RivetError

CAP_S = 60.0
_MAX_EXPONENT = 16  # 2**16 times any base is past the cap; keeps the power bounded


def backoff_s(attempt: int, base_ms: int, error: RivetError | None = None, *, jitter: bool = True) -> float:
    """Seconds to wait after failed ``attempt`` (from 1): base * 2^(attempt-1), capped at 60 s.

    Jitter takes up to half of it away, so that workers that failed together do not return together.
    The error's own ``retry_after_s`` comes on top.
    """
    exponent = min(max(attempt, 1) - 1, _MAX_EXPONENT)
    delay: float = min(CAP_S, base_ms / 1000 * 2.0**exponent)
    if jitter:
        delay *= random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
    return delay + (error.retry_after_s if error else 0.0)
