"""What real servers do when something is wrong, and what the engine calls it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from rivet_dagster.engine.sources.postgres.sqlstate import classify
from tests.services.postgres import TestDatabase, TestServer, postgres_server

Connection = psycopg.Connection[tuple[Any, ...]]


def refused(dsn: str, **changed: Any) -> tuple[str, str | None, bool]:
    """(code, SQLSTATE, retryable) of a connection attempt."""
    with pytest.raises(psycopg.OperationalError) as caught:
        psycopg.connect(dsn, **changed)
    error = classify(caught.value, export="e")
    return error.code, error.sqlstate, error.retryable


def test_refused_connections_are_told_apart(every_db: TestDatabase) -> None:
    auth = "RIVET_SOURCE_AUTH_FAILED"
    assert refused(every_db.dsn, password="b'ad \\") == (auth, "28P01", False)
    assert refused(every_db.dsn, user="nobody") == (auth, "28P01", False)
    assert refused(every_db.dsn, dbname="nope") == ("RIVET_SOURCE_DATABASE_NOT_FOUND", "3D000", False)


def test_no_password_at_all(db: TestDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSFILE", "/dev/null")
    monkeypatch.delenv("PGPASSWORD", raising=False)
    parts = psycopg.conninfo.conninfo_to_dict(db.dsn)
    parts.pop("password")
    assert refused("", **parts) == ("RIVET_SOURCE_AUTH_FAILED", None, False)


def test_a_server_that_is_away_may_come_back(db: TestDatabase) -> None:
    away = ("RIVET_SOURCE_UNAVAILABLE", None, True)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert refused(db.dsn, host="127.0.0.1", port=unused.getsockname()[1]) == away
    assert refused(db.dsn, host="/nowhere") == away
    assert refused(db.dsn, host="no-such-host.invalid") == away


def test_a_listener_that_is_no_server(db: TestDatabase) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            for _ in range(2):  # the attempt and the look at its reason
                listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        port = listener.getsockname()[1]
        found = refused(db.dsn, host="127.0.0.1", port=port, sslmode="disable")
        thread.join()
    assert found == ("RIVET_SOURCE_UNAVAILABLE", None, True)


def test_a_server_without_tls(db: TestDatabase) -> None:
    assert refused(db.dsn, sslmode="require") == ("RIVET_SOURCE_TLS_FAILED", None, False)


def test_a_certificate_that_is_not_accepted() -> None:
    with postgres_server(15, tls=True, tls_names=["db.example"]) as server:
        wrong = refused(server.dsn, host="127.0.0.1", sslmode="verify-full")
        assert wrong == ("RIVET_SOURCE_TLS_FAILED", None, False)
        encrypted = refused(server.dsn, host="127.0.0.1", sslmode="verify-ca", password="wrong")
        assert encrypted == ("RIVET_SOURCE_AUTH_FAILED", "28P01", False)


def test_too_many_connections(pg15: TestServer) -> None:
    with pg15.connect() as conn:
        conn.execute("CREATE ROLE crowd LOGIN PASSWORD 'crowd' CONNECTION LIMIT 0")
    try:
        crowd = psycopg.conninfo.make_conninfo(pg15.dsn, user="crowd", password="crowd")
        assert refused(crowd) == ("RIVET_SOURCE_UNAVAILABLE", "53300", True)
    finally:
        with pg15.connect() as conn:
            conn.execute("DROP ROLE crowd")


@pytest.fixture
def conn(every_db: TestDatabase) -> Iterator[Connection]:
    with every_db.connect() as connection:
        connection.execute("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
        yield connection


def failed(conn: Connection, statement: str, **known: Any) -> tuple[str, str | None, bool]:
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(statement.encode())
    error = classify(caught.value, statement=statement, **known)
    assert statement.split(maxsplit=1)[0] in error.message
    return error.code, error.sqlstate, error.retryable


def test_timeouts(conn: Connection, every_db: TestDatabase) -> None:
    conn.execute("SET statement_timeout = '50ms'")
    assert failed(conn, "SELECT pg_sleep(9)") == ("RIVET_SOURCE_STATEMENT_TIMEOUT", "57014", False)
    conn.execute("SET statement_timeout = 0; SET lock_timeout = '50ms'")
    with every_db.connect() as other, other.transaction():
        other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        assert failed(conn, "SELECT * FROM t") == ("RIVET_SOURCE_CONFLICT", "55P03", True)


def test_denied(conn: Connection) -> None:
    conn.execute("CREATE ROLE outsider; SET ROLE outsider; SET row_security = off")
    try:
        assert failed(conn, "SELECT * FROM t") == ("RIVET_SOURCE_PERMISSION_DENIED", "42501", False)
        conn.execute("RESET ROLE; ALTER TABLE t ENABLE ROW LEVEL SECURITY; GRANT SELECT ON t TO outsider")
        conn.execute("SET ROLE outsider")
        hidden = failed(conn, "SELECT * FROM t", rows_hidden=True)
        assert hidden == ("RIVET_SOURCE_ROW_SECURITY", "42501", False)
    finally:
        conn.execute("RESET ROLE; DROP OWNED BY outsider; DROP ROLE outsider")


def test_snapshots_that_are_gone(conn: Connection, every_db: TestDatabase) -> None:
    with every_db.connect() as holder, holder.transaction():
        row = holder.execute("SELECT pg_export_snapshot()").fetchone()
    assert row is not None
    for snapshot in (row[0], "00000003-0000001B-1", "nonsense"):
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        code, _, retryable = failed(conn, f"SET TRANSACTION SNAPSHOT '{snapshot}'", phase="snapshot")
        assert (code, retryable) == ("RIVET_SOURCE_SNAPSHOT_LOST", True)
        conn.execute("ROLLBACK")


def test_a_connection_that_was_ended(conn: Connection, every_db: TestDatabase) -> None:
    with every_db.connect() as victim:
        conn.execute("SELECT pg_terminate_backend(%s)", [victim.info.backend_pid])
        code, state, retryable = failed(victim, "SELECT 1")
        assert (code, retryable) == ("RIVET_SOURCE_UNAVAILABLE", True)
        assert state in ("57P01", None)
        assert failed(victim, "SELECT 1") == ("RIVET_SOURCE_UNAVAILABLE", None, True)


def test_dropped_and_renamed(conn: Connection) -> None:
    assert failed(conn, "SELECT * FROM nope") == ("RIVET_SOURCE_TABLE_NOT_FOUND", "42P01", False)
    assert failed(conn, "SELECT * FROM nope.t") == ("RIVET_SOURCE_TABLE_NOT_FOUND", "42P01", False)
    assert failed(conn, "SELECT b FROM t") == ("RIVET_SOURCE_SCHEMA_CHANGED", "42703", True)
    assert failed(conn, "SELECT 1 / (a - 1) FROM t") == ("RIVET_SOURCE_QUERY_FAILED", "22012", False)
