"""A private PostgreSQL server: it listens on 127.0.0.1 only and ends when its parent process ends."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Literal
from urllib.parse import quote

from rivet_dagster.demo.install import Installation, server_uid
from rivet_dagster.demo.process import bound_to_parent

StopMode = Literal["fast", "immediate"]

_STOP_SIGNAL: Final[dict[str, signal.Signals]] = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_PORT_ATTEMPTS: Final = 8
_READY_LINE: Final = 7  # of postmaster.pid, counted from 0: "ready" once connections are accepted
_PORT_LINE: Final = 3


class ServerStartError(RuntimeError):
    """The server did not come up; the message ends with its log."""


class _PortTakenError(ServerStartError):
    """Another process took the port between our choice and the server's bind."""


@dataclass(slots=True)
class PostgresServer:
    """A server over the data folder ``datadir``, which ``start`` initialises when it does not exist.

    The operating system stops the server when the *thread* that called ``start`` ends, so start it
    from the main thread. ``settings`` are ``name=value`` strings as ``postgres -c`` takes them.
    """

    installation: Installation
    datadir: Path
    password: str
    settings: tuple[str, ...] = ()
    port: int = 0
    superuser: str = "postgres"
    host: str = "127.0.0.1"
    dsn_options: str = "sslmode=disable"
    death_signal: signal.Signals = signal.SIGQUIT
    start_timeout_s: float = 60.0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def log(self) -> Path:
        return self.datadir.with_name(f"{self.datadir.name}.log")

    @property
    def pid(self) -> int:
        """Process id of the postmaster; raises RuntimeError when the server does not run."""
        if self._process is None:
            raise RuntimeError("the server is stopped")
        return self._process.pid

    @property
    def dsn(self) -> str:
        return self.dsn_for("postgres")

    @property
    def url(self) -> str:
        return self.url_for("postgres")

    def dsn_for(self, database: str) -> str:
        """Key=value connection string of the superuser to ``database``."""
        return (
            f"host={self.host} port={self.port} user={self.superuser} password={self.password} "
            f"dbname={database} {self.dsn_options}"
        )

    def url_for(self, database: str) -> str:
        """``postgresql://`` URL of the superuser to ``database``, without TLS options."""
        return (
            f"postgresql://{self.superuser}:{quote(self.password, safe='')}"
            f"@{self.host}:{self.port}/{quote(database, safe='')}"
        )

    def start(self) -> None:
        """Bring the server up and return once it accepts connections. Keeps a port chosen before."""
        if not self.datadir.is_dir():
            self._initialise()
        if self.port:
            self._launch(self.port)
            return
        for attempt in range(_PORT_ATTEMPTS):
            port = free_port()
            try:
                self._launch(port)
            except _PortTakenError:
                if attempt == _PORT_ATTEMPTS - 1:
                    raise
                continue
            self.port = port
            return

    def stop(self, mode: StopMode = "fast") -> None:
        """``fast`` disconnects clients and writes a checkpoint; ``immediate`` is a crash of the server."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(_STOP_SIGNAL[mode])
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start again on the same port and data."""
        self.stop(mode)
        self.start()

    def __enter__(self) -> PostgresServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _initialise(self) -> None:
        """Create the data folder beside its final place and move it there, so that a kill leaves no half."""
        parent = self.datadir.parent
        building = parent / f".{self.datadir.name}.{secrets.token_hex(4)}"
        pwfile = parent / f"{building.name}.pw"
        give(parent, 0o700)
        pwfile.write_text(self.password)
        give(pwfile, 0o600)
        options = ["--no-sync", "-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "-U", self.superuser]
        command = [
            str(self.installation.bin / "initdb"),
            "-D",
            str(building),
            "--pwfile",
            str(pwfile),
            *options,
        ]
        try:
            with _spawn(command, parent, subprocess.PIPE, signal.SIGKILL) as process:
                output = process.communicate()[0].decode(errors="replace")
            if process.returncode != 0:
                raise ServerStartError(f"initdb failed: {output.strip()[-2000:]}")
            building.rename(self.datadir)
        finally:
            pwfile.unlink(missing_ok=True)
            shutil.rmtree(building, ignore_errors=True)

    def _launch(self, port: int) -> None:
        options = [f"port={port}", "listen_addresses=127.0.0.1", *self.settings]
        command = [str(self.installation.bin / "postgres"), "-D", str(self.datadir)]
        command += [part for option in options for part in ("-c", option)]
        with self.log.open("ab") as log:
            offset = log.tell()
            process = _spawn(command, self.datadir.parent, log, self.death_signal)
        try:
            self._await_ready(process, offset)
        except BaseException:
            if process.poll() is None:
                process.send_signal(signal.SIGQUIT)
                process.wait(30)
            raise
        self._process = process

    def _await_ready(self, process: subprocess.Popen[bytes], offset: int) -> None:
        deadline = time.monotonic() + self.start_timeout_s
        while True:
            status = read_status(self.datadir)
            if status is not None and status.pid == process.pid and status.ready:
                return
            ended = process.poll() is not None
            if ended or time.monotonic() > deadline:
                with self.log.open("rb") as log:
                    log.seek(offset)
                    text = log.read().decode(errors="replace")[-3000:]
                taken = "Address already in use" in text
                raise (_PortTakenError if taken else ServerStartError)(f"PostgreSQL did not start:\n{text}")
            time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What a server says of itself in its data folder."""

    pid: int
    port: int
    ready: bool


def read_status(datadir: Path) -> ServerStatus | None:
    """Who runs over ``datadir`` by its own ``postmaster.pid``; None without a (complete) file."""
    try:
        lines = (datadir / "postmaster.pid").read_text().splitlines()
        ready = len(lines) > _READY_LINE and lines[_READY_LINE].strip() == "ready"
        return ServerStatus(int(lines[0]), int(lines[_PORT_LINE]), ready)
    except (OSError, ValueError, IndexError):
        return None


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def give(path: Path, mode: int) -> None:
    """Set ``mode`` on ``path`` and, as root, hand it to the account that servers run as."""
    path.chmod(mode)
    uid = server_uid()
    if uid is not None:
        os.chown(path, uid, uid)


def _environment() -> dict[str, str]:
    # nothing of the caller's PG* variables or library paths: they would change another server's run
    return {"PATH": "/usr/bin:/bin", "LANG": "C", "TZ": "UTC"}


def _spawn(
    command: list[str], folder: Path, output: IO[bytes] | int, death_signal: signal.Signals
) -> subprocess.Popen[bytes]:
    """Start ``command`` in ``folder`` as the server's account, bound to the life of this thread."""
    uid = server_uid()
    return subprocess.Popen(  # noqa: S603 - a list of ours, no shell
        command,
        cwd=folder,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # a Ctrl-C in the terminal must not reach the server before us
        user=uid,
        group=uid,
        extra_groups=None if uid is None else [],
        preexec_fn=bound_to_parent(death_signal),  # noqa: PLW1509 - the hook only calls prctl
    )
