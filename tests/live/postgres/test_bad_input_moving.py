"""Sources that change, lock or go away between planning and the last unit: never a wrong file."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from rivet_dagster.engine.errors import EnvironmentFault, RivetError, TransientError
from rivet_dagster.engine.run import pacing, workers
from rivet_dagster.engine.run.events import UnitCommitted, UnitFailed
from tests.live.postgres.rig import EXPORT, Rig, source_rows

ROWS: Final = 3_000
THINGS: Final = (
    "CREATE TABLE things (id int PRIMARY KEY, n int, word text, big bigint)",
    f"INSERT INTO things SELECT g, g, g::text, g FROM generate_series(1, {ROWS}) g",
    "ANALYZE things",
)
FULL: Final[dict[str, Any]] = {"table": EXPORT, "mode": "full"}
RANGES: Final[dict[str, Any]] = {
    "table": EXPORT,
    "mode": "chunked",
    "chunk_column": "id",
    "chunk_size": 1_000,
}
KEYS: Final[dict[str, Any]] = {"table": EXPORT, "mode": "chunked", "chunk_by_key": "id", "chunk_size": 1_000}
WINDOW: Final[dict[str, Any]] = {"table": EXPORT, "mode": "incremental", "cursor_column": "id"}
QUERY: Final[dict[str, Any]] = {"query": "SELECT * FROM things", "mode": "full"}
MODES: Final = {"full": FULL, "ranges": RANGES, "keys": KEYS, "window": WINDOW, "query": QUERY}


@pytest.fixture(autouse=True)
def _things(rig: Rig) -> None:
    rig.db.execute(*THINGS)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once; a server that shuts down would be given 15 s."""
    monkeypatch.setattr(workers, "backoff_s", lambda *_: 0.01)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(MODES[request.param])


def changing(rig: Rig, *statements: str) -> Callable[[], None]:
    return lambda: rig.db.execute(*statements)


def assert_exact(rig: Rig) -> None:
    assert rig.read() == source_rows(rig.db)


def lost(error: RivetError) -> tuple[str, bool, int | None]:
    assert isinstance(error, TransientError)
    return error.code, error.retryable, error.exit_code


CHANGED: Final = ("RIVET_SOURCE_SCHEMA_CHANGED", True, 2)


SAME_WIDTH: Final = "ALTER TABLE things ALTER big TYPE timestamptz USING to_timestamp(big)"
DROPPED: Final = "ALTER TABLE things DROP COLUMN word"
ALTERED: Final = (
    SAME_WIDTH,
    DROPPED,
    "ALTER TABLE things ALTER n TYPE bigint",
    "ALTER TABLE things ALTER word TYPE int USING word::int",
    "ALTER TABLE things RENAME word TO term",
    "ALTER TABLE things RENAME TO stuff",
)


@pytest.mark.parametrize(
    ("export", "change"),
    [*(("full", c) for c in ALTERED), *((m, c) for m in MODES if m != "full" for c in (SAME_WIDTH, DROPPED))],
)
def test_a_column_that_is_another_one_at_the_read(rig: Rig, export: str, change: str) -> None:
    mode = MODES[export]
    rig.configure(mode)
    assert lost(rig.failure(between=changing(rig, change))) == CHANGED
    assert not rig.parts()
    assert "_SUCCESS" not in rig.files()
    if "stuff" in change:
        rig.db.execute("ALTER TABLE stuff RENAME TO things")
    rig.run()
    assert_exact(rig)


def test_a_null_in_a_column_that_was_not_null_when_planned(rig: Rig) -> None:
    rig.db.execute("ALTER TABLE things ALTER n SET NOT NULL")
    rig.configure(RANGES)
    change = changing(
        rig, "ALTER TABLE things ALTER n DROP NOT NULL", "UPDATE things SET n = NULL WHERE id = 9"
    )
    error = rig.failure(between=change)
    assert lost(error) == CHANGED
    assert error.field == "n"
    assert "_SUCCESS" not in rig.files()
    rig.run()
    assert_exact(rig)


