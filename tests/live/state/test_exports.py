from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from rivet_dagster.engine.errors import BusyError
from rivet_dagster.engine.state.exports import cursor_before
from rivet_dagster.engine.state.models import Boundary, CursorRow, RunAggregate, RunFinish
from rivet_dagster.engine.state.store import StateStore
from tests.live.state.helpers import PREFIX, begin, commit_all, header

_numbers = itertools.count()
_cursors = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8),
    st.sampled_from(["9", "10", "nan", "Infinity", "2026-01-01", "2026-01-01 10:00", "１０"]),
)


def finish(store: StateStore, export: str, boundary: Boundary) -> None:
    lease = store.acquire(f"chunk-run:{export}", "t", wait_s=0)
    store.begin_run(header(boundary.run_id, export), [], lease)
    store.finish_run(boundary.run_id, lease, RunFinish("completed", committed=boundary))
    store.release(lease)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(cursors=st.lists(_cursors, min_size=1, max_size=5))
def test_committed_cursor_never_goes_back(store: StateStore, cursors: list[str]) -> None:
    export = f"e{next(_numbers)}"
    best: str | None = None
    for i, cursor in enumerate(cursors):
        finish(store, export, Boundary("cursor", f"{export}-{i}", cursor=cursor))
        best = cursor if best is None or cursor_before(best, cursor) else best
        committed = store.progression(export, PREFIX).committed
        assert committed is not None
        assert committed.cursor == best


@given(left=st.decimals(allow_nan=False, allow_infinity=False), right=st.integers())
def test_numbers_compare_as_numbers(left: Decimal, right: int) -> None:
    assert cursor_before(str(left), str(right)) == (left < right)


@pytest.mark.parametrize(
    ("left", "right"),
    [("9", "10"), ("-10", "-9"), ("a", "b"), ("10", "9x"), ("Z", "é"), ("5", "nan"), ("1e2", "101")],
)
def test_order_of_cursors(left: str, right: str) -> None:
    assert cursor_before(left, right)
    assert not cursor_before(right, left)
    assert not cursor_before(left, left)


def test_chunk_boundary_goes_forward_within_a_run_and_starts_anew_with_the_next(store: StateStore) -> None:
    seen = []
    for run, index in (("r1", 9), ("r2", 3)):
        finish(store, "orders", Boundary("chunk", run, chunk_index=index))
        committed = store.progression("orders", PREFIX).committed
        assert committed is not None
        seen.append((committed.run_id, committed.chunk_index))
        assert committed.cursor is None
    assert seen == [("r1", 9), ("r2", 3)]


def test_verified_needs_a_clean_comparison_and_stays_behind_committed(store: StateStore) -> None:
    def verify(cursor: str, mismatches: int = 0, unknowns: int = 0) -> bool:
        claimed = Boundary("cursor", "r1", cursor=cursor)
        return store.set_verified("orders", PREFIX, claimed, mismatches=mismatches, unknowns=unknowns)

    assert not verify("1")  # nothing is committed
    finish(store, "orders", Boundary("cursor", "r1", cursor="100"))
    assert not verify("50", mismatches=1)
    assert not verify("50", unknowns=1)
    assert not verify("101")
    assert store.progression("orders", PREFIX).verified is None
    assert verify("50")
    assert verify("9")
    verified = store.progression("orders", PREFIX).verified
    assert verified is not None
    assert verified.cursor == "50"
    assert verified.at is not None
    other = Boundary("chunk", "r1", chunk_index=1)
    assert not store.set_verified("orders", PREFIX, other, mismatches=0, unknowns=0)
    assert verify("100")


def test_a_boundary_is_one_thing() -> None:
    for wrong in ({"cursor": "1", "chunk_index": 1}, {}, {"chunk_index": 1}):
        with pytest.raises(ValueError, match="cursor"):
            Boundary("cursor", "r1", **wrong)


def test_reset_cursor(store: StateStore) -> None:
    lease = begin(store)
    commit_all(store, lease)
    cursor, boundary = CursorRow("5", "id", "int8"), Boundary("cursor", "r1", cursor="5")
    store.finish_run("r1", lease, RunFinish("completed", cursor=cursor, committed=boundary))
    assert not store.reset_cursor("orders", "/elsewhere", lease)
    assert store.cursor("orders", PREFIX) is not None
    assert store.reset_cursor("orders", PREFIX, lease)
    assert store.cursor("orders", PREFIX) is None
    assert store.progression("orders", PREFIX).committed is None
    store.release(lease)
    with pytest.raises(BusyError):
        store.reset_cursor("orders", PREFIX, lease)


def test_metrics_newest_first(store: StateStore) -> None:
    for i in range(4):
        finish(store, "orders", Boundary("chunk", f"r{i}", chunk_index=i))
    assert [row["run_id"] for row in store.metrics("orders", limit=3)] == ["r3", "r2", "r1"]
    assert abs(store.metrics("orders")[0]["run_at"] - datetime.now(UTC)) < timedelta(minutes=1)


def test_aggregate(store: StateStore) -> None:
    start = datetime(2026, 1, 2, tzinfo=UTC)
    end = start + timedelta(seconds=2)
    store.record_aggregate(
        RunAggregate(
            "agg_1", start, end, "/x/rivet.yaml", "sequential", 2, 1, 1, 0, 30, 3, 2**40, ({"export": "a"},)
        )
    )
    with store._db.single() as connection:
        row = connection.execute(text("SELECT * FROM run_aggregate")).one()
    assert (row.run_aggregate_id, row.duration_ms, row.total_bytes) == ("agg_1", 2000, 2**40)
    assert row.details_json == '[{"export":"a"}]'
    (kept,) = store.aggregates()
    assert (kept["started_at"], kept["finished_at"], kept["per_export"]) == (start, end, [{"export": "a"}])
