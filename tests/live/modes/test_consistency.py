"""``consistency: snapshot``: all units of a chunked run see one instant of the source."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from rivet_dagster.engine.errors import TransientError
from tests.live.modes.kit import Project, background

ACCOUNTS = 400
RANGE = {"mode": "chunked", "chunk_column": "id", "chunk_size": 20, "parallel": 4}
KEY = {"mode": "chunked", "chunk_by_key": "id", "chunk_size": 20, "parallel": 4}


def accounts(project: Project) -> None:
    project.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, balance bigint NOT NULL)",
        f"INSERT INTO t SELECT n, 1000 FROM generate_series(1, {ACCOUNTS}) n",
        "ANALYZE t",
    )


def transfers(project: Project, stop: threading.Event) -> None:
    """Money moves between far ends of the table, so that units at different times disagree."""
    rng = random.Random(7)
    with project.db.connect() as connection:
        while not stop.is_set():
            amount, low, high = rng.randint(1, 9), rng.randint(1, 40), rng.randint(ACCOUNTS - 40, ACCOUNTS)
            with connection.transaction():
                connection.execute(
                    "UPDATE t SET balance = balance + CASE WHEN id = %s THEN %s::bigint ELSE -%s::bigint END"
                    " WHERE id IN (%s, %s)",
                    (high, amount, amount, low, high),
                )


def one_transfer(project: Project) -> None:
    project.db.execute(
        f"UPDATE t SET balance = balance + CASE WHEN id = {ACCOUNTS} THEN 500 ELSE -500 END"
        f" WHERE id IN (1, {ACCOUNTS})",
        f"INSERT INTO t VALUES ({ACCOUNTS + 1}, 5), (0, 5)",
    )


def total(project: Project) -> tuple[int, int]:
    rows = project.rows("id", "balance")
    assert set(rows.values()) <= {1}
    return len(rows), sum(balance for _, balance in rows)


@pytest.mark.parametrize("keys", [RANGE, KEY], ids=["range", "key"])
def test_sums_hold_under_concurrent_transfers(project: Project, keys: dict[str, Any]) -> None:
    accounts(project)
    with background(lambda stop: transfers(project, stop)):
        for _ in range(3):
            project.run(**keys, consistency="snapshot")
            assert total(project) == (ACCOUNTS, 1000 * ACCOUNTS)
    assert project.manifest().additions is not None
    assert project.manifest().additions.consistency == "snapshot"  # type: ignore[union-attr]


@pytest.mark.parametrize("keys", [RANGE, KEY], ids=["range", "key"])
def test_what_is_committed_after_planning(project: Project, keys: dict[str, Any]) -> None:
    accounts(project)
    ran = project.run(lambda: one_transfer(project), **keys, consistency="snapshot")
    assert ran.outcome.status == "success"
    assert project.rows("id", "balance")[(1, 1000)] == 1
    assert total(project) == (ACCOUNTS, 1000 * ACCOUNTS)


def test_chunked_reads_a_snapshot_a_unit_by_default(project: Project) -> None:
    accounts(project)
    project.run(lambda: one_transfer(project), **KEY)
    assert project.rows("id", "balance")[(1, 500)] == 1
    assert project.manifest().additions.consistency == "chunk"  # type: ignore[union-attr]


@pytest.mark.parametrize("keys", [RANGE, KEY], ids=["range", "key"])
def test_a_truncated_table_stops_the_run(project: Project, keys: dict[str, Any]) -> None:
    """TRUNCATE is not seen by a snapshot's rules: an older snapshot finds the table empty."""
    accounts(project)
    with pytest.raises(TransientError) as caught:
        project.run(
            lambda: project.db.execute("TRUNCATE t"),
            **keys,
            consistency="snapshot",
            tuning={"max_retries": 0},
        )
    assert caught.value.code == "RIVET_SOURCE_SNAPSHOT_LOST"


def test_a_truncated_leaf_stops_the_run(project: Project) -> None:
    project.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, balance int) PARTITION BY RANGE (id)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (100) TO (200)",
        "INSERT INTO t SELECT n, n FROM generate_series(0, 199) n",
    )
    with pytest.raises(TransientError) as caught:
        project.run(
            lambda: project.db.execute("TRUNCATE t2"),
            **KEY,
            consistency="snapshot",
            tuning={"max_retries": 0},
        )
    assert caught.value.code == "RIVET_SOURCE_SNAPSHOT_LOST"