def test_a_table_that_is_dropped(rig: Rig, mode: dict[str, Any]) -> None:
    rig.configure(mode)
    assert lost(rig.failure(between=changing(rig, "DROP TABLE things"))) == CHANGED
    assert rig.failure().code == "RIVET_SOURCE_TABLE_NOT_FOUND"
    rig.db.execute(*THINGS)
    rig.run()
    assert_exact(rig)


def test_a_column_that_is_added_is_left_for_the_next_run(rig: Rig, mode: dict[str, Any]) -> None:
    rig.configure(mode)
    rig.run(between=changing(rig, "ALTER TABLE things ADD COLUMN later text DEFAULT 'x'"))
    assert rig.read() == source_rows(rig.db, "id, n, word, big")
    rig.run()
    if mode["mode"] != "incremental":
        assert_exact(rig)


REWRITES: Final = {
    "truncate": "TRUNCATE things",
    "vacuum_full": "VACUUM FULL things",
    "cluster": "CLUSTER things USING things_pkey",
    "rewrite": "ALTER TABLE things ADD COLUMN luck float DEFAULT random()",
    "replaced": "CREATE TABLE other (LIKE things); INSERT INTO other SELECT * FROM things;"
    "DROP TABLE things; ALTER TABLE other RENAME TO things",
    "swapped": "ALTER TABLE things RENAME TO old; ALTER TABLE spare RENAME TO things",
}


#: Two tables that swap their names are whole in the snapshot: a query reads what it says.
STORAGE: Final = [
    (e, c) for e in ("full", "window", "query") for c in REWRITES if (e, c) != ("query", "swapped")
]


@pytest.mark.parametrize(("export", "change"), STORAGE)
def test_storage_that_the_snapshot_cannot_see_any_more(rig: Rig, export: str, change: str) -> None:
    """To a snapshot, a table that was rewritten since looks empty."""
    rig.db.execute(
        "CREATE TABLE spare (LIKE things)", "INSERT INTO spare SELECT * FROM things WHERE id <= 3000"
    )
    rig.configure(MODES[export])
    if export == "window":
        rig.run()
        rig.db.execute("INSERT INTO things SELECT g, g, g, g FROM generate_series(3001, 3100) g")
    before = rig.parts() if export == "window" else []
    error = rig.failure(between=changing(rig, *REWRITES[change].split(";")))
    assert lost(error) == ("RIVET_SOURCE_SNAPSHOT_LOST", True, 2)
    if rig.folder().exists():
        assert rig.parts() == before
    rig.run()
    if export != "window" or change not in {"truncate", "swapped"}:
        assert rig.read("id, n, word, big") == source_rows(rig.db, "id, n, word, big")


@pytest.mark.parametrize("export", ["ranges", "keys"])
@pytest.mark.parametrize("change", ["rewrite", "vacuum_full", "replaced"])
def test_chunks_read_a_rewritten_table_as_it_is(rig: Rig, export: str, change: str) -> None:
    rig.configure(MODES[export])
    rig.run(between=changing(rig, *REWRITES[change].split(";")))
    assert rig.read("id, n, word, big") == source_rows(rig.db, "id, n, word, big")


def test_a_rewrite_that_the_read_waits_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit's snapshot is older than the lock it waits for: it would find the rewritten table empty."""
    monkeypatch.setattr(pacing, "INTERVAL_S", 60)  # nobody watches
    rig.configure(RANGES)
    with rig.planned() as (session, _), rig.db.connect() as other:
        other.execute("BEGIN; ALTER TABLE things ADD COLUMN luck float DEFAULT random()")
        done = threading.Timer(1.0, lambda: other.execute("COMMIT"))
        done.start()
        failed = [e for e in session.execute() if isinstance(e, UnitFailed)]
        done.join()
        assert [(e.error.code, e.final) for e in failed] == [("RIVET_SOURCE_CONFLICT", False)]
        session.finalize()
    assert rig.read("id, n, word, big") == source_rows(rig.db, "id, n, word, big")


