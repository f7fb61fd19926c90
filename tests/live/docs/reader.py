"""Somebody who reads a page and types what it says: a folder, a home, a database and roles of their own."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import psycopg

from tests.live.docs.pages import ROOT, Block
from tests.services.postgres import TestServer

#: What stands for a password in the docs.
PLACEHOLDER: Final = "..."
#: ``export NAME='scheme://user:...@host/database'``: an example; the reader has an address of their own.
_EXAMPLE: Final = re.compile(r"^export (\w+)='\w+://(\w+):\.\.\.@[^/']*/(\w+)[^']*'.*$", flags=re.MULTILINE)
#: ``export NAME='...'``: a password.
_PASSWORD: Final = re.compile(r"^(export \w+)='\.\.\.'$", flags=re.MULTILINE)
_ROLE: Final = re.compile(r"CREATE ROLE (\w+) LOGIN")
_TEMPLATE: Final = "shop"

#: The shop that the examples speak of.
SHOP: Final = (
    "CREATE TABLE customers (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), name text NOT NULL)",
    "INSERT INTO customers (name) SELECT 'customer ' || g FROM generate_series(1, 500) g",
    "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer_id bigint,"
    " status text, amount numeric(12,2), created_at timestamptz NOT NULL,"
    " updated_at timestamptz NOT NULL DEFAULT now())",
    "INSERT INTO orders (customer_id, status, amount, created_at, updated_at)"
    " SELECT g % 500, 'paid', g * 0.25, at, at FROM generate_series(1, 20000) g,"
    " LATERAL (SELECT date_trunc('day', now()) - g % 30 * interval '1 day' AS at) a",
    "CREATE INDEX ON orders (updated_at)",
    "CREATE INDEX ON orders (created_at)",
    "CREATE TABLE order_lines (order_id bigint, line_no integer, sku text, PRIMARY KEY (order_id, line_no))",
    "INSERT INTO order_lines SELECT g / 3, g % 3, 'sku-' || g % 40 FROM generate_series(1, 9000) g",
    "CREATE TABLE events (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), kind text, payload jsonb,"
    " happened_at timestamptz NOT NULL)",
    "INSERT INTO events (kind, payload, happened_at) SELECT 'view', '{\"page\": 1}',"
    " now() - g * interval '1 minute' FROM generate_series(1, 8000) g",
    "CREATE INDEX ON events (happened_at)",
    "ANALYZE",
)


@dataclass(slots=True)
class Reader:
    """folder: where they work; database: the page's own copy of the shop."""

    server: TestServer
    folder: Path
    database: str
    password: str

    def read(self, page: list[Block], timeout: float = 120) -> str:
        """Do what ``page`` says, in one shell from the first block to the last; all that was printed."""
        lines = ["set -euo pipefail"]
        made = {role for block in page if block.language == "sql" for role in _ROLE.findall(block.text)}
        for block in page:
            if block.reason is not None:
                continue
            lines.append(f"echo '=== {block.where}'")
            if block.language == "bash":
                lines.append(self._typed(block.text, made))
            elif block.language == "sql":
                lines += ["sql <<'SQL'", block.text.replace(f"'{PLACEHOLDER}'", f"'{self.password}'") + "SQL"]
            elif block.file:
                lines += [f"cat > {block.file} <<'YAML'", block.text + "YAML"]
        done = subprocess.run(
            ["bash", "-c", "\n".join(lines)],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def execute(self, statement: str) -> None:
        """As the superuser, on the page's own copy of the shop."""
        with self.server.connect(self.database) as connection:
            connection.execute(statement.encode())

    def _typed(self, text: str, roles: set[str]) -> str:
        def address(match: re.Match[str]) -> str:
            name, role, database = match.groups()
            own = self.database if database == _TEMPLATE else database
            # a page that makes no such role speaks of one that the reader has
            return f"export {name}='{self.url(role if role in roles else 'postgres', own)}'"

        return _PASSWORD.sub(rf"\1='{self.password}'", _EXAMPLE.sub(address, text))

    def url(self, role: str, database: str) -> str:
        """The address of ``database`` for ``role``, one of the page's own or the superuser."""
        password = self.server.password if role == "postgres" else self.password
        return (
            f"postgresql://{role}:{quote(password)}@{self.server.host}:{self.server.port}/{database}"
            "?sslmode=disable"
        )

    def _environment(self) -> dict[str, str]:
        ours = ("RIVET_", "DAGSTER_", "PYTEST_", "PG")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        return environment | {
            "HOME": str(self.folder / "home"),
            "PATH": f"{self.folder / 'bin'}:{environment['PATH']}",
            "PYTHONPATH": str(ROOT),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "DATABASE_URL": self.url("postgres", self.database),
            "ADMIN_DSN": self.server.dsn_for(self.database),
            "PGPORT": str(self.server.port),
        }


_PROGRAMS: Final = {
    "python": "",
    "rivet-dagster": "-m rivet_dagster.cli",
    "dagster": "-W ignore -m dagster",
    "sql": str(Path(__file__).with_name("sql.py")),
}


@contextmanager
def reader(server: TestServer, folder: Path) -> Iterator[Reader]:
    """A reader of one page; their database and every role and database that the page made go at the end."""
    for name in ("bin", "home", "dagster_home"):
        (folder / name).mkdir(parents=True)
    for name, arguments in _PROGRAMS.items():
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    # what the pages copy out of the checkout
    shutil.copy(ROOT / "dagster_home" / "dagster.yaml", folder / "dagster_home")
    shutil.copytree(ROOT / "examples" / "deploy", folder / "examples" / "deploy")
    database = f"page_{secrets.token_hex(4)}"
    with server.connect() as connection:
        connection.execute(f"CREATE DATABASE {database} TEMPLATE {_TEMPLATE}".encode())
    try:
        yield Reader(server, folder, database, f"pw-{secrets.token_hex(8)}")
    finally:
        with server.connect() as connection:
            _drop_all_but(connection, ("postgres", "template0", "template1", _TEMPLATE))


def make_shop(server: TestServer) -> None:
    """The database that each page gets a copy of."""
    with server.connect() as connection:
        connection.execute(f"CREATE DATABASE {_TEMPLATE}".encode())
    with server.connect(_TEMPLATE) as connection:
        for statement in SHOP:
            connection.execute(statement.encode())


def _drop_all_but(connection: psycopg.Connection[tuple[object, ...]], kept: tuple[str, ...]) -> None:
    for (name,) in connection.execute("SELECT datname FROM pg_database").fetchall():
        if name not in kept:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())
    for (name,) in connection.execute(
        "SELECT rolname FROM pg_roles WHERE NOT rolsuper AND rolname NOT LIKE 'pg\\_%'"
    ).fetchall():
        connection.execute(f'DROP ROLE "{name}"'.encode())
