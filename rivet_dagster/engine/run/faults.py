"""Named points between two durable steps, where the crash tests kill the process.

``RIVET_TEST_CRASH_AT=<point>[:N]`` kills it with SIGKILL at the N-th time the point is reached;
``RIVET_TEST_PAUSE_AT=<point>[:N]`` stops it with SIGSTOP. Unset, a point costs one dict look-up.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from typing import Final

#: In the order of a run. ``*_staged``: the lease was looked at, the rename comes next.
POINTS: Final = (
    "after_lease",
    "after_plan",
    "after_marker_removed",
    "after_source_read",
    "after_part_staged",
    "after_file_write",
    "after_unit_commit",
    "before_finalize",
    "after_manifest_copy_staged",
    "after_manifest_copy",
    "after_manifest_staged",
    "after_manifest_update",
    "after_quarantine",
    "after_success_staged",
    "after_success",
    "after_cursor_commit",
)

#: The threads beside come to where they wait: one stopped in a transaction of SQLite keeps everybody out.
_PAUSE_S: Final = 0.2

_hits: Counter[str] = Counter()
_lock = threading.Lock()


def _matches(variable: str, point: str, hit: int) -> bool:
    wanted, _, nth = os.environ.get(variable, "").partition(":")
    return wanted == point and hit == int(nth or 1)


def fault_point(point: str) -> None:
    """Die or stop here when the environment says so."""
    if "RIVET_TEST_CRASH_AT" not in os.environ and "RIVET_TEST_PAUSE_AT" not in os.environ:
        return
    if point not in POINTS:
        raise KeyError(point)
    with _lock:
        _hits[point] += 1
        hit = _hits[point]
    if _matches("RIVET_TEST_CRASH_AT", point, hit):
        os.kill(os.getpid(), signal.SIGKILL)
    if _matches("RIVET_TEST_PAUSE_AT", point, hit):
        time.sleep(_PAUSE_S)
        # sent to the process, another thread may take it, and this one run on for a while
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
