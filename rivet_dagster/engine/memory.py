"""The allocators of a run."""

from __future__ import annotations

import ctypes
import os
from typing import Final

import pyarrow as pa

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_MIB: Final = 1 << 20


def use_lean_pool() -> None:
    """Use malloc for Arrow's buffers, and let it keep what one batch frees for the next.

    Buffers here are few, large and short-lived: mimalloc, Arrow's default, peaks a third higher on wide
    rows and spends twice the system time (benchmarks/). ``rivet_dagster`` names the pool in the
    environment; this serves processes where pyarrow was imported before.
    """
    if os.environ.get("ARROW_DEFAULT_MEMORY_POOL", "system") != "system":
        return
    pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc alone has it
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 * _MIB)
        mallopt(_M_TRIM_THRESHOLD, 128 * _MIB)
        mallopt(_M_ARENA_MAX, 2)
