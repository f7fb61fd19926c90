"""Child processes that never outlive the process that started them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PATIENCE_S: Final = 20.0


def bound_to_parent(sig: signal.Signals) -> Callable[[], None]:
    """A ``preexec_fn``: the kernel sends the child ``sig`` when the *thread* that started it ends.

    It holds also when the parent is killed with SIGKILL, where no handler of the parent runs.
    """
    prctl = ctypes.CDLL(None).prctl  # resolved before the fork; the child only calls it
    parent = os.getpid()

    def hook() -> None:
        prctl(_PR_SET_PDEATHSIG, int(sig), 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the call
            os._exit(1)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a script's background job would hand on "ignore"

    return hook


@contextlib.contextmanager
def own_group(
    command: Sequence[str], *, folder: Path, log: Path, death: signal.Signals
) -> Iterator[subprocess.Popen[bytes]]:
    """``command`` in a process group of its own, its output in ``log``.

    When the block is left early the group is interrupted as by Ctrl-C, and killed if that does not
    end it. When this process is killed the child gets ``death``.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - a list of ours, no shell
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then passes it on once
            preexec_fn=bound_to_parent(death),  # noqa: PLW1509 - the hook only calls prctl and signal
        )
    try:
        yield process
    finally:
        try:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_PATIENCE_S)
        finally:  # also after a second Ctrl-C
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def is_alive(pid: int) -> bool:
    """Whether a process ``pid`` runs, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
