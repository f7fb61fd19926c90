from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from rivet_dagster.engine.errors import BusyError
from rivet_dagster.engine.plan.units import UnitKind, WorkUnit
from rivet_dagster.engine.state.models import JournalEvent
from rivet_dagster.engine.state.store import StateStore
from tests.live.state.helpers import (
    KEY,
    TRANSIENT,
    begin,
    claim,
    commit,
    commit_all,
    header,
    make_part,
    spawn,
    work,
)

UNITS = 500


def test_units_come_back_as_they_went_in(store: StateStore) -> None:
    units = [
        WorkUnit(0, UnitKind.WHOLE, "all"),
        WorkUnit(1, UnitKind.KEY, "é'\"", {"lo": "x\u0001y", "n": [1, None, {"a": 1.5}]}, "a", "é", 2**40),
    ]
    lease = store.acquire(KEY, "tester", wait_s=0)
    store.begin_run(header(), units, lease)
    assert [row.unit for row in store.units("r1")] == units
    assert claim(store, lease, only={1}).unit == units[1]


def test_threads_claim_each_unit_exactly_once(store: StateStore) -> None:
    lease = begin(store, UNITS)
    taken: list[int] = []

    def worker(name: str) -> None:
        while (claimed := store.claim("r1", name, lease)) is not None:
            taken.append(claimed.unit.index)
            commit(store, claimed, lease)

    threads = [threading.Thread(target=worker, args=(f"w{i}",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(taken) == list(range(UNITS))
    assert store.progress("r1").completed == UNITS
    assert Counter(part.chunk_index for part in store.parts("r1")) == Counter(range(UNITS))


def test_processes_claim_each_unit_exactly_once(store: StateStore) -> None:
    lease = begin(store, UNITS)
    processes = [spawn(work, store.location, lease, "r1", f"p{i}") for i in range(4)]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 4
    rows = store.units("r1")
    assert [row.status for row in rows] == ["completed"] * UNITS
    assert {row.attempts for row in rows} == {1}
    assert len(store.parts("r1")) == UNITS


def test_order_is_by_index_and_failures_come_last(store: StateStore) -> None:
    lease = begin(store, 3)
    first = claim(store, lease)
    store.fail_unit(first, TRANSIENT, lease, final=False)
    order = [first.unit.index]
    for _ in range(3):
        claimed = claim(store, lease)
        order.append(claimed.unit.index)
        commit(store, claimed, lease)
    assert order == [0, 1, 2, 0]


def test_an_attempt_that_does_not_count_leaves_all_tries(store: StateStore) -> None:
    lease = begin(store, 1)
    for attempt in (1, 2, 3):
        claimed = claim(store, lease)
        assert (claimed.attempt, claimed.tries) == (attempt, 1)
        store.fail_unit(claimed, TRANSIENT, lease, final=False, counted=False)
        store.fail_unit(claimed, TRANSIENT, lease, final=False, counted=False)  # its answer got lost
    commit(store, claim(store, lease), lease)
    assert store.progress("r1").completed == 1


def test_retries_are_attempts_beyond_the_first(store: StateStore) -> None:
    lease = begin(store, 3)
    assert store.retries("r1") == 0
    for index, attempts in ((0, 1), (1, 3)):
        for _ in range(attempts - 1):
            store.fail_unit(claim(store, lease, only=[index]), TRANSIENT, lease, final=False)
        commit(store, claim(store, lease, only=[index]), lease)
    assert store.retries("r1") == 2
    assert store.retries("no such run") == 0


def test_only_chosen_units(store: StateStore) -> None:
    lease = begin(store, 5)
    assert store.claim("r1", "w", lease, only=[]) is None
    assert [claim(store, lease, only=[4, 2]).unit.index for _ in range(2)] == [2, 4]
    assert store.claim("r1", "w", lease, only=[4, 2]) is None
    assert store.has_claimable_later("r1", only=[4])
    assert store.claim("no such run", "w", lease) is None


def test_commit_records_parts_figures_and_events(store: StateStore) -> None:
    lease = begin(store, 1)
    claimed = claim(store, lease)
    part = make_part(claimed, rows=7)
    store.commit_unit(
        claimed,
        [part],
        lease,
        seconds=1.25,
        compression="zstd",
        events=[JournalEvent("FileWritten", {"rows": 7})],
    )
    (row,) = store.units("r1")
    assert (row.status, row.rows, row.bytes, row.seconds) == ("completed", 7, 49, 1.25)
    (stored,) = store.parts("r1")
    assert stored.as_part() == part
    assert (stored.format, stored.compression, stored.attempt) == ("parquet", "zstd", 1)
    assert (stored.origin_run_id, stored.export_name) == ("r1", "orders")
    assert [(e.event, e.detail) for e in store.journal("r1")] == [("FileWritten", {"rows": 7})]


def test_a_unit_may_have_no_part(store: StateStore) -> None:
    lease = begin(store, 1)
    store.commit_unit(claim(store, lease), [], lease, seconds=0.0)
    assert store.parts("r1") == ()
    assert store.progress("r1").settled


def test_committing_twice_changes_nothing(store: StateStore) -> None:
    lease = begin(store, 1)
    claimed = claim(store, lease)
    for _ in range(2):  # the answer to the first one got lost
        commit(store, claimed, lease, [JournalEvent("ChunkCompleted")])
    assert len(store.parts("r1")) == 1
    assert len(store.journal("r1")) == 1


def test_failing_after_a_commit_is_refused(store: StateStore) -> None:
    lease = begin(store, 1)
    claimed = claim(store, lease)
    commit(store, claimed, lease)
    with pytest.raises(BusyError):
        store.fail_unit(claimed, TRANSIENT, lease, final=True)
    assert store.progress("r1").completed == 1


def test_expired_claim_passes_on_and_its_worker_is_refused(store: StateStore) -> None:
    lease = begin(store, 1)
    stalled = claim(store, lease, ttl_s=0.05)
    time.sleep(0.1)
    successor = claim(store, lease)
    assert (successor.unit, successor.attempt, successor.tries) == (stalled.unit, 2, 2)
    with pytest.raises(BusyError) as caught:
        commit(store, stalled, lease)
    assert caught.value.code == "RIVET_STATE_CLAIM_LOST"
    with pytest.raises(BusyError):
        store.fail_unit(stalled, TRANSIENT, lease, final=True)
    assert store.parts("r1") == ()
    commit(store, successor, lease)
    with pytest.raises(BusyError):
        commit(store, stalled, lease)
    assert [part.attempt for part in store.parts("r1")] == [2]


def test_attempts_run_out(store: StateStore) -> None:
    lease = begin(store, 1, max_chunk_attempts=2)
    for tries in (1, 2):
        claimed = claim(store, lease)
        assert (claimed.tries, claimed.last_try) == (tries, tries == 2)
        store.fail_unit(claimed, {**TRANSIENT, "message": "row 'secret'"}, lease, final=False)
    assert store.claim("r1", "w", lease) is None
    assert not store.has_claimable_later("r1")
    (row,) = store.units("r1")
    assert row.status == "failed"
    assert row.error == TRANSIENT  # its message None
    progress = store.progress("r1")
    assert (progress.failed, progress.waiting, progress.settled) == (1, 0, True)


def test_final_failure_is_not_tried_again(store: StateStore) -> None:
    lease = begin(store, 1)
    store.fail_unit(claim(store, lease), TRANSIENT, lease, final=True)
    assert store.claim("r1", "w", lease) is None
    assert store.progress("r1").settled


def test_backoff_of_a_failed_unit(store: StateStore) -> None:
    lease = begin(store, 1)
    store.fail_unit(claim(store, lease), TRANSIENT, lease, final=False, retry_after_s=0.4)
    assert store.claim("r1", "w", lease) is None
    progress = store.progress("r1")
    assert progress.waiting == 1
    assert not progress.settled
    assert progress.next_in_s is not None
    assert 0 < progress.next_in_s <= 0.4
    time.sleep(0.45)
    assert claim(store, lease).tries == 2


def test_unit_whose_last_worker_vanished_is_failed_as_crashed(store: StateStore) -> None:
    lease = begin(store, 1, max_chunk_attempts=1)
    claim(store, lease, ttl_s=0.05)
    time.sleep(0.1)
    assert store.claim("r1", "w", lease) is None
    (row,) = store.units("r1")
    assert (row.status, row.final) == ("failed", True)
    assert row.error is not None
    assert row.error["class"] == "crashed"


def test_requeue_gives_all_attempts_again_and_no_attempt_number_twice(store: StateStore) -> None:
    lease = begin(store, 2, max_chunk_attempts=1)
    numbers = []
    for _ in range(3):
        claimed = claim(store, lease, only=[0])
        numbers.append(claimed.attempt)
        assert claimed.tries == 1
        store.fail_unit(claimed, TRANSIENT, lease, final=True)
        assert store.requeue("r1", [0, 1], lease) == 1
    assert numbers == [1, 2, 3]


def test_reset_running_gives_units_back_and_refuses_their_workers(store: StateStore) -> None:
    lease = begin(store, 2)
    abandoned = claim(store, lease)
    assert store.reset_running("r1", lease) == 1
    with pytest.raises(BusyError):
        commit(store, abandoned, lease)
    assert commit_all(store, lease) == 2
    assert sorted(part.attempt for part in store.parts("r1")) == [1, 2]


def test_completed_units_stay_completed(store: StateStore) -> None:
    lease = begin(store, 1)
    commit_all(store, lease)
    assert store.reset_running("r1", lease) == 0
    assert store.requeue("r1", [0], lease) == 0
    assert store.claim("r1", "w", lease) is None


def test_a_claim_reads_the_first_entry_of_its_index(store: StateStore) -> None:
    """It costs the same with 10 units and with 100,000, whatever the server's statistics say."""
    begin(store, UNITS)
    how = "EXPLAIN QUERY PLAN" if store._db.backend == "sqlite" else "EXPLAIN"
    parameters = {"run": "r1", "worker": "w", "ttl_ms": 1, "fence_key": KEY, "fence_token": 1}
    with store._db.single() as connection:
        plan = "\n".join(map(str, connection.rows(f"{how} {store._statements.claim}", **parameters)))
    assert "ix_chunk_task_unfinished" in plan
    assert "sort" not in plan.lower()
    assert "temp b-tree" not in plan.lower()
