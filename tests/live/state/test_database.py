"""The connections under the state: how they are lent, and what is asked through them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from rivet_dagster.engine.errors import InternalError, TransientError
from rivet_dagster.engine.state import pool as pool_module
from rivet_dagster.engine.state.connection import for_psycopg
from rivet_dagster.engine.state.location import StateLocation
from rivet_dagster.engine.state.pool import KEPT, MOST, Pool
from rivet_dagster.engine.state.store import StateStore
from tests.live.state.helpers import KEY, begin, claim, commit_all, header, make_units

RUN = """
import sys
from pathlib import Path
import rivet_dagster.cli, rivet_dagster.config
import rivet_dagster.engine.run.engine, rivet_dagster.engine.run.session, rivet_dagster.engine.run.finalize
from rivet_dagster.engine.state.location import StateLocation
from rivet_dagster.engine.state.store import StateStore

with StateStore.open(StateLocation.parse(sys.argv[1] or None, Path(sys.argv[2]))) as store:
    lease = store.acquire("key", "t", wait_s=0)
    store.release(lease)
heavy = ("sqlalchemy", "alembic", "pyarrow.compute", "pyarrow.csv", "pyarrow.dataset", "dagster", "duckdb")
print([name for name in heavy if name in sys.modules])
"""


def test_a_run_over_an_existing_state_loads_nothing_slow(store: StateStore, request: Any) -> None:
    url, folder = "", Path()
    if store.location.path is None:
        url = request.getfixturevalue("migrated_url")
    else:
        folder = store.location.path.parent
    command = [sys.executable, "-c", RUN, url, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_claim_is_of_its_own_run(store: StateStore) -> None:
    first = begin(store, 1, export="first", max_chunk_attempts=7)
    commit_all(store, first)
    lease = store.acquire("another", "tester", wait_s=0)
    store.begin_run(header("r2", "second", max_chunk_attempts=2), make_units(1), lease)
    claimed = claim(store, lease, "r2")
    assert (claimed.export_name, claimed.max_tries) == ("second", 2)


def test_statements_that_fail_leave_nothing_behind(store: StateStore) -> None:
    begin(store, 1)

    def fail() -> None:
        with store._db.transaction() as connection:
            connection.execute("UPDATE chunk_run SET holder = :holder", holder="x")
            connection.execute("SELECT no_such_column FROM chunk_run")

    for _ in range(MOST + 1):
        with pytest.raises(InternalError):
            fail()
    run = store.get_run("r1")
    assert run is not None
    assert run.holder == ""


def test_a_transaction_left_open_by_a_statement_is_not_lent_on(store: StateStore) -> None:
    begin(store, 1)
    with store._db.single() as connection:
        connection.execute(store._db.dialect.begin)
        connection.execute("UPDATE chunk_run SET holder = 'x'")
    run = store.get_run("r1")
    assert run is not None
    assert run.holder == ""
    assert store.holder(KEY) is not None


def test_many_threads_share_few_connections(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "WAIT_S", 0.1)
    inside, leave = threading.Semaphore(0), threading.Event()

    def hold() -> None:
        with store._db.single() as connection:
            connection.scalar("SELECT 1")
            inside.release()
            assert leave.wait(30)

    threads = [threading.Thread(target=hold) for _ in range(MOST)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert inside.acquire(timeout=30)
    with pytest.raises(TransientError) as caught:
        store.holder(KEY)
    assert caught.value.code == "RIVET_STATE_UNAVAILABLE"
    leave.set()
    for thread in threads:
        thread.join(30)
    assert store.holder(KEY) is None
    assert store._db._pool._open == KEPT


def test_a_forked_child_opens_its_own_connections(store: StateStore) -> None:
    lease = begin(store, 2)
    opened = store._db._pool._idle[-1].raw
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of threads, ours are idle
        child = os.fork()
    if child == 0:
        code = 1
        try:
            store.close()  # of what the parent opened it closes nothing
            claim(store, lease)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert store._db._pool._idle[-1].raw is opened
    assert claim(store, lease).unit.index == 1


class Opened:
    """What a pool opens, told apart."""

    def __init__(self) -> None:
        self.usable = True
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_the_last_one_used_is_lent_first() -> None:
    pool = Pool(Opened, lambda raw: raw.usable)
    with pool.lend() as first, pool.lend() as second:
        pass
    with pool.lend() as again:
        assert again is first  # given back last
    with pool.lend() as a, pool.lend() as b:
        assert {a, b} == {first, second}


def test_a_lost_connection_ends_the_others_too() -> None:
    """A server that was restarted ended all of them; each would cost its user an error."""
    pool = Pool(Opened, lambda raw: raw.usable)
    with pool.lend() as idle, pool.lend():
        pass
    with pool.lend() as lent:
        with pool.lend() as lost:
            lost.usable = False
        assert not lent.closed
    assert lost.closed
    assert lent.closed
    assert idle.closed
    with pool.lend() as fresh:
        assert not fresh.closed
    assert pool._open == 1


def test_an_old_connection_is_replaced() -> None:
    pool = Pool(Opened, lambda raw: raw.usable, max_age_s=0.05)
    with pool.lend() as first:
        pass
    with pool.lend() as again:
        assert again is first
    time.sleep(0.1)
    with pool.lend() as fresh:
        assert fresh is not first
    assert first.closed
    assert pool._open == 1


def test_a_closed_pool_keeps_nothing() -> None:
    pool = Pool(Opened, lambda raw: raw.usable)
    with pool.lend() as lent:
        pool.close()
    with pool.lend() as later:
        pass
    assert lent.closed
    assert later.closed
    assert pool._open == 0


def test_a_failed_start_takes_no_place() -> None:
    def refuse() -> Opened:
        raise ConnectionRefusedError

    pool = Pool(refuse, lambda raw: raw.usable)
    for _ in range(MOST + 1):
        with pytest.raises(ConnectionRefusedError), pool.lend():
            pass
    assert pool._open == 0


@pytest.mark.parametrize(
    ("sql", "sent"),
    [
        ("a = :a AND b = :b_2", "a = %(a)s AND b = %(b_2)s"),
        (":x::bigint[]", "%(x)s::bigint[]"),
        ("':no' || ':it''s' || :yes", "':no' || ':it''s' || %(yes)s"),
        ('":no" = :yes', '":no" = %(yes)s'),
        ("a % :b LIKE 'x%'", "a %% %(b)s LIKE 'x%%'"),
        ("'50%' = :now", "'50%%' = (extract(epoch FROM clock_timestamp()) * 1000)::bigint"),
    ],
)
def test_parameters_as_psycopg_names_them(sql: str, sent: str) -> None:
    assert for_psycopg(sql) == sent


def test_texts_reach_both_backends_alike(store: StateStore) -> None:
    """Nothing of a value is ever read as SQL, nor a literal as a parameter."""
    value = "%s :now '; DROP TABLE chunk_run; -- \\ \" 100% é"
    with store._db.single() as connection:
        row = connection.first("SELECT CAST(:value AS text) AS value, '100% :now' AS literal", value=value)
        assert row is not None
        assert (row.value, row.literal) == (value, "100% :now")


def test_the_clock_is_the_servers_or_ours(store: StateStore) -> None:
    with store._db.single() as connection:
        now = connection.scalar("SELECT :now + 0")
    assert abs(now - time.time() * 1000) < 5000


def test_a_location_travels_to_another_process(tmp_path: Path) -> None:
    import pickle

    for url in (None, "postgresql://u:pw-4711@localhost:6432/d"):
        location = StateLocation.parse(url, tmp_path)
        assert pickle.loads(pickle.dumps(location)) == location
