"""Memory of a run: Arrow's allocator, and what the process takes."""

from __future__ import annotations

import os

import pyarrow as pa


def use_lean_pool() -> None:
    """Use the pool that gives freed buffers back soonest, unless the environment names one.

    Buffers here are few, large and short-lived. With mimalloc, Arrow's default, a run of wide rows peaks a
    third higher; malloc costs a little less CPU, but its holes let a long run grow (benchmarks/).
    """
    if "ARROW_DEFAULT_MEMORY_POOL" in os.environ:
        return
    if "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())


def resident_bytes() -> int:
    """Memory of this process that is in RAM; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
