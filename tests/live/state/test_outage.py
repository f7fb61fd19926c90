from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from rivet_dagster.engine.errors import BusyError, EnvironmentFault, TransientError
from rivet_dagster.engine.state import database as database_module
from rivet_dagster.engine.state.lease import check_fence
from rivet_dagster.engine.state.location import StateLocation
from rivet_dagster.engine.state.store import StateStore
from tests.live.state.helpers import KEY, begin, claim, commit, commit_all
from tests.services.postgres import TestServer, database, postgres_server


@pytest.fixture(scope="module")
def own_server() -> Iterator[TestServer]:
    with postgres_server(17) as server:
        yield server


def test_server_restart_in_mid_use(own_server: TestServer, tmp_path: Path) -> None:
    with StateStore.open(StateLocation.parse(own_server.url, tmp_path)) as store:
        lease = begin(store, 3)
        claimed = claim(store, lease)
        own_server.restart("immediate")
        with pytest.raises(TransientError) as caught:
            commit(store, claimed, lease)
        assert caught.value.code == "RIVET_STATE_UNAVAILABLE"
        commit(store, claimed, lease)
        own_server.stop()
        for _ in range(2):
            with pytest.raises(TransientError) as caught:
                store.claim("r1", "w", lease)
            assert caught.value.code == "RIVET_STATE_UNAVAILABLE"
        own_server.start()
        assert commit_all(store, lease) == 2
        assert len(store.parts("r1")) == 3


def test_killed_session_is_transient(own_server: TestServer, tmp_path: Path) -> None:
    with StateStore.open(StateLocation.parse(own_server.url, tmp_path)) as store:

        def lose_the_session() -> None:
            with store._db.transaction() as connection:
                pid = connection.scalar("SELECT pg_backend_pid()")
                with own_server.connect() as other:
                    other.execute("SELECT pg_terminate_backend(%s)", (pid,))
                connection.execute("SELECT 1")

        with pytest.raises(TransientError) as caught:
            lose_the_session()
        assert caught.value.sqlstate == "57P01"
        assert store.holder("nobody's") is None


def test_row_lock_held_by_a_stalled_session_is_waited_for_in_vain(
    own_server: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = database_module._PG_SESSION.replace("'10s'", "'200ms'")
    monkeypatch.setattr(database_module, "_PG_SESSION", quick)
    with StateStore.open(StateLocation.parse(own_server.url, tmp_path)) as store:
        lease = store.acquire("stalled", "t", wait_s=0)
        store.release(lease)
        with own_server.connect() as other, other.transaction():
            other.execute("SELECT 1 FROM state_lease WHERE lease_key = 'stalled' FOR UPDATE")
            with pytest.raises(TransientError) as caught:
                store.acquire("stalled", "u", wait_s=0)
        assert caught.value.sqlstate == "55P03"
        assert store.acquire("stalled", "u", wait_s=0).token == 2


def test_holder_stalled_within_a_transaction_does_not_block_its_successor(
    own_server: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = StateLocation.parse(own_server.url, tmp_path)
    quick = database_module._PG_SESSION.replace("'15s'", "'300ms'")
    monkeypatch.setattr(database_module, "_PG_SESSION", quick)
    with StateStore.open(location) as store:
        lease = store.acquire("stalls", "t", wait_s=0, ttl_s=0.05)

        def stall() -> None:
            with store._db.transaction() as connection:
                check_fence(connection, lease)
                assert store.acquire("stalls", "u", wait_s=8).token == lease.token + 1

        with pytest.raises(TransientError) as caught:
            stall()
        assert caught.value.code == "RIVET_STATE_UNAVAILABLE"


def test_read_only_server_cannot_be_written(own_server: TestServer, tmp_path: Path) -> None:
    url = f"{own_server.url}?options=-cdefault_transaction_read_only%3Don"
    with StateStore.open(StateLocation.parse(own_server.url, tmp_path)):
        pass
    with (
        StateStore.open(StateLocation.parse(url, tmp_path)) as store,
        pytest.raises(EnvironmentFault) as caught,
    ):
        store.acquire("key", "t", wait_s=0)
    assert (caught.value.code, caught.value.sqlstate) == ("RIVET_STATE_NOT_WRITABLE", "25006")


def test_sqlite_write_lock_held_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_TIMEOUT_S", 0.2)
    location = StateLocation.parse(None, tmp_path)
    assert location.path is not None
    with StateStore.open(location) as store:
        lease = begin(store)
        other = sqlite3.connect(location.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TransientError) as claiming:
            store.claim("r1", "w", lease)
        with pytest.raises(TransientError) as renewing:
            store.renew(lease)
        assert {claiming.value.code, renewing.value.code} == {"RIVET_STATE_UNAVAILABLE"}
        assert store.holder(KEY) is not None  # readers do not wait for writers
        other.execute("ROLLBACK")
        other.close()
        assert commit_all(store, lease) == 3


def test_sqlite_is_opened_for_lasting_commits(tmp_path: Path) -> None:
    with StateStore.open(StateLocation.parse(None, tmp_path)) as store, store._db.single() as connection:
        found = {
            name: connection.scalar(f"PRAGMA {name}")
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 10_000}


def test_switch_to_wal_is_tried_again_when_it_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    first = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    first.execute("CREATE TABLE t (a)")
    first.execute("BEGIN EXCLUSIVE")
    timer = threading.Timer(0.3, first.execute, ("COMMIT",))
    timer.start()
    second = sqlite3.connect(path, timeout=0, isolation_level=None)
    database_module._switch_to_wal(second.cursor())
    assert second.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    timer.join()
    first.close()
    second.close()


@pytest.mark.parametrize("statement", ["fence", "commit"])
def test_takeover_waits_for_a_commit_that_is_under_way(
    own_server: TestServer, tmp_path: Path, statement: str
) -> None:
    """The fence holds the lease's row: a commit either ends before the takeover or is refused."""
    with database(own_server) as db, StateStore.open(StateLocation.parse(db.url, tmp_path)) as store:
        lease = replace(begin(store, 1), ttl_s=0.05)
        claimed = claim(store, lease)
        store.renew(lease)
        taken = threading.Event()

        def take() -> None:
            store.acquire(KEY, "new", wait_s=10, poll_s=0.02)
            taken.set()

        thread = threading.Thread(target=take)
        with store._db.transaction() as connection:
            if statement == "fence":
                check_fence(connection, lease)
            else:
                figures = {"rows": 1, "size": 1, "took": 1.0}
                assert store._close_claim(connection, "completed", claimed, lease, figures)
            thread.start()
            time.sleep(0.1)
            store.renew(lease)  # a renewal is not kept waiting
            assert not taken.wait(0.5)
        assert taken.wait(10)
        thread.join()
        assert store.progress("r1").completed == (statement == "commit")
        with pytest.raises(BusyError):
            store.reset_running("r1", lease)
