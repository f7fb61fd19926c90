from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from rivet_dagster.engine.errors import BusyError, InternalError
from rivet_dagster.engine.redact import register_secret
from rivet_dagster.engine.state.models import Boundary, CursorRow, JournalEvent, Lease, RunFinish
from rivet_dagster.engine.state.store import StateStore
from tests.live.state.helpers import (
    KEY,
    PREFIX,
    TRANSIENT,
    begin,
    claim,
    commit,
    commit_all,
    header,
    make_units,
)

DONE = RunFinish(
    "completed",
    metrics={"total_rows": 30, "duration_ms": 1200, "profile": "balanced"},
    cursor=CursorRow(
        "2026-01-02 03:04:05.678901", "updated_at", "timestamptz", "postgres://h/d/public.orders"
    ),
    schema_json='[{"name":"id","type":"int64"}]',
    committed=Boundary("cursor", "r1", cursor="2026-01-02 03:04:05.678901"),
    events=(JournalEvent("RunCompleted", {"status": "success"}),),
)


def take(store: StateStore) -> Lease:
    return store.acquire(KEY, "tester", wait_s=0)


def test_header_comes_back(store: StateStore) -> None:
    lease = take(store)
    sent = header(
        plan_hash="abc",
        parent_run_id="r0",
        consistency="snapshot",
        schema_json="[]",
        source_identity="postgres://h/d",
        max_chunk_attempts=7,
        holder="dagster:1",
    )
    store.begin_run(sent, make_units(1), lease)
    found = store.get_run("r1")
    assert found is not None
    assert found.created_at is not None
    assert found.created_at == found.updated_at
    assert replace(found, created_at=None, updated_at=None) == sent
    assert store.open_run("orders") == found
    assert store.get_run("r2") is None
    assert store.open_run("customers") is None


def test_one_open_run_an_export(store: StateStore) -> None:
    lease = begin(store)
    with pytest.raises(BusyError, match="r1") as caught:
        store.begin_run(header("r2"), make_units(1), lease)
    assert caught.value.code == "RIVET_STATE_RUN_IN_PROGRESS"
    assert store.get_run("r2") is None
    store.interrupt_run("r1", lease)
    store.begin_run(header("r2"), make_units(1), lease)
    other = store.acquire("chunk-run:customers", "tester", wait_s=0)
    store.begin_run(header("r3", "customers"), make_units(1), other)


def test_finish_writes_everything(store: StateStore) -> None:
    lease = begin(store)
    commit_all(store, lease)
    store.finish_run("r1", lease, DONE)
    run = store.latest_run("orders")
    assert run is not None
    assert (run.run_id, run.status) == ("r1", "completed")
    cursor = store.cursor("orders", PREFIX)
    assert cursor is not None
    assert DONE.cursor is not None
    assert replace(cursor, last_run_at=None) == replace(DONE.cursor, run_id="r1")
    assert store.cursor("orders", "/elsewhere") is None
    assert store.accepted_schema("orders") == DONE.schema_json
    committed = store.progression("orders", PREFIX).committed
    assert committed is not None
    assert committed.cursor == DONE.cursor.value
    (figures,) = store.metrics("orders")
    assert (figures["status"], figures["total_rows"], figures["profile"]) == ("completed", 30, "balanced")
    assert (figures["mode"], figures["error"]) == ("chunked", None)
    assert [event.event for event in store.journal("r1")] == ["RunCompleted"]


def test_finishing_twice_changes_nothing(store: StateStore) -> None:
    lease = begin(store)
    commit_all(store, lease)
    for _ in range(2):
        store.finish_run("r1", lease, DONE)
    assert len(store.metrics("orders")) == 1
    assert len(store.journal("r1")) == 1


def test_a_run_with_an_unfinished_unit_cannot_complete(store: StateStore) -> None:
    lease = begin(store, 2)
    commit(store, claim(store, lease), lease)
    with pytest.raises(InternalError, match="1 units"):
        store.finish_run("r1", lease, DONE)
    assert store.cursor("orders", PREFIX) is None
    assert store.open_run("orders") is not None
    assert store.metrics("orders") == ()


def test_finish_under_a_lost_lease_writes_nothing(store: StateStore) -> None:
    lease = begin(store)
    commit_all(store, lease)
    store.release(lease)
    take(store)
    with pytest.raises(BusyError) as caught:
        store.finish_run("r1", lease, DONE)
    assert caught.value.code == "RIVET_STATE_LEASE_LOST"
    assert store.cursor("orders", PREFIX) is None
    assert store.accepted_schema("orders") is None
    assert store.metrics("orders") == ()
    assert store.open_run("orders") is not None


@pytest.mark.parametrize(
    "end",
    [
        lambda s, lease: s.finish_run("r1", lease, RunFinish("failed", error=TRANSIENT)),
        lambda s, lease: s.interrupt_run("r1", lease),
    ],
    ids=["failed", "interrupted"],
)
def test_an_ended_run_takes_no_commit_and_gives_no_claim(
    store: StateStore, end: Callable[[StateStore, Lease], None]
) -> None:
    lease = begin(store)
    claimed = claim(store, lease)
    end(store, lease)
    with pytest.raises(BusyError):
        commit(store, claimed, lease)
    assert store.claim("r1", "w", lease) is None
    with pytest.raises(InternalError, match="cannot become completed"):
        store.finish_run("r1", lease, DONE)
    assert store.parts("r1") == ()