def test_partitions_that_come_and_are_rewritten(rig: Rig) -> None:
    rig.db.execute(
        "CREATE TABLE p (id int, n int) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (1000)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (1000) TO (2000)",
        "INSERT INTO p SELECT g, g FROM generate_series(0, 1999) g",
    )
    new = "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (2000) TO (3000)"
    for export in ({"table": "p"}, {"query": "SELECT * FROM p"}):
        rig.configure(export)
        assert rig.run(between=changing(rig, new)).rows == 2_000
        rig.db.execute("DROP TABLE p3")
        error = rig.failure(between=changing(rig, "VACUUM FULL p2"))
        assert error.code == "RIVET_SOURCE_SNAPSHOT_LOST"
        assert rig.run(between=changing(rig, "CREATE INDEX ON p (n)")).rows == 2_000
        rig.db.execute("DROP INDEX p_n_idx")
    rig.configure({"table": "p", "mode": "incremental", "cursor_column": "id"}).run()
    rig.db.execute(new, "INSERT INTO p VALUES (2500, 1)")
    error = rig.failure(between=changing(rig, "ALTER TABLE p ADD x float DEFAULT random()"))
    assert error.code == "RIVET_SOURCE_SNAPSHOT_LOST"
    assert rig.run().rows == 1


def locks(rig: Rig) -> set[tuple[Any, ...]]:
    """Locks on the table of connections that wait for their client, and not just between two statements."""
    query = (
        "SELECT a.pid, a.state_change, a.state, l.mode FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
        " WHERE l.relation = 'things'::regclass AND a.state LIKE 'idle%'"
    )
    with rig.db.connect() as connection:
        held = set(connection.execute(query).fetchall())
        deadline = time.monotonic() + 5
        while held and time.monotonic() < deadline:
            time.sleep(0.05)
            held &= set(connection.execute(query).fetchall())
        return held


def test_no_lock_outlives_a_statement(rig: Rig, mode: dict[str, Any]) -> None:
    """A migration waits for a unit at most, never for the run; nobody queues behind it."""
    rig.configure(mode)
    with rig.planned() as (session, _):
        assert not locks(rig)
        for event in session.execute():
            if isinstance(event, UnitCommitted):
                assert not locks(rig)
        session.finalize()


@contextlib.contextmanager
def locked(rig: Rig) -> Iterator[None]:
    with rig.db.connect() as other, other.transaction():
        other.execute("LOCK TABLE things IN ACCESS EXCLUSIVE MODE")
        yield


@pytest.mark.timeout(60)
def test_a_lock_that_is_not_given(rig: Rig, mode: dict[str, Any]) -> None:
    rig.tuning = {"profile": "fast", "lock_timeout_s": 1, "max_retries": 0}
    rig.configure(mode)
    with rig.engine.session(EXPORT, holder="test", lock_wait=0) as session:
        with locked(rig), pytest.raises(TransientError) as caught:
            session.plan()
        assert (caught.value.code, caught.value.export) == ("RIVET_SOURCE_CONFLICT", EXPORT)
    with contextlib.ExitStack() as held, pytest.raises(TransientError) as caught:
        rig.run(between=lambda: held.enter_context(locked(rig)))
    assert (caught.value.code, caught.value.sqlstate) == ("RIVET_SOURCE_CONFLICT", "55P03")
    rig.run()
    assert_exact(rig)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["view", "query"])
def test_a_statement_that_takes_too_long(rig: Rig, kind: str) -> None:
    slow = "SELECT id, pg_sleep(0.01)::text AS slept FROM things"
    rig.db.execute(f"CREATE VIEW slow AS {slow}")
    rig.tuning = {"profile": "fast", "statement_timeout_s": 1, "max_retries": 3}
    rig.configure({"table": "slow"} if kind == "view" else {"query": slow})
    error = rig.failure()
    assert isinstance(error, EnvironmentFault)
    assert (error.code, error.sqlstate) == ("RIVET_SOURCE_STATEMENT_TIMEOUT", "57014")
    assert [e.attempt for e in rig.events if isinstance(e, UnitFailed)] == [1]


