from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from rivet_dagster.engine.errors import BusyError, TransientError
from rivet_dagster.engine.state.lease import LeaseKeeper
from rivet_dagster.engine.state.liveness import ProcessIdentity, current_process
from rivet_dagster.engine.state.models import Lease
from rivet_dagster.engine.state.store import StateStore
from tests.live.state.helpers import KEY, begin, claim, commit, header, hold, make_units, spawn, stall


def test_token_grows_with_each_holder_also_across_release(store: StateStore) -> None:
    tokens = []
    for name in ("a", "b", "c"):
        lease = store.acquire(KEY, name, wait_s=0)
        tokens.append(lease.token)
        info = store.holder(KEY)
        assert info is not None
        assert (info.holder, info.token, info.pid) == (name, lease.token, os.getpid())
        store.release(lease)
        assert store.holder(KEY) is None
    assert tokens == [1, 2, 3]
    assert store.acquire("another key", "a", wait_s=0).token == 1


def test_busy_at_once_without_a_wait(store: StateStore) -> None:
    store.acquire(KEY, "first", wait_s=0)
    with pytest.raises(BusyError, match="held by first") as caught:
        store.acquire(KEY, "second", wait_s=0)
    assert caught.value.code == "RIVET_STATE_RUN_IN_PROGRESS"
    assert caught.value.retryable


def test_waiting_ends(store: StateStore) -> None:
    store.acquire(KEY, "first", wait_s=0)
    started = time.monotonic()
    with pytest.raises(BusyError, match="held by first") as caught:
        store.acquire(KEY, "second", wait_s=0.5, poll_s=0.1)
    assert caught.value.code == "RIVET_STATE_LOCK_TIMEOUT"
    assert 0.4 <= time.monotonic() - started < 5


def test_waiting_gets_it_when_it_is_released(store: StateStore) -> None:
    first = store.acquire(KEY, "first", wait_s=0)
    timer = threading.Timer(0.3, store.release, (first,))
    timer.start()
    assert store.acquire(KEY, "second", wait_s=20, poll_s=0.05).token == first.token + 1
    timer.join()