def test_failed_attempts_leave_the_run_open_and_one_row_of_figures(store: StateStore) -> None:
    lease = begin(store)
    claim(store, lease)
    for rows in (1, 2):
        failed = RunFinish("failed", {"total_rows": rows}, error={**TRANSIENT, "message": "secret row"})
        store.record_failure("r1", lease, failed)
    (figures,) = store.metrics("orders")
    assert (figures["status"], figures["total_rows"], figures["error"]) == ("failed", 2, TRANSIENT)
    assert store.progress("r1").running == 0
    commit_all(store, lease)
    store.finish_run("r1", lease, DONE)
    (figures,) = store.metrics("orders")
    assert (figures["status"], figures["total_rows"], figures["error"]) == ("completed", 30, None)
    store.record_failure("never begun", lease, RunFinish("failed"))


def test_carried_units_keep_where_their_parts_came_from(store: StateStore) -> None:
    lease = begin(store, 3)
    commit_all(store, lease)
    store.finish_run("r1", lease, DONE)
    for parent, child in (("r1", "r2"), ("r2", "r3")):
        carried = {i: [p for p in store.parts(parent) if p.chunk_index == i] for i in (0, 2)}
        store.begin_run(header(child, parent_run_id=parent), make_units(3), lease, completed=carried)
        assert [row.status for row in store.units(child)] == ["completed", "pending", "completed"]
        assert store.progress(child).completed == 2
        assert store.units(child)[2].rows == 10
        assert commit_all(store, lease, child) == 1
        store.finish_run(child, lease, DONE)
    parts = store.parts("r3")
    assert [(p.chunk_index, p.run_id, p.origin_run_id) for p in parts] == [
        (0, "r3", "r1"),
        (1, "r3", "r3"),
        (2, "r3", "r1"),
    ]
    names = store.all_part_names("orders", PREFIX)
    assert len(names) == 5
    assert names[parts[0].file_name] == ("r3", "completed")
    assert names[next(p.file_name for p in store.parts("r2") if p.chunk_index == 1)] == ("r2", "completed")
    assert store.all_part_names("orders", "/elsewhere") == {}


def test_latest_run_by_status(store: StateStore) -> None:
    lease = begin(store)
    commit_all(store, lease)
    store.finish_run("r1", lease, DONE)
    store.begin_run(header("r2"), make_units(1), lease)
    store.interrupt_run("r2", lease)
    store.begin_run(header("r3"), make_units(1), lease)
    found = [store.latest_run("orders", s) for s in (("completed",), ("interrupted",), ("failed",))]
    assert [run and run.run_id for run in found] == ["r1", "r2", None]
    assert store.latest_run("orders", ("completed",), prefix="/elsewhere") is None


def test_journal_keeps_the_order_and_no_secret(store: StateStore) -> None:
    register_secret("hunter2-hunter2")
    lease = take(store)
    started = [
        JournalEvent("PlanResolved", {"n": 1}),
        JournalEvent("PlanWarning", {"url": "u:hunter2-hunter2@h"}),
    ]
    store.begin_run(header(), make_units(20), lease, events=started)
    expected = ["PlanResolved", "PlanWarning"]
    while (claimed := store.claim("r1", "w", lease)) is not None:
        name = f"unit {claimed.unit.index}"
        if claimed.unit.index % 3 == 0 and claimed.tries == 1:
            store.fail_unit(claimed, TRANSIENT, lease, final=False, events=[JournalEvent(f"{name} failed")])
            expected.append(f"{name} failed")
            continue
        commit(store, claimed, lease, [JournalEvent(f"{name} started"), JournalEvent(f"{name} done")])
        expected += [f"{name} started", f"{name} done"]
    store.add_journal("r1", lease, [JournalEvent("Warning")])
    store.finish_run("r1", lease, DONE)
    rows = store.journal("r1")
    assert [row.event for row in rows] == [*expected, "Warning", "RunCompleted"]
    assert [row.seq for row in rows] == sorted({row.seq for row in rows})
    assert rows[1].detail == {"url": "u:***@h"}


def test_runs_are_listed_and_found_by_an_event(store: StateStore) -> None:
    register_secret("c4nary-value")
    event = JournalEvent("PlanApplied", {"plan_id": "plan_1", "note": "c4nary-value"})
    lease = take(store)
    store.begin_run(header("r1"), make_units(1), lease, events=(event,))
    store.interrupt_run("r1", lease)
    store.begin_run(header("r2"), make_units(1), lease, events=(event,))
    assert [run.run_id for run in store.runs("orders", limit=5)] == ["r2", "r1"]
    assert [run.run_id for run in store.runs("orders", limit=5, open_only=True)] == ["r2"]
    assert [run.run_id for run in store.runs("orders", limit=1)] == ["r2"]
    assert store.runs_with_event("orders", event) == (("r2", "in_progress"), ("r1", "interrupted"))
    assert store.runs_with_event("orders", JournalEvent("PlanApplied", {"plan_id": "plan_2"})) == ()
    assert store.runs_with_event("customers", event) == ()
    assert "c4nary" not in str(store.journal("r1"))
