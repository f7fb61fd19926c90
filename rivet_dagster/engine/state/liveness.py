"""Is the process that took a lease still alive? Answered only for processes that we can see."""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path

from msgspec import Struct

_PROC = Path("/proc")


class ProcessIdentity(Struct, frozen=True):
    """A process, told apart from every other: pids and host names are reused, start times are not.

    boot_id: boot of the kernel and pid namespace, empty where the system does not tell. pid_start:
    clock ticks after boot, 0 if unknown.
    """

    host: str
    boot_id: str
    pid: int
    pid_start: int

    def is_dead(self) -> bool:
        """True only when it is certain: same boot, same pid namespace, and the process is gone."""
        if not self.boot_id or self.boot_id != _boot_id():
            return False
        return _start_time(self.pid) != self.pid_start


def current_process() -> ProcessIdentity:
    """This process. Read anew at each call, since a fork changes it."""
    pid = os.getpid()
    start = _start_time(pid)
    return ProcessIdentity(socket.gethostname(), _boot_id() if start else "", pid, start or 0)


@functools.cache
def _boot_id() -> str:
    # containers share the kernel's boot id, and each counts pids of its own
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def _start_time(pid: int) -> int | None:
    """Clock ticks between boot and the start of ``pid``; None when it is gone or a zombie."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the command name may hold spaces and parentheses
    return None if fields[0] in {"Z", "X"} else int(fields[19])
