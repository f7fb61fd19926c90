"""A real Redis for Celery: Debian's, installed or unpacked by ``make setup``."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rivet_dagster.demo.install import ServerNotInstalledError
from rivet_dagster.demo.process import bound_to_parent
from rivet_dagster.demo.server import free_port
from tests.services.postgres import work_folder

_INSTALLED: Final = Path("/usr/bin/redis-server")
_UNPACKED: Final = Path(sys.prefix) / "deb"
_READY_S: Final = 10.0


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """The URL of a server that keeps nothing. Raises ``ServerNotInstalledError``."""
    program, libraries = _INSTALLED, ""
    if not program.exists():
        program = _UNPACKED / "usr/bin/redis-server"
        libraries = str(next(_UNPACKED.glob("usr/lib/*-linux-gnu"), ""))
    if not program.exists():
        raise ServerNotInstalledError("there is no redis-server here")
    port = free_port()
    with work_folder() as work:
        process = subprocess.Popen(
            [str(program), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(work)],
            env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": libraries},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            preexec_fn=bound_to_parent(signal.SIGKILL),  # noqa: PLW1509 - the hook only calls prctl
        )
        try:
            assert process.stdout is not None
            deadline = time.monotonic() + _READY_S
            for line in process.stdout:
                if b"Ready to accept connections" in line or time.monotonic() > deadline:
                    break
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()
            process.communicate()
