"""A real S3 server: SeaweedFS, one process from a wheel, which checks signatures and conditions."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest

from rivet_dagster.config.destination import DestinationConfig
from rivet_dagster.demo.process import bound_to_parent
from rivet_dagster.demo.server import free_port
from rivet_dagster.engine.destinations.bucket import UnexplainedError
from rivet_dagster.engine.destinations.s3 import S3Bucket
from rivet_dagster.engine.errors import RivetError
from tests.services.postgres import work_folder

_READY_S: Final = 40.0
#: What every server of the tests has.
BUCKET: Final = "exports"
KEY_ENV: Final = "S3_TEST_KEY"
SECRET_ENV: Final = "S3_TEST_SECRET"
#: Options of a server that is soon full: so many volumes, each closed by its first megabyte.
SMALL: Final = ("-volume.max=64", "-master.volumeSizeLimitMB=1")
_VOLUME: Final = 1_200_000
_FILLER: Final = "filler/"


@dataclass(frozen=True, slots=True)
class S3Server:
    """Where it listens, and the account that may do everything."""

    kind = "s3"
    secret_env = SECRET_ENV
    wrong_secret = "not-the-secret"

    port: int
    process: subprocess.Popen[bytes]
    master: int  # the port that takes orders for the whole server
    key: str = field(default_factory=lambda: f"AK{secrets.token_hex(8).upper()}")
    secret: str = field(default_factory=lambda: secrets.token_hex(20))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return {KEY_ENV: self.key, SECRET_ENV: self.secret}

    def destination(self, bucket: str, prefix: str = "", **keys: Any) -> dict[str, Any]:
        """A ``destination:`` of rivet.yaml."""
        named = {"access_key_env": KEY_ENV, "secret_key_env": SECRET_ENV}
        there = {"type": "s3", "bucket": bucket, "endpoint": self.url, **named, **keys}
        return {**there, "prefix": prefix} if prefix else there

    def bucket(self, name: str) -> S3Bucket:
        """A client of ours."""
        with self.named():
            return S3Bucket(DestinationConfig(**self.destination(name)))

    def fill(self, client: S3Bucket) -> None:
        """Until it refuses. For servers of ``SMALL``."""
        data = bytes(_VOLUME)
        md5 = hashlib.md5(data).digest()
        with contextlib.suppress(UnexplainedError):
            while True:
                client.put(f"{_FILLER}{secrets.token_hex(8)}", data, md5, None)

    def free(self, client: S3Bucket) -> None:
        """Remove what fills it, until it has the room back."""
        fillers = list(client.list(_FILLER))
        for filler in fillers:
            client.delete(filler.key)
        vacuum = f"http://127.0.0.1:{self.master}/vol/vacuum?garbageThreshold=0.0001"
        deadline = time.monotonic() + _READY_S
        while True:  # what is removed is garbage only some moments later
            with urllib.request.urlopen(vacuum, timeout=30) as answer:
                layouts = json.load(answer)["Topology"]["Layouts"]
            if sum(len(layout["writables"] or ()) for layout in layouts) >= len(fillers):
                return
            assert time.monotonic() < deadline, layouts
            time.sleep(0.1)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """The secrets are in this process's environment during the block."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                patch.setenv(name, value)
            yield


@contextlib.contextmanager
def seaweed(*, options: tuple[str, ...] = ()) -> Iterator[S3Server]:
    """A running server, gone with its files at the end. Call it from the main thread."""
    ports = [free_port() for _ in range(8)]
    with work_folder() as work:
        (work / "data").mkdir()
        server = S3Server(ports[0], None, ports[1])  # type: ignore[arg-type]
        account = {
            "name": "all",
            "credentials": [{"accessKey": server.key, "secretKey": server.secret}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (work / "s3.json").write_text(json.dumps({"identities": [account]}))
        flags = {
            "dir": work / "data",
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "master.port": ports[1],
            "master.port.grpc": ports[2],
            "volume.port": ports[3],
            "volume.port.grpc": ports[4],
            "filer.port": ports[5],
            "filer.port.grpc": ports[6],
            "s3.port": ports[0],
            "s3.port.grpc": ports[7],
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.config": work / "s3.json",
            "volume.max": 0,
            "master.volumeSizeLimitMB": 64,
            "master.volumePreallocate": "false",
            "master.telemetry": "false",
        }
        with (work / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    str(Path(sys.executable).parent / "weed"),
                    "-logtostderr=true",
                    "server",
                    "-filer",
                    "-s3",
                    *(f"-{name}={value}" for name, value in flags.items()),
                    *options,
                ],
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=bound_to_parent(signal.SIGKILL),  # noqa: PLW1509 - the hook only calls prctl
            )
        server = replace(server, process=process)
        try:
            _await(server, work / "log")
            yield server
        finally:
            process.kill()  # it takes 15 s to end by itself
            process.wait()


def _await(server: S3Server, log: Path) -> None:
    """Until an object can be written: the port opens before there is room for one."""
    deadline = time.monotonic() + _READY_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), 1):
            break
        _check(server, log, deadline)
    with contextlib.closing(server.bucket(BUCKET)) as made:
        while True:
            try:
                made.put("ready", b"", hashlib.md5(b"").digest(), None)
            except RivetError:
                _check(server, log, deadline)
            else:
                return


def _check(server: S3Server, log: Path, deadline: float) -> None:
    if server.process.poll() is not None or time.monotonic() > deadline:
        raise RuntimeError(f"seaweedfs did not start: {log.read_text()[-3000:]}")
    time.sleep(0.05)
