"""What is set on the sockets so that a network that swallows packets is noticed."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from rivet_dagster.engine.errors import TransientError
from rivet_dagster.engine.sources.postgres.connect import PostgresConnector, SessionLimits
from rivet_dagster.engine.state import listening
from rivet_dagster.engine.state.database import Database, libpq_bounds
from rivet_dagster.engine.state.location import StateLocation
from rivet_dagster.engine.state.store import StateStore
from tests.services.postgres import TestDatabase

_OPTIONS = {
    "idle": socket.TCP_KEEPIDLE,
    "interval": socket.TCP_KEEPINTVL,
    "count": socket.TCP_KEEPCNT,
    "silence_ms": socket.TCP_USER_TIMEOUT,
}


def set_on(raw: Any) -> dict[str, int]:
    """The bounds of a libpq connection's socket, as the kernel has them."""
    with socket.socket(fileno=os.dup(raw.pgconn.socket)) as ours:
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        return {name: ours.getsockopt(socket.IPPROTO_TCP, option) for name, option in _OPTIONS.items()}


@pytest.mark.parametrize(
    ("lease_s", "expected"),
    [
        (2.0, {"idle": 1, "interval": 1, "count": 3, "silence_ms": 2000}),
        (30.0, {"idle": 10, "interval": 5, "count": 3, "silence_ms": 30_000}),
        (600.0, {"idle": 10, "interval": 5, "count": 3, "silence_ms": 30_000}),
    ],
)
def test_the_state_is_given_up_with_the_lease(
    db: TestDatabase, tmp_path: Path, lease_s: float, expected: dict[str, int]
) -> None:
    database = Database(StateLocation.parse(db.url, tmp_path), lease_s=lease_s)
    with database.single() as connection:
        assert set_on(connection.raw) == expected
    database.close()


def test_a_url_that_names_a_bound_has_its_way(db: TestDatabase, tmp_path: Path) -> None:
    url = f"{db.url}?keepalives_idle=7&tcp_user_timeout=1234&connect_timeout=3"
    database = Database(StateLocation.parse(url, tmp_path))
    with database.single() as connection:
        found = set_on(connection.raw)
        assert (found["idle"], found["silence_ms"], found["count"]) == (7, 1234, 3)
    database.close()


def test_a_new_connection_has_a_share_of_the_time() -> None:
    shares = {ttl: libpq_bounds(ttl)["connect_timeout"] for ttl in (1, 10, 30, 3600)}
    assert shares == {1: 2, 10: 3, 30: 10, 3600: 10}


def test_a_server_that_stands_still_is_given_up(
    db: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel acknowledges what we send, and its process does not answer."""
    monkeypatch.setattr(listening, "LEAST_S", 1.0)
    with StateStore.open(StateLocation.parse(db.url, tmp_path), lease_s=1.0) as store:
        lease = store.acquire("key", "t", wait_s=0)
        with store._db.single() as connection:
            server = connection.scalar("SELECT pg_backend_pid()")
        os.kill(server, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(TransientError) as caught:
                store.renew(lease)
            assert caught.value.code == "RIVET_STATE_UNAVAILABLE"
            assert 1 <= time.monotonic() - began < 5
            store.renew(lease)  # on another connection
        finally:
            os.kill(server, signal.SIGCONT)


def test_a_statement_that_is_slow_to_begin_and_then_talks_is_listened_to(
    db: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "LEAST_S", 1.0)
    database = Database(StateLocation.parse(db.url, tmp_path), lease_s=1.0)
    rows = "SELECT repeat('x', 9000), pg_sleep(0.2) FROM generate_series(1, 12)"
    with database.single() as connection:
        assert len(connection.rows(rows)) == 12
    database.close()


def test_the_source_is_given_up_within_a_minute(db: TestDatabase) -> None:
    connector = PostgresConnector({"conninfo": db.dsn}, SessionLimits())
    with connector.connect() as connection:
        expected = {"idle": 30, "interval": 10, "count": 3, "silence_ms": 60_000}
        assert set_on(connection) == expected
    named = PostgresConnector({"conninfo": db.dsn, "tcp_user_timeout": 1234}, SessionLimits())
    with named.connect() as connection:
        assert set_on(connection)["silence_ms"] == 1234
