"""Whoever waits to alter a table that is being read gets it soon, and the run goes on afterwards."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import pytest

from rivet_dagster.engine.errors import SchemaDriftError, TransientError
from rivet_dagster.engine.run import pacing, workers
from rivet_dagster.engine.run.events import RunNote, UnitCommitted, UnitFailed
from tests.live.postgres.rig import EXPORT, Rig, read_parquet, source_rows

ROWS: Final = 1_000
SLOW_S: Final = 20.0  # what the chunk takes that the ALTER would wait for
COLUMNS: Final = "id, n, word"
CHUNKED: Final[dict[str, Any]] = {
    "query": f"SELECT {COLUMNS} FROM crawl",
    "table": None,
    "mode": "chunked",
    "chunk_column": "id",
    "chunk_size": 500,
}
#: Read in one statement, pauses and all, under one snapshot.
ONE_PIECE: Final[dict[str, Any]] = {"mode": "full", "table": None, "query": f"SELECT {COLUMNS} FROM things"}
#: Batches of 50 rows, a pause after each: the server has long sent what the reader still holds a lock for.
SLOWLY: Final[dict[str, Any]] = {
    "parquet": {"row_group_strategy": "fixed_rows", "row_group_rows": 50},
    "tuning": {"throttle_ms": 200, "batch_size": 50},
}


@pytest.fixture(autouse=True)
def _things(rig: Rig) -> None:
    """A table, and a view of it that is slow until ``hurry``."""
    rig.db.execute(
        "CREATE TABLE things (id int PRIMARY KEY, n int, word text)",
        f"INSERT INTO things SELECT g, g, g::text FROM generate_series(1, {ROWS}) g",
        "ANALYZE things",
        "CREATE SEQUENCE speed",
        "CREATE FUNCTION slow(int) RETURNS int LANGUAGE plpgsql STABLE AS $$ BEGIN"
        f"  IF (SELECT NOT is_called FROM speed) THEN PERFORM pg_sleep({SLOW_S / ROWS}); END IF;"
        "  RETURN $1; END $$",
        "CREATE VIEW crawl AS SELECT id, slow(n) AS n, word FROM things",
    )


@pytest.fixture(autouse=True)
def _looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "INTERVAL_S", 0.2)
    monkeypatch.setattr(workers, "backoff_s", lambda *_: 0.01)


class Altering:
    """Runs statements as soon as a read of the table is under way; ``seconds`` is how long they took."""

    def __init__(self, rig: Rig, *statements: str) -> None:
        self._rig, self._statements = rig, statements
        self.seconds = 0.0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self._rig.db.connect() as connection:
            query = (
                "SELECT 1 FROM pg_locks JOIN pg_stat_activity USING (pid)"
                " WHERE relation = 'things'::regclass AND granted AND query LIKE 'COPY%'"
            )
            while connection.execute(query).fetchone() is None:
                time.sleep(0.02)
            started = time.monotonic()
            for statement in self._statements:
                connection.execute(statement.encode())
            self.seconds = time.monotonic() - started
            connection.execute("SELECT nextval('speed')")

    def __enter__(self) -> Altering:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()


ADDED: Final = "ALTER TABLE things ADD COLUMN later int"
REWRITTEN: Final = "ALTER TABLE things ADD COLUMN luck float DEFAULT random()"


@pytest.mark.parametrize("change", [ADDED, REWRITTEN])
def test_an_alter_does_not_wait_for_a_slow_chunk(rig: Rig, change: str) -> None:
    rig.tuning = {"profile": "fast", "max_retries": 0}
    rig.configure({**CHUNKED, "parallel": 2})
    with rig.planned() as (session, _), Altering(rig, change) as altering:
        events = list(session.execute())
        outcome = session.finalize()
    assert 0 < altering.seconds < SLOW_S / 4
    assert not [e for e in events if isinstance(e, UnitFailed)]
    again = sum(e.attempt - 1 for e in events if isinstance(e, UnitCommitted))
    # the other worker may not have begun before it was held back, or have begun again too soon
    assert 1 <= again <= 3
    assert outcome.details["pace"] == {"yields": again}
    assert sum("gave way" in e.text for e in events if isinstance(e, RunNote)) == again
    assert read_parquet(rig.parts(), COLUMNS) == source_rows(rig.db, COLUMNS)
    assert {row.attempts for row in rig.engine.state.units(outcome.run_id)} == {1}


def test_a_queue_behind_the_alter_moves_on(rig: Rig) -> None:
    """The lock that an ALTER waits for stops everybody who comes after it."""
    rig.configure(CHUNKED)
    with rig.planned() as (session, _), Altering(rig, ADDED):
        reads = session.execute()
        while not (event := next(reads)) or not isinstance(event, RunNote):
            pass
        started = time.monotonic()
        rig.db.execute("UPDATE things SET n = n + 1 WHERE id = 7")
        assert time.monotonic() - started < SLOW_S / 4
        for _ in reads:
            pass
        session.finalize()


def test_the_changed_shape_is_what_the_next_attempt_meets(rig: Rig) -> None:
    rig.db.execute("SELECT nextval('speed')")
    chunked = {**CHUNKED, "query": "SELECT * FROM crawl", "on_schema_drift": "fail"}
    rig.configure(chunked).run()
    rig.db.execute("SELECT setval('speed', 1, false)")
    retype = "ALTER TABLE things ALTER id TYPE bigint"
    change = f"DROP VIEW crawl; {retype}; CREATE VIEW crawl AS SELECT id, slow(n) AS n, word FROM things"
    with Altering(rig, change), pytest.raises(TransientError) as caught:
        rig.run()
    assert caught.value.code == "RIVET_SOURCE_SCHEMA_CHANGED"
    with pytest.raises(SchemaDriftError):
        rig.run()


def test_a_run_of_one_snapshot_goes_on_in_it(rig: Rig) -> None:
    rig.configure({**ONE_PIECE, **SLOWLY})
    before = source_rows(rig.db, COLUMNS)
    insert = "INSERT INTO things SELECT g, g, 'new' FROM generate_series(2001, 2100) g"
    with rig.planned() as (session, _), Altering(rig, ADDED, insert) as altering:
        started = time.monotonic()
        failed = []
        for event in session.execute():
            failed += [event] if isinstance(event, UnitFailed) else []
            rig.events.append(event)
        assert session.finalize().details["pace"] == {"yields": 1}
    assert altering.seconds < 2 < time.monotonic() - started
    assert not failed
    assert read_parquet(rig.parts(), COLUMNS) == before


def test_a_rewrite_ends_the_snapshot_and_the_next_run_plans_anew(rig: Rig) -> None:
    rig.configure({**ONE_PIECE, **SLOWLY})
    with Altering(rig, REWRITTEN) as altering:
        error = rig.failure()
    assert altering.seconds < 2
    assert (error.code, error.retryable) == ("RIVET_SOURCE_SNAPSHOT_LOST", True)
    rig.configure({"mode": "full", "table": EXPORT}).run()
    assert rig.read() == source_rows(rig.db)


def test_giving_way_again_and_again_ends(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_UNCOUNTED", 1)
    rig.tuning = {"profile": "fast", "max_retries": 1}
    rig.configure(CHUNKED)
    stop = threading.Event()

    def alter_on_and_on() -> None:
        with rig.db.connect() as connection:
            while not stop.wait(0.3):
                connection.execute("ALTER TABLE things ALTER n SET DEFAULT 1")

    altering = threading.Thread(target=alter_on_and_on)
    altering.start()
    try:
        with pytest.raises(TransientError) as caught:
            rig.run()
    finally:
        stop.set()
        altering.join()
    error = caught.value
    assert (error.code, error.retryable) == ("RIVET_SOURCE_YIELDED", True)
    # one that does not count, then the two that max_retries allows
    assert [e.attempt for e in rig.events if isinstance(e, UnitFailed) and not e.unit.index] == [2, 3]


def test_a_lock_that_is_kept_is_waited_for_no_longer_than_its_timeout(rig: Rig) -> None:
    rig.tuning = {"profile": "fast", "lock_timeout_s": 1, "max_retries": 0}
    rig.configure(CHUNKED)
    with rig.db.connect() as other, other.transaction(), rig.planned() as (session, _):
        other.execute("LOCK TABLE things IN ACCESS EXCLUSIVE MODE")
        started = time.monotonic()
        for _event in session.execute():
            pass
        assert time.monotonic() - started < 6
        assert session.failure() is not None
        assert session.errors[0].sqlstate == "55P03"
