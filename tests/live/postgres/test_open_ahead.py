"""Connections that are opened while the server answers something else."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from rivet_dagster.engine.errors import RivetError
from rivet_dagster.engine.sources.postgres import catalog_sql, connect
from rivet_dagster.engine.sources.postgres.connect import PostgresConnector, SessionLimits
from tests.live.postgres.rig import Rig
from tests.services.postgres import TestDatabase

OURS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@pytest.fixture
def connector(db: TestDatabase) -> Iterator[PostgresConnector]:
    found = PostgresConnector(dict(conninfo_to_dict(db.url)), SessionLimits())
    with contextlib.closing(found):
        yield found


def pid(connector: PostgresConnector) -> int:
    with contextlib.closing(connector.connect()) as connection:
        return connection.info.backend_pid


def sessions(db: TestDatabase, wanted: int) -> int:
    """How many others there are, after waiting for ``wanted``: a server ends a session in its own time."""
    until = time.monotonic() + 10
    with db.connect() as connection:
        while (row := connection.execute(OURS).fetchone()) and row[0] != wanted:
            if time.monotonic() > until:
                break
            time.sleep(0.02)
    assert row is not None
    return int(row[0])


def test_what_was_opened_ahead_is_taken_first_and_once(
    connector: PostgresConnector, db: TestDatabase
) -> None:
    connector.prepare(1).join()
    assert sessions(db, 1) == 1
    with contextlib.closing(connector.connect()) as first:
        assert sessions(db, 1) == 1
        assert pid(connector) != first.info.backend_pid


def test_one_that_waited_too_long_is_closed_and_another_opened(
    connector: PostgresConnector, db: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "_SPARE_S", 0.0)
    connector.prepare(1).join()
    with contextlib.closing(connector.connect()) as taken:
        assert sessions(db, 1) == 1
        assert taken.execute("SELECT 1").fetchone() == (1,)


def test_what_nobody_took_is_closed(connector: PostgresConnector, db: TestDatabase) -> None:
    connector.prepare(2).join()
    assert sessions(db, 2) == 2
    connector.close()
    assert sessions(db, 0) == 0
    connector.prepare(1).join()  # a thread that was late
    assert sessions(db, 0) == 0


def test_a_server_that_refuses_is_told_by_the_one_who_needs_it(db: TestDatabase) -> None:
    wrong = PostgresConnector({**conninfo_to_dict(db.url), "dbname": "nothing_here"}, SessionLimits())
    wrong.prepare(2).join()
    with pytest.raises(Exception, match="nothing_here"):
        wrong.connect()


def test_a_run_without_rows_to_read_leaves_no_session(rig: Rig) -> None:
    rig.db.execute("CREATE TABLE things (id int PRIMARY KEY)", "INSERT INTO things VALUES (1)")
    rig.export(mode="incremental", cursor_column="id")
    rig.run()
    rig.run()
    assert sessions(rig.db, 0) == 0


def test_who_connects_takes_what_is_being_opened(connector: PostgresConnector, db: TestDatabase) -> None:
    connector.prepare(2)
    with contextlib.closing(connector.connect()), contextlib.closing(connector.connect()):
        assert sessions(db, 2) == 2


def test_no_more_is_opened_than_is_lacking(connector: PostgresConnector, db: TestDatabase) -> None:
    connector.prepare(2).join()
    connector.prepare(2).join()
    connector.prepare(1)
    assert sessions(db, 2) == 2


def test_a_failure_of_a_moment_ago_is_told_without_another_attempt() -> None:
    """A second login with a wrong password may lock the account; a dead host costs its time twice."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        accepted: list[int] = []

        def refuse() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = server.accept()
                    accepted.append(1)
                    peer.close()

        threading.Thread(target=refuse, daemon=True).start()
        kwargs = {"host": "127.0.0.1", "port": server.getsockname()[1], "sslmode": "disable"}
        connector = PostgresConnector(kwargs, SessionLimits())
        with pytest.raises(RivetError):
            connector.connect()
        once = len(accepted)
        connector.prepare(1)
        with pytest.raises(RivetError):
            connector.connect()
        assert len(accepted) == 2 * once
        with pytest.raises(RivetError):
            connector.connect()  # told once: whoever tries again, tries
        assert len(accepted) == 3 * once
        server.shutdown(socket.SHUT_RDWR)


