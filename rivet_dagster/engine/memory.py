"""Memory of a run: Arrow's allocator, and what the process takes."""

from __future__ import annotations

import contextlib
import os

import pyarrow as pa


def prepare_memory() -> None:
    """Before a run: the lean pool, and peaks that count from now, because a process may run many exports."""
    use_lean_pool()
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


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


def peak_bytes() -> int | None:
    """The most memory in RAM since ``prepare_memory``; None where the system does not say."""
    try:
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
