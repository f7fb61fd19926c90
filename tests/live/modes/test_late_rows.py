"""``late_rows``: each committed row version is read once, whenever its transaction ended."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import psycopg
import pytest

from rivet_dagster.engine.errors import ConfigError, RefusalError
from rivet_dagster.engine.sources.postgres.predicate import version_sql
from tests.live.modes.kit import Project, background
from tests.services.postgres import TestDatabase

LATE: dict[str, Any] = {"mode": "incremental", "cursor_column": "at", "late_rows": "1h"}
TABLE = "CREATE TABLE t (n int, at timestamptz)"


def test_late_commits_ties_and_savepoints(project: Project) -> None:
    project.db.execute(
        TABLE, "CREATE INDEX ON t (at)", "INSERT INTO t VALUES (0, now() - interval '1 min'), (9, NULL)"
    )
    with project.db.connect() as late, project.db.connect() as nested:
        late.execute("BEGIN; INSERT INTO t VALUES (1, now())")
        nested.execute("BEGIN; SAVEPOINT a; INSERT INTO t VALUES (2, now()); RELEASE a")
        nested.execute("SAVEPOINT b; INSERT INTO t VALUES (3, now() - interval '10 min'); RELEASE b")
        project.db.execute("INSERT INTO t VALUES (4, now())")
        project.run(**LATE)
        # 4 is younger than a transaction that is open: it waits with it
        assert project.rows("n") == {0: 1, 9: 1}
        project.db.execute("INSERT INTO t VALUES (5, now())")
        assert project.run().outcome.status == "skipped"
        late.execute("COMMIT")
        project.run()
        assert project.rows("n") == {0: 1, 9: 1, 1: 1}
        nested.execute("COMMIT")
    project.db.execute("INSERT INTO t SELECT 6, max(at) FROM t")  # a tie of the watermark to come
    project.run()
    assert project.rows("n") == dict.fromkeys([*range(7), 9], 1)
    project.db.execute(
        "INSERT INTO t SELECT 7, max(at) FROM t", "INSERT INTO t VALUES (8, now() - interval '50 min')"
    )
    ran = project.run()
    assert project.rows("n") == dict.fromkeys(range(10), 1)
    assert ran.outcome.rows == 2
    assert project.run().outcome.status == "skipped"


def test_an_update_that_leaves_the_cursor_is_a_new_version(project: Project) -> None:
    project.db.execute(
        "CREATE TABLE t (n int, at timestamptz, v int)", "INSERT INTO t VALUES (1, now(), 1), (2, now(), 1)"
    )
    project.run(**LATE)
    project.db.execute("UPDATE t SET v = 2 WHERE n = 1")
    project.run()
    assert project.rows("n", "v") == {(1, 1): 1, (2, 1): 1, (1, 2): 1}


def test_rows_below_the_window_stay_away(project: Project) -> None:
    project.db.execute(TABLE, "INSERT INTO t VALUES (1, '2024-01-02 12:00+00')")
    project.run(**LATE)
    project.db.execute(
        "INSERT INTO t VALUES (2, '2024-01-02 11:00+00'), (3, '2024-01-02 11:00:00.000001+00')"
    )
    project.run()
    assert project.rows("n") == {1: 1, 3: 1}


def test_dates_need_not_wait(project: Project) -> None:
    project.db.execute(
        "CREATE TABLE t (n int, at date)", "INSERT INTO t VALUES (1, current_date), (2, current_date)"
    )
    project.run(**LATE)
    project.db.execute("INSERT INTO t VALUES (3, current_date), (4, current_date - 1)")
    project.run()
    assert project.rows("n") == {1: 1, 2: 1, 3: 1, 4: 1}
    assert project.run().outcome.status == "skipped"


def test_a_sensor_sees_late_rows(project: Project) -> None:
    project.db.execute(TABLE, "INSERT INTO t VALUES (1, now())")
    tokens = []
    for row in range(2, 5):
        project.run(**LATE)
        with project.engine() as engine:
            assert engine.source_moved("o") is None
            project.db.execute(f"INSERT INTO t SELECT {row}, max(at) - interval '1 min' FROM t")
            tokens.append(engine.source_moved("o"))
    assert None not in tokens
    assert len(set(tokens)) == 3


def test_partitions(every_db: TestDatabase, project: Project) -> None:
    project.db = every_db
    every_db.execute(
        "CREATE TABLE t (n int, at timestamp) PARTITION BY HASH (n)",
        "CREATE TABLE t0 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        "INSERT INTO t SELECT i, '2024-01-01' FROM generate_series(1, 20) i",
    )
    project.run(**LATE)
    every_db.execute("INSERT INTO t SELECT i, '2024-01-01' FROM generate_series(21, 30) i")
    project.run()
    assert project.rows("n") == dict.fromkeys(range(1, 31), 1)


def test_turned_on_later(project: Project) -> None:
    project.db.execute(TABLE, "INSERT INTO t VALUES (1, '2024-01-01')")
    project.run(mode="incremental", cursor_column="at")
    project.db.execute("INSERT INTO t VALUES (2, '2024-01-01'), (3, '2024-01-02')")
    ran = project.run(late_rows="1d")
    assert "before this run are not looked for" in ran.notes
    project.db.execute("INSERT INTO t VALUES (4, '2024-01-02'), (5, '2024-01-01 00:00:01')")
    project.run()
    assert project.rows("n") == {1: 1, 3: 1, 4: 1, 5: 1}


def write(db: TestDatabase, stop: threading.Event, writer: int, written: list[int]) -> None:
    """Transactions of any length, some in savepoints, some rolled back, with times before their commit."""
    rng = random.Random(writer)
    with db.connect() as connection:
        for step in range(10_000):
            if stop.is_set():
                return
            rows = [writer * 1_000_000 + step * 10 + i for i in range(rng.randint(1, 3))]
            kept = rng.random() < 0.8
            connection.execute("BEGIN")
            for row in rows:
                if rng.random() < 0.5:
                    connection.execute("SAVEPOINT s")
                connection.execute(
                    "INSERT INTO t VALUES (%s, clock_timestamp() - %s * interval '1 s')", (row, rng.random())
                )
                time.sleep(rng.random() * 0.03)
            connection.execute("COMMIT" if kept else "ROLLBACK")
            written += rows if kept else []


def test_every_row_once_under_concurrent_writers(project: Project) -> None:
    project.db.execute(TABLE, "CREATE INDEX ON t (at)")
    written: list[list[int]] = [[], [], []]

    def all_writers(stop: threading.Event) -> None:
        threads = [
            threading.Thread(target=write, args=(project.db, stop, n, mine)) for n, mine in enumerate(written)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with background(all_writers):
        for _ in range(12):
            project.run(**LATE)
    project.run()
    expected = [row for mine in written for row in mine]
    assert len(expected) > 20
    assert project.rows("n") == dict.fromkeys(expected, 1)


@pytest.mark.parametrize(
    ("xmin", "following", "full"),
    [
        (1000, 2000, 1000),
        (2, 2000, 0),
        (2**32 - 5, 2**32 + 10, 2**32 - 5),  # before the counter's turn
        (7, 2**32 + 10, 2**32 + 7),
        (10, 5 * 2**32 + 9, 4 * 2**32 + 10),  # one turn back at most
        (2**32 - 1, 5 * 2**32 + 3, 5 * 2**32 - 1),
        (1, 5 * 2**32 + 3, 0),
    ],
)
def test_ids_of_64_bits(db: TestDatabase, xmin: int, following: int, full: int) -> None:
    def inside(low: int | None, high: int) -> bool:
        versions = {"next": following, "low": low, "high": high}
        with db.connect() as connection:
            found = connection.execute(
                f"SELECT {version_sql(versions)} FROM (SELECT '{xmin}'::xid AS xmin) AS q".encode()
            ).fetchone()
        return found == (True,)

    assert inside(full, full + 1)
    assert inside(None, full + 1)
    assert not inside(full + 1, full + 2)
    assert not inside(None, full)


def test_another_server(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.db.execute(TABLE, "INSERT INTO t VALUES (1, '2024-01-01')")
    with psycopg.connect(project.db.dsn, autocommit=True) as connection:
        for _ in range(20):
            connection.execute("SELECT txid_current()")
    project.run(**LATE)
    monkeypatch.setattr(
        "rivet_dagster.engine.run.resume.versions_read", lambda *_: {"high": 10**15, "cluster": None}
    )
    project.db.execute("INSERT INTO t VALUES (2, '2024-01-02')")
    with pytest.raises(RefusalError) as caught:
        project.run()
    assert caught.value.code == "RIVET_STATE_CURSOR_OWNER_MISMATCH"


@pytest.mark.parametrize(
    "what", ["CREATE VIEW t AS SELECT 1 AS n, now() AS at", "CREATE TABLE t (n int, at int)"]
)
def test_where_versions_are_not_known(project: Project, what: str) -> None:
    project.db.execute(what)
    with pytest.raises(ConfigError) as caught:
        project.run(**LATE)
    assert caught.value.field == "late_rows"
