"""The allocators of a run."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Final

import pyarrow as pa

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_MIB: Final = 1 << 20


@functools.cache
def use_lean_pool() -> None:
    """Use malloc for Arrow's buffers, and let it keep what one batch frees for the next. Once a process.

    Buffers here are few, large and short-lived: mimalloc, Arrow's default, peaks a third higher on wide
    rows and spends more system time (benchmarks/). Buffers past 8 MiB go back to the system at once: kept,
    they leave holes that the next ones do not fit. ``rivet_dagster`` names the pool in the environment;
    this serves processes where pyarrow was imported before.
    """
    if os.environ.get("ARROW_DEFAULT_MEMORY_POOL", "system") != "system":
        return
    pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc alone has it
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 8 * _MIB)
        mallopt(_M_TRIM_THRESHOLD, 64 * _MIB)
        mallopt(_M_ARENA_MAX, 2)


def resident_bytes() -> int:
    """Memory of this process that is in RAM; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