class Killer:
    """Ends the readers' connections, ``limit`` of them, as long as the block lasts."""

    def __init__(self, rig: Rig, limit: int | None = None) -> None:
        self._rig, self._left = rig, limit
        self.killed = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self._rig.db.server.connect() as connection:
            while not self._stop.wait(0.005) and self._left != self.killed:
                row = connection.execute(
                    "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity"
                    " WHERE datname = %s AND query LIKE 'COPY%%' AND state = 'active' LIMIT 1) x",
                    [self._rig.db.name],
                ).fetchone()
                self.killed += row[0] if row else 0

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def slow_reads(rig: Rig) -> None:
    """Rows so slow to send that a unit is under way when the killer looks."""
    rig.db.execute(
        "CREATE FUNCTION slow(int) RETURNS int LANGUAGE plpgsql AS"
        " 'BEGIN IF $1 % 20 = 0 THEN PERFORM pg_sleep(0.003); END IF; RETURN $1; END'",
        "ALTER TABLE things RENAME TO fast",
        "CREATE VIEW things AS SELECT id, slow(n) AS n, word, big FROM fast",
    )


def test_connections_that_are_ended_again_and_again(rig: Rig) -> None:
    slow_reads(rig)
    rig.tuning = {"profile": "fast", "max_retries": 2}
    rig.configure({**RANGES, "parallel": 2})
    with Killer(rig) as killer:
        error = rig.failure()
    assert killer.killed >= 3
    assert (error.code, error.retryable, error.exit_code) == ("RIVET_SOURCE_UNAVAILABLE", True, 2)
    assert max(e.attempt for e in rig.events if isinstance(e, UnitFailed)) == 3
    assert rig.engine.state.metrics(EXPORT)[0]["retries"] >= 2, "a failed run has them too"
    assert "_SUCCESS" not in rig.files()
    assert not [f for f in rig.files() if f.endswith(".tmp")]
    rig.run()
    assert_exact(rig)
    assert rig.engine.validate(EXPORT).passed


@pytest.mark.parametrize("export", ["ranges", "query"])
def test_one_connection_that_is_ended_costs_an_attempt(rig: Rig, export: str) -> None:
    slow_reads(rig)
    rig.configure(MODES[export])
    with Killer(rig, limit=1) as killer:
        outcome = rig.run()
    assert killer.killed == 1
    failed = [e for e in rig.events if isinstance(e, UnitFailed)]
    assert [(e.attempt, e.final, e.error.code) for e in failed] == [(1, False, "RIVET_SOURCE_UNAVAILABLE")]
    (figures,) = rig.engine.state.metrics(EXPORT)
    assert (outcome.retries, figures["retries"]) == (1, 1)
    assert_exact(rig)


def test_a_snapshot_whose_holder_is_ended(rig: Rig) -> None:
    rig.configure(FULL)

    def end_holder() -> None:
        with rig.db.server.connect() as connection:
            row = connection.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s"
                " AND state = 'idle in transaction'",
                [rig.db.name],
            ).fetchone()
            assert row == (1,)
        deadline = time.monotonic() + 5
        while rig.connections() and time.monotonic() < deadline:
            time.sleep(0.02)

    error = rig.failure(between=end_holder)
    assert lost(error) == ("RIVET_SOURCE_SNAPSHOT_LOST", True, 2)
    rig.run()
    assert_exact(rig)


def test_leaving_a_run_in_its_middle_leaves_nothing_behind(rig: Rig) -> None:
    slow_reads(rig)
    rig.configure({**RANGES, "parallel": 2, "chunk_size": 100})
    with rig.planned() as (session, _):
        for event in session.execute():
            if isinstance(event, UnitCommitted):
                break
    rig.assert_no_connections()
    assert not [t for t in threading.enumerate() if t.name.startswith("rivet-")]
    assert not [f for f in rig.files() if f.endswith(".tmp") or f == "_SUCCESS"]
    rig.run()
    assert_exact(rig)
