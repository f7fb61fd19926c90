"""Memory of a run: Arrow's allocator, and what the process takes."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Final

#: Where Arrow looks for the name of the pool that its own code uses, once, when it is loaded.
_POOL_ENV: Final = "ARROW_DEFAULT_MEMORY_POOL"
_LEAN: Final = "jemalloc"


def choose_pool() -> None:
    """Before pyarrow is imported: let Arrow's own code use the lean pool too, Parquet's writer above all.

    ``pyarrow.set_memory_pool`` reaches only what Python allocates. A choice in the environment stands.
    """
    if sys.platform == "linux" and "pyarrow" not in sys.modules:
        os.environ.setdefault(_POOL_ENV, _LEAN)


def prepare_memory() -> None:
    """Before a run: the lean pool, and peaks that count from now, because a process may run many exports."""
    use_lean_pool()
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def use_lean_pool() -> None:
    """Use the pool that gives freed buffers back soonest, unless the environment names one.

    Buffers here are few, large and short-lived. With mimalloc, Arrow's default, a run of wide rows peaks a
    third higher and takes 4 % more CPU, for fresh pages; malloc's holes let a long run grow (benchmarks/).
    """
    if _POOL_ENV in os.environ:
        return
    import pyarrow as pa

    if _LEAN in pa.supported_memory_backends():
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
