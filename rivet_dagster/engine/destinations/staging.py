"""Where parts of a remote destination are written before they are sent: folders of this process.

Each is locked for as long as its process lives, so that what a killed one left is found and removed.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import threading
from pathlib import Path
from typing import IO, Final

from rivet_dagster.engine.destinations.local import destination_faults

STAGING_ENV: Final = "RIVET_STAGING_DIR"
_PREFIX: Final = "rivet-staging-"


class _Folder:
    """The process's own folder, made when it is first needed; another one after a fork."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._path: Path | None = None
        self._lock: IO[str] | None = None
        self._pid = 0

    def path(self) -> Path:
        with self._guard:
            if self._path is None or self._pid != os.getpid():
                base = Path(os.environ.get(STAGING_ENV) or tempfile.gettempdir())
                with destination_faults(base):
                    base.mkdir(parents=True, exist_ok=True)
                    _sweep(base)
                    self._path, self._lock = _make(base)
                atexit.register(self.remove)
                self._pid = os.getpid()
            return self._path

    def remove(self) -> None:
        """At the end of the process that made it; one that is killed leaves it to be swept."""
        with self._guard:
            if self._path is not None and self._pid == os.getpid():
                shutil.rmtree(self._path, ignore_errors=True)
                if self._lock is not None:
                    self._lock.close()
            self._path = self._lock = None


def _make(base: Path) -> tuple[Path, IO[str]]:
    """A new folder and its lock; again when another process swept it before it was locked."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        lock = (path / "lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (path / "lock").exists():
            return path, lock
        lock.close()


def _sweep(base: Path) -> None:
    """Remove the folders whose processes are gone. One that is being made has no lock file yet."""
    for folder in base.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), (folder / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


FOLDER: Final = _Folder()


def staging_path(name: str) -> Path:
    """A new path in this process's folder for a file that becomes ``name``."""
    return FOLDER.path() / f"{Path(name).name}.{secrets.token_hex(4)}"


def discard(staged: Path) -> None:
    """Remove a staged file; absent is fine."""
    with contextlib.suppress(OSError):
        staged.unlink()
