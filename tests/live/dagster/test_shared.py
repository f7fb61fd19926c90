"""Exports that several steps share: under executors of one process, of many, and of many hosts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import dagster as dg
import psycopg
import pytest

from tests.live.dagster.conftest import HEAD, Project, plain
from tests.services.postgres import TestServer, database

CHUNKS = dg.AssetKey(["rivet", "orders", "chunks"])
TABLE = dg.AssetKey(["rivet", "orders"])
GRID = [f"{low:012d}" for low in range(0, 501, 20)]

SHARED = """
exports:
  - name: orders
    table: public.orders
    mode: chunked
    chunk_column: id
    chunk_size: 20
    format: parquet
    destination: {type: local, path: ./out/orders}
    tuning: {batch_size: 5, throttle_ms: 60}
    dagster: {workers: 3}
"""


def head(executor: str) -> str:
    return f"{HEAD}\ndagster:\n  executor: {executor}\n"


@pytest.fixture
def state_url(pg: TestServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with database(pg) as state:
        monkeypatch.setenv("RIVET_STATE_URL", state.url)
        monkeypatch.setenv("RIVET_LEASE_TTL_S", "3")
        yield state.url


def workers(url: str) -> Counter[str]:
    """Process -> units that it did, all runs together."""
    with psycopg.connect(url) as state:
        rows = state.execute("SELECT claimed_by FROM chunk_task WHERE status = 'completed'").fetchall()
    return Counter(str(worker).rpartition("/")[0] for (worker,) in rows)


def check_told(instance: dg.DagsterInstance, run_id: str) -> None:
    """Each partition once, the table once, and its checks."""
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    records = instance.get_records_for_run(run_id, of_type=kind).records
    found = [r.event_log_entry.asset_materialization for r in records]
    chunks = [m.partition for m in found if m is not None and m.asset_key == CHUNKS]
    assert sorted(map(str, chunks)) == GRID
    (table,) = [m for m in found if m is not None and m.asset_key == TABLE]
    assert plain(table.metadata)["rows"] == 500
    kind = dg.DagsterEventType.ASSET_CHECK_EVALUATION
    events = [
        r.event_log_entry.dagster_event for r in instance.get_records_for_run(run_id, of_type=kind).records
    ]
    checks = [e.asset_check_evaluation_data for e in events if e is not None]
    assert {(c.check_name, c.passed) for c in checks} == {("drift", True), ("validate", True)}


def test_in_one_process_the_lead_does_everything(project: Project, state_url: str) -> None:
    project.write(SHARED, head("{in_process: {}}"))
    started = time.monotonic()
    result = project.run("export_orders")
    assert result.success
    check_told(project.instance, result.run_id)
    assert len(workers(state_url)) == 1
    assert project.rows("orders") == 500
    assert time.monotonic() - started < 60