RELATION = (catalog_sql.RELATION, {"schema": None, "table": "things"})


def test_the_catalog_is_warm_in_a_session_that_looked_into_it(db: TestDatabase) -> None:
    db.execute("CREATE TABLE things (id int PRIMARY KEY)")
    with contextlib.closing(PostgresConnector(dict(conninfo_to_dict(db.url)), SessionLimits())) as connector:
        connector.prepare(1, warm=RELATION).join()
        with contextlib.closing(connector.connect()) as warm, contextlib.closing(connector.connect()) as cold:
            assert not warm.info.transaction_status
            assert cached(warm) > cached(cold) * 1.2


def cached(connection: psycopg.Connection[Any]) -> int:
    """Bytes that the session keeps of the catalog."""
    row = connection.execute(
        "SELECT sum(total_bytes) FROM pg_backend_memory_contexts WHERE name ~ 'CacheMemoryContext|index info'"
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_a_look_that_has_to_wait_is_given_up_and_the_session_stays(db: TestDatabase) -> None:
    db.execute("CREATE TABLE things (id int PRIMARY KEY)")
    limits = SessionLimits(lock_timeout_ms=200)
    patient = PostgresConnector(dict(conninfo_to_dict(db.url)), limits)
    with contextlib.closing(patient) as connector, db.connect() as other, other.transaction():
        other.execute("LOCK TABLE things")
        began = time.monotonic()
        connector.prepare(1, warm=RELATION)
        with contextlib.closing(connector.connect()) as connection:
            assert 0.2 <= time.monotonic() - began < 5
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_command_that_connects_early_opens_no_more_sessions(rig: Rig) -> None:
    rig.db.execute("CREATE TABLE things (id int PRIMARY KEY)", "INSERT INTO things VALUES (1)")
    rig.export(mode="full")
    first = opened(rig.db)
    rig.run()
    second = opened(rig.db)
    command = [str(Path(sys.executable).with_name("rivet-dagster")), "run", "-c", str(rig.config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert opened(rig.db) - second == second - first > 1


def opened(db: TestDatabase) -> int:
    """Sessions of all time, one for each call of this among them, once the server has counted the last."""
    assert sessions(db, 0) == 0
    found = -1
    with db.server.connect() as connection:
        until = time.monotonic() + 10
        while time.monotonic() < until:
            row = connection.execute(
                "SELECT sessions FROM pg_stat_database WHERE datname = %s", (db.name,)
            ).fetchone()
            assert row is not None
            if row[0] == found:
                break
            found = row[0]
            time.sleep(0.3)
    return int(found)


def waiting(connection: psycopg.Connection[Any]) -> int:
    """Bytes that the kernel holds for the connection."""
    found = ctypes.c_int()
    fcntl.ioctl(connection.pgconn.socket, termios.FIONREAD, found)
    return found.value


def test_a_connection_that_reads_takes_128_kib_at_once(connector: PostgresConnector) -> None:
    with contextlib.closing(connector.connect()) as connection:
        with connector.transaction(connection, widen=True) as backend:
            assert backend == connection.info.backend_pid
        connection.pgconn.send_query(
            b"COPY (SELECT repeat('x', 1000) FROM generate_series(1, 120)) TO STDOUT"
        )
        until = time.monotonic() + 10
        while waiting(connection) < 120_000 and time.monotonic() < until:
            time.sleep(0.01)
        connection.pgconn.consume_input()
        assert waiting(connection) == 0
