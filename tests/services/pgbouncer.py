"""A real PgBouncer in front of a test's server: Debian's, installed or unpacked by ``make setup``."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from rivet_dagster.demo.install import ServerNotInstalledError, server_uid
from rivet_dagster.demo.process import bound_to_parent
from rivet_dagster.demo.server import free_port, give
from tests.services.postgres import TestDatabase, work_folder

_INSTALLED: Final = Path("/usr/sbin/pgbouncer")
_UNPACKED: Final = Path(sys.prefix) / "deb"
_READY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Pooler:
    """Where clients connect; the server's superuser and password are its own."""

    db: TestDatabase
    port: int
    log: Path

    @property
    def dsn(self) -> str:
        return f"{self.db.dsn} port={self.port}"

    @property
    def url(self) -> str:
        server = self.db.server
        return (
            f"postgresql://{server.superuser}:{quote(server.password)}@127.0.0.1:{self.port}/{self.db.name}"
        )


@contextlib.contextmanager
def pgbouncer(
    db: TestDatabase, *, mode: str = "transaction", pool_size: int = 2, wait_s: int = 30
) -> Iterator[Pooler]:
    """A pooler over ``db``; ``wait_s``: how long a client waits for one of ``pool_size`` connections.

    Raises ``ServerNotInstalledError``.
    """
    with work_folder() as work:
        program, libraries = _program(work)
        pooler = Pooler(db, free_port(), work / "pgbouncer.log")
        server = db.server
        files = {
            "users.txt": f'"{server.superuser}" "{server.password}"\n',
            "pgbouncer.ini": f"""[databases]
* = host=127.0.0.1 port={server.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {pooler.port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {work}/users.txt
pool_mode = {mode}
default_pool_size = {pool_size}
query_wait_timeout = {wait_s}
logfile = {pooler.log}
""",
        }
        for name, text in files.items():
            (work / name).write_text(text)
            give(work / name, 0o600)
        give(work, 0o700)
        uid = server_uid()
        process = subprocess.Popen(
            [str(program), "-q", str(work / "pgbouncer.ini")],
            cwd=work,
            env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(libraries)},
            stdin=subprocess.DEVNULL,
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
            preexec_fn=bound_to_parent(signal.SIGKILL),  # noqa: PLW1509 - the hook only calls prctl
        )
        try:
            _await(process, pooler)
            yield pooler
        finally:
            process.kill()
            process.wait()


def _program(work: Path) -> tuple[Path, Path]:
    """The program and the folder of its libraries; unpacked ones where the server's account reaches them."""
    if _INSTALLED.exists():
        return _INSTALLED, work
    if not (_UNPACKED / "usr/sbin/pgbouncer").exists():
        raise ServerNotInstalledError("there is no pgbouncer")
    bin_, lib = work / "bin", work / "lib"
    bin_.mkdir(mode=0o755)
    lib.mkdir(mode=0o755)
    shutil.copy(_UNPACKED / "usr/sbin/pgbouncer", bin_)
    for library in (_UNPACKED / "usr/lib").rglob("*.so.*"):
        shutil.copy(library, lib / library.name)
    return bin_ / "pgbouncer", lib


def _await(process: subprocess.Popen[bytes], pooler: Pooler) -> None:
    deadline = time.monotonic() + _READY_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", pooler.port), 1):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            said = pooler.log.read_text() if pooler.log.exists() else ""
            raise RuntimeError(f"pgbouncer did not start: {said[-2000:]}")
        time.sleep(0.02)
