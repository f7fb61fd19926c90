"""Extraction through a transaction pooler: every transaction may meet another connection of the server."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest

from rivet_dagster.demo.install import ServerNotInstalledError
from rivet_dagster.engine.errors import RivetError
from rivet_dagster.engine.run import pacing, workers
from rivet_dagster.engine.run.events import UnitCommitted, UnitFailed
from tests.conftest import without
from tests.live.postgres.rig import EXPORT, Rig, source_rows
from tests.services.pgbouncer import Pooler, pgbouncer

ROWS: Final = 3_000
RANGES: Final[dict[str, Any]] = {
    "mode": "chunked",
    "chunk_column": "id",
    "chunk_size": 250,
    "consistency": "chunk",
    "parallel": 3,
}


@pytest.fixture(autouse=True)
def _things(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "backoff_s", lambda *_: 0.01)
    rig.db.execute(
        "CREATE TABLE things (id int PRIMARY KEY, at timestamptz, price float8, raw bytea)",
        "INSERT INTO things SELECT g, now() - g * interval '1 minute', g / 7.0, int4send(g)"
        f" FROM generate_series(1, {ROWS}) g",
        "ANALYZE things",
    )


@contextlib.contextmanager
def pooled(rig: Rig, **options: Any) -> Iterator[Pooler]:
    """``rig`` reads through a pooler; the server's connections are the pooler's and end with it."""
    try:
        with pgbouncer(rig.db, **options) as pooler:
            rig.url = pooler.url
            yield pooler
    except ServerNotInstalledError:
        without("pgbouncer")


def test_parallel_chunks_share_fewer_connections(rig: Rig) -> None:
    with pooled(rig, pool_size=2):
        assert rig.export(**RANGES).run().rows == ROWS
        assert len({e.unit.index for e in rig.events if isinstance(e, UnitCommitted)}) == 13
        assert rig.read() == source_rows(rig.db)
        assert rig.engine.reconcile(EXPORT).status == "match"


def settings(dsn: str) -> tuple[int, dict[str, str]]:
    """The server's process and every setting of the session."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        (row,) = connection.execute("SELECT pg_backend_pid()").fetchall()
        found: dict[str, str] = dict(connection.execute("SELECT name, setting FROM pg_settings").fetchall())
    found.pop("application_name")
    return int(row[0]), found


def test_the_next_client_finds_the_session_as_it_was(rig: Rig) -> None:
    _, fresh = settings(rig.db.dsn)
    with pooled(rig, pool_size=1) as pooler:
        before, _ = settings(pooler.dsn)
        rig.export(**RANGES).run()
        after, left = settings(pooler.dsn)
        assert before == after  # the very connection that the run has used
        assert {name: left[name] for name in fresh if left[name] != fresh[name]} == {}
        with psycopg.connect(pooler.dsn, autocommit=True) as connection:
            held = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'"
            assert connection.execute(held).fetchone() == (0,)
            for leftover in ("pg_prepared_statements", "pg_cursors"):
                names = connection.execute(f"SELECT name FROM {leftover} WHERE name <> ''".encode())
                assert names.fetchall() == []


@pytest.mark.parametrize("mode", [{"mode": "full"}, {**RANGES, "consistency": "snapshot"}])
def test_one_snapshot_is_held_by_one_transaction(rig: Rig, mode: dict[str, Any]) -> None:
    late = "INSERT INTO things VALUES (9999, now(), 1, NULL)"
    with pooled(rig, pool_size=4):
        assert rig.export(**mode).run(between=lambda: rig.db.execute(late)).rows == ROWS


def test_a_snapshot_in_a_pool_of_one_is_one_error(rig: Rig) -> None:
    """The transaction that holds the snapshot is on the only connection."""
    rig.tuning = {"profile": "fast", "max_retries": 0}
    with pooled(rig, pool_size=1, wait_s=1), pytest.raises(RivetError) as caught:
        rig.export(mode="full").run()
    assert caught.value.code == "RIVET_SOURCE_UNAVAILABLE"
    assert "query_wait_timeout" in caught.value.message


def test_statement_pooling_is_refused(rig: Rig) -> None:
    with pooled(rig, mode="statement"), pytest.raises(RivetError) as caught:
        rig.export(**RANGES).run()
    assert "statement pooling" in caught.value.message


def test_late_rows_are_found_through_a_pooler(rig: Rig) -> None:
    with pooled(rig):
        rig.export(mode="incremental", cursor_column="at", late_rows="7d").run()
        rig.db.execute("INSERT INTO things VALUES (5000, now() - interval '1 hour', 1, NULL)")
        assert rig.run().rows == 1
        assert rig.read("id") == source_rows(rig.db, "id")


def test_a_read_gives_way_through_a_pooler(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the pooler calls the connection's process is none of the server's."""
    monkeypatch.setattr(pacing, "INTERVAL_S", 0.2)
    rig.db.execute(
        "CREATE SEQUENCE speed",
        "CREATE FUNCTION slow(int) RETURNS int LANGUAGE plpgsql STABLE AS $$ BEGIN"
        " IF (SELECT NOT is_called FROM public.speed) THEN PERFORM pg_sleep(.02); END IF; RETURN $1; END $$",
        "CREATE VIEW crawl AS SELECT slow(id) AS id FROM things",
    )
    took: list[float] = []

    def alter() -> None:
        with rig.db.connect() as connection:
            while not connection.execute(
                "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'COPY%'"
            ).fetchone():
                time.sleep(0.02)
            started = time.monotonic()
            connection.execute("ALTER TABLE things ADD COLUMN later int")
            took.append(time.monotonic() - started)
            connection.execute("SELECT nextval('speed')")

    rig.tuning = {"profile": "fast", "max_retries": 0}
    with pooled(rig, pool_size=4):
        rig.export("crawl", mode="full")
        with rig.planned() as (session, _):
            altering = threading.Thread(target=alter)
            altering.start()
            assert not [e for e in session.execute() if isinstance(e, UnitFailed)]
            altering.join()
            assert session.finalize().rows == ROWS
    assert took[0] < 5