def test_one_of_many_gets_it(store: StateStore) -> None:
    won: list[Lease] = []
    lost: list[str] = []

    def grab(name: str) -> None:
        try:
            won.append(store.acquire(KEY, name, wait_s=0))
        except BusyError as error:
            lost.append(error.code)

    for _ in range(3):
        threads = [threading.Thread(target=grab, args=(f"t{i}",)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        store.release(won[-1])
    assert [lease.token for lease in won] == [1, 2, 3]
    assert lost == ["RIVET_STATE_RUN_IN_PROGRESS"] * 15


def test_expired_lease_is_taken_and_the_old_one_can_do_nothing(store: StateStore) -> None:
    old = store.acquire(KEY, "old", wait_s=0, ttl_s=0.2)
    store.begin_run(header(), make_units(2), old)
    claimed = claim(store, old)
    time.sleep(0.3)
    store.renew(old)  # late, but nobody took it
    time.sleep(0.3)
    assert store.holder(KEY) is None
    new = store.acquire(KEY, "new", wait_s=0)
    assert new.token == old.token + 1
    for attempt in (
        lambda: store.renew(old),
        lambda: store.confirm(old),
        lambda: commit(store, claimed, old),
        lambda: store.claim("r1", "w", old),
        lambda: store.reset_running("r1", old),
        lambda: store.requeue("r1", [0], old),
        lambda: store.interrupt_run("r1", old),
        lambda: store.reset_cursor("orders", "/data/orders", old),
        lambda: store.begin_run(header("r2"), make_units(1), old),
    ):
        with pytest.raises(BusyError) as caught:
            attempt()
        assert caught.value.code == "RIVET_STATE_LEASE_LOST"
    store.release(old)  # does not free the successor's
    assert store.holder(KEY) is not None
    store.renew(new)
    assert store.open_run("orders") is not None


def test_released_lease_can_do_nothing(store: StateStore) -> None:
    lease = begin(store)
    claimed = claim(store, lease)
    store.release(lease)
    store.release(lease)
    with pytest.raises(BusyError):
        commit(store, claimed, lease)
    with pytest.raises(BusyError):
        store.renew(lease)


def test_dead_holder_is_replaced_at_once(store: StateStore) -> None:
    here, there = multiprocessing.Pipe()
    process = spawn(hold, store.location, there, 600.0)
    pid, lease = here.recv()
    with pytest.raises(BusyError, match=str(pid)):
        store.acquire(KEY, "second", wait_s=0)
    os.kill(pid, signal.SIGKILL)
    _await_zombie(pid)  # not reaped yet: still in the process table, and dead all the same
    assert store.holder(KEY) is None
    assert store.acquire(KEY, "second", wait_s=0).token == lease.token + 1
    process.join(30)


def test_stopped_holder_past_its_time_cannot_commit(store: StateStore) -> None:
    here, there = multiprocessing.Pipe()
    process = spawn(stall, store.location, there, 0.5)
    pid, _ = here.recv()
    with pytest.raises(BusyError):  # a stopped process is alive
        store.acquire(KEY, "successor", wait_s=0)
    successor = store.acquire(KEY, "successor", wait_s=20)
    store.reset_running("r1", successor)
    os.kill(pid, signal.SIGCONT)
    assert here.recv() == "RIVET_STATE_LEASE_LOST"
    process.join(30)
    assert store.parts("r1") == ()
    commit(store, claim(store, successor), successor)
    assert [part.attempt for part in store.parts("r1")] == [2]


def test_process_identity_tells_reused_pids_apart() -> None:
    me = current_process()
    assert not me.is_dead()
    assert ProcessIdentity(me.host, me.boot_id, me.pid, me.pid_start - 1).is_dead()
    assert not ProcessIdentity(me.host, "another boot", 1, 1).is_dead()
    assert not ProcessIdentity(me.host, "", me.pid, 1).is_dead()


def test_keeper_renews_the_lease_and_the_claims_it_holds(store: StateStore) -> None:
    lease = store.acquire(KEY, "keeper", wait_s=0, ttl_s=0.6)
    store.begin_run(header(), make_units(1), lease)
    with LeaseKeeper(store, lease, claim_ttl_s=0.6) as keeper:
        claimed = claim(store, lease, ttl_s=0.6)
        with keeper.holding(claimed):
            time.sleep(1.5)
            assert store.holder(KEY) is not None
            assert store.claim("r1", "another", lease) is None
            keeper.check()
            commit(store, claimed, lease)
    time.sleep(0.8)
    assert store.holder(KEY) is None


def test_keeper_tells_when_the_lease_is_lost(store: StateStore) -> None:
    lease = store.acquire(KEY, "keeper", wait_s=0, ttl_s=0.2)
    time.sleep(0.3)
    store.acquire(KEY, "thief", wait_s=0)
    with LeaseKeeper(store, lease, interval_s=0.05) as keeper:
        assert keeper.lost.wait(20)
        with pytest.raises(BusyError) as caught:
            keeper.check()
    assert caught.value.code == "RIVET_STATE_LEASE_LOST"


def test_keeper_that_slept_past_its_time_looks_before_it_says_yes(store: StateStore) -> None:
    lease = store.acquire(KEY, "keeper", wait_s=0, ttl_s=0.2)
    with LeaseKeeper(store, lease, interval_s=600) as keeper:
        time.sleep(0.3)
        keeper.check()  # nobody was there
        time.sleep(0.3)
        store.acquire(KEY, "thief", wait_s=0)
        with pytest.raises(BusyError):
            keeper.check()


def test_keeper_verifies_with_the_state_before_its_next_beat(store: StateStore) -> None:
    lease = store.acquire(KEY, "keeper", wait_s=0)
    with LeaseKeeper(store, lease, interval_s=600) as keeper:
        keeper.verify()
        store.release(lease)
        store.acquire(KEY, "thief", wait_s=0)
        keeper.check()  # it cannot know yet
        with pytest.raises(BusyError) as caught:
            keeper.verify()
    assert caught.value.code == "RIVET_STATE_LEASE_LOST"


class _Outage(StateStore):
    """A store whose renewals fail while ``down`` is set."""

    down = threading.Event()

    def renew(self, lease: Lease) -> None:
        if self.down.is_set():
            raise TransientError("away", code="RIVET_STATE_UNAVAILABLE")
        super().renew(lease)


def test_keeper_outlives_an_outage_shorter_than_the_lease(tmp_path: Path) -> None:
    from rivet_dagster.engine.state.location import StateLocation

    with _Outage.open(StateLocation.parse(None, tmp_path)) as store:
        lease = store.acquire(KEY, "keeper", wait_s=0, ttl_s=1.0)
        with LeaseKeeper(store, lease, interval_s=0.05) as keeper:
            _Outage.down.set()
            time.sleep(0.3)
            assert not keeper.lost.is_set()
            _Outage.down.clear()
            time.sleep(0.2)
            keeper.check()
            _Outage.down.set()
            assert keeper.lost.wait(20)
            _Outage.down.clear()


def _await_zombie(pid: int) -> None:
    deadline = time.monotonic() + 20
    stat = Path(f"/proc/{pid}/stat")
    while time.monotonic() < deadline:
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.01)
    raise AssertionError("the process did not end")
