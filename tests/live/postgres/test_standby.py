"""A hot standby cancels reads that are in the way of what it replays; they go on in smaller pieces."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from rivet_dagster.engine.errors import TransientError
from rivet_dagster.engine.run import workers
from rivet_dagster.engine.run.events import RunNote, UnitCommitted, UnitFailed
from rivet_dagster.engine.sources.postgres import pieces
from tests.live.postgres.rig import Rig, read_parquet, source_rows
from tests.services.postgres import FOLLOWED, TestDatabase, TestServer, database, postgres_server, standby

ROWS: Final = 1_200
ROW_S: Final = 0.002
COLUMNS: Final = "id, n, word"
RANGES: Final[dict[str, Any]] = {
    "query": f"SELECT {COLUMNS} FROM crawl",
    "table": None,
    "mode": "chunked",
    "chunk_column": "id",
    "chunk_size": ROWS // 2,
}


@pytest.fixture(scope="module")
def primary() -> Iterator[TestServer]:
    with postgres_server(17, settings=(*FOLLOWED, "autovacuum=off")) as server:
        yield server


@pytest.fixture(scope="module")
def replica(primary: TestServer) -> Iterator[TestServer]:
    with standby(primary, settings=("max_standby_streaming_delay=100ms",)) as server:
        yield server


@pytest.fixture
def written(primary: TestServer) -> Iterator[TestDatabase]:
    """The primary's database: a table, and a view of it that is slow to read."""
    with database(primary) as made:
        made.execute(
            "CREATE TABLE things (id int PRIMARY KEY, n int, word text)",
            f"INSERT INTO things SELECT g, g, g::text FROM generate_series(1, {ROWS}) g",
            "ANALYZE things",
            "CREATE FUNCTION slow(int) RETURNS int LANGUAGE plpgsql STABLE AS"
            f" $$ BEGIN PERFORM pg_sleep({ROW_S}); RETURN $1; END $$",
            "CREATE VIEW crawl AS SELECT id, slow(n) AS n, word FROM things",
        )
        yield made


@pytest.fixture
def replicated(written: TestDatabase, replica: TestServer, tmp_path: Path) -> Iterator[Rig]:
    """Reads the standby's copy of ``written``."""
    deadline = time.monotonic() + 20
    with written.connect() as connection:
        at = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
    with replica.connect() as connection:
        while connection.execute("SELECT pg_last_wal_replay_lsn() >= %s", at).fetchone() != (True,):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    rig = Rig(TestDatabase(replica, written.name), tmp_path)
    rig.tuning = {"profile": "fast", "max_retries": 0}
    yield rig
    rig.close()
    rig.assert_no_connections()


class Vacuuming:
    """Removes row versions on the primary, on and on, every ``every`` seconds; values stay as they are."""

    def __init__(self, db: TestDatabase, every: float) -> None:
        self._db, self._every = db, every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self._db.connect() as connection:
            while not self._stop.wait(self._every):
                connection.execute("UPDATE things SET n = n WHERE id % 5 = 0")
                connection.execute("VACUUM things")

    def __enter__(self) -> Vacuuming:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_a_chunk_that_recovery_cancels_is_read_in_pieces(written: TestDatabase, replicated: Rig) -> None:
    """No statement of a whole chunk lives long enough, and not one attempt is allowed to fail."""
    replicated.configure(RANGES)
    with Vacuuming(written, every=0.3):
        outcome = replicated.run()
    events = replicated.events
    assert not [e for e in events if isinstance(e, UnitFailed)]
    assert sum("in pieces" in e.text for e in events if isinstance(e, RunNote)) >= 2
    assert max(e.attempt for e in events if isinstance(e, UnitCommitted)) == 2
    assert outcome.rows == ROWS
    assert read_parquet(replicated.parts(), COLUMNS) == source_rows(written, COLUMNS)


def test_a_session_that_recovery_ends_between_statements(written: TestDatabase, replicated: Rig) -> None:
    """All rows have been sent and their reader takes its time: no statement is there to be cancelled."""
    ranges = {**RANGES, "query": None, "table": "things", "chunk_size": 10_000}
    groups = {"row_group_strategy": "fixed_rows", "row_group_rows": 100}
    tuning = {"throttle_ms": 100, "batch_size": 100, "max_retries": 0}
    replicated.configure({**ranges, "parquet": groups, "tuning": tuning})
    with Vacuuming(written, every=0.2):
        replicated.run()
    assert [e.attempt for e in replicated.events if isinstance(e, UnitCommitted)] == [2]
    assert replicated.read() == source_rows(written)


def test_a_read_that_recovery_never_lets_through_ends(
    written: TestDatabase, replicated: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "_PAUSE_S", 0.001)
    monkeypatch.setattr(workers, "backoff_s", lambda *_: 0.01)
    written.execute(
        "CREATE OR REPLACE FUNCTION slow(int) RETURNS int LANGUAGE plpgsql STABLE AS"
        " $$ BEGIN PERFORM pg_sleep(1.5); RETURN $1; END $$"
    )
    replicated.tuning = {"profile": "fast", "max_retries": 1}
    replicated.configure(RANGES)
    with Vacuuming(written, every=0.1), pytest.raises(TransientError) as caught:
        replicated.run()
    error = caught.value
    assert (error.code, error.sqlstate, error.retryable) == ("RIVET_SOURCE_CONFLICT", "40001", True)
    assert {e.attempt for e in replicated.events if isinstance(e, UnitFailed)} == {2, 3}


def test_a_run_of_one_snapshot_ends_with_it(written: TestDatabase, replicated: Rig) -> None:
    """The snapshot is what recovery wants gone: another attempt plans anew."""
    replicated.configure({"mode": "full", "table": "crawl"})
    with Vacuuming(written, every=0.3), pytest.raises(TransientError) as caught:
        replicated.run()
    assert caught.value.code in {"RIVET_SOURCE_SNAPSHOT_LOST", "RIVET_SOURCE_CONFLICT"}
    replicated.configure({"mode": "full", "table": "things"}).run()
    assert replicated.read() == source_rows(written)
