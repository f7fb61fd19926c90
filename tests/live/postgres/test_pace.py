"""How many workers run at once: by what others do at the server, and by this process's memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pyarrow.parquet as pq
import pytest
from psycopg.conninfo import conninfo_to_dict

from rivet_dagster.engine.errors import RefusalError
from rivet_dagster.engine.run import pacing
from rivet_dagster.engine.run.events import RunNote, UnitCommitted
from rivet_dagster.engine.sources.base import Sighting
from rivet_dagster.engine.sources.postgres.connect import PostgresConnector, SessionLimits
from rivet_dagster.engine.sources.postgres.watch import PostgresWatch
from tests.live.postgres.rig import EXPORT, Rig
from tests.services.postgres import TestDatabase

UNITS: Final = 60
SLOW: Final[dict[str, Any]] = {
    "query": "SELECT id, slow(id) AS n FROM things",
    "table": None,
    "mode": "chunked",
    "chunk_column": "id",
    "chunk_size": 1,
    "parallel": 3,
}


@pytest.fixture(autouse=True)
def _things(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "INTERVAL_S", 0.1)
    rig.tuning = {"profile": "fast", "adaptive": True}
    rig.db.execute(
        "CREATE TABLE things (id int PRIMARY KEY, pad text)",
        f"INSERT INTO things SELECT g, repeat('x', 100000) FROM generate_series(1, {UNITS}) g",
        "CREATE FUNCTION slow(int) RETURNS int LANGUAGE plpgsql STABLE AS"
        " $$ BEGIN PERFORM pg_sleep(0.1); RETURN $1; END $$",
    )


@contextlib.contextmanager
def busy(rig: Rig, sessions: int) -> Iterator[None]:
    """Sessions of others that wait for a lock."""
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(rig.db.connect())
        holder.execute("SELECT pg_advisory_lock(1)")
        waiting = [stack.enter_context(rig.db.connect()) for _ in range(sessions)]
        for connection in waiting:
            connection.pgconn.send_query(b"SELECT pg_advisory_lock_shared(1)")
            connection.pgconn.flush()
        yield
        for connection in waiting:
            connection.close()


def reading(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'rivet_dagster' AND state = 'active' AND query LIKE 'COPY%'"
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_workers_make_room_while_others_are_busy(rig: Rig) -> None:
    rig.configure({**SLOW, "chunk_size": 1})
    levels: dict[str, list[int]] = {"before": [], "load": [], "after": []}
    with rig.planned() as (session, _), rig.db.connect() as looker, contextlib.ExitStack() as load:
        done, phase, since = 0, "before", time.monotonic()
        notes = []
        for event in session.execute():
            notes += [event.text] if isinstance(event, RunNote) else []
            done += isinstance(event, UnitCommitted)
            if phase == "before" and done == 6:
                load.enter_context(busy(rig, 4))
                phase, since = "load", time.monotonic()
            elif phase == "load" and time.monotonic() - since > 1.5:
                load.close()
                phase, since = "after", time.monotonic()
            if phase == "before" or time.monotonic() - since > 0.8:
                time.sleep(0.05)  # until the worker has begun its next unit
                levels[phase].append(reading(looker))
        outcome = session.finalize()
    assert max(levels["before"]) > 1
    assert max(levels["load"]) == 1
    assert max(levels["after"]) > 1
    assert outcome.details["pace"] == {"parallel_changes": 3, "parallel_lowest": 1}
    assert [n.split(" (")[0] for n in notes] == [f"workers: {n} of 3" for n in (1, 2, 3)]
    kept = [e for e in rig.engine.state.journal(outcome.run_id) if e.event == "ParallelismAdjusted"]
    assert [e.detail["workers"] for e in kept] == [1, 2, 3]


def test_every_version_can_be_looked_at(every_db: TestDatabase) -> None:
    kwargs = {**conninfo_to_dict(every_db.dsn), "application_name": "rivet_dagster"}
    watch = PostgresWatch(PostgresConnector(kwargs, SessionLimits()), weighs=True)
    connections = contextlib.closing(every_db.connect()), contextlib.closing(every_db.connect())
    with contextlib.closing(watch), connections[0] as reader, connections[1] as other:
        reader.execute("CREATE TABLE t (id int)")
        reader.execute("BEGIN; SELECT * FROM t")
        backend = reader.info.backend_pid
        assert watch.look([backend]) == Sighting(frozenset(), altering=False, load=0)
        other.pgconn.send_query(b"ALTER TABLE t ADD n int")
        other.pgconn.flush()
        while not (seen := watch.look([backend])).altering:
            time.sleep(0.02)
        assert seen == Sighting(frozenset({backend}), altering=True, load=1)
        assert watch.look([]).altering  # whoever reads: it is still wanted
        reader.execute("COMMIT")
        while watch.look([]).altering:
            time.sleep(0.02)


def test_reads_of_ours_are_no_load(rig: Rig) -> None:
    rig.db.execute(
        "CREATE OR REPLACE FUNCTION slow(int) RETURNS int LANGUAGE sql STABLE AS"
        " 'SELECT count(*)::int FROM generate_series(1, 200000)'"
    )
    rig.configure(SLOW)
    assert rig.run().details["pace"] == {}


def test_a_role_without_privileges_sees_who_waits(rig: Rig) -> None:
    server = rig.db.server
    rig.db.execute(
        "DROP ROLE IF EXISTS plain", "CREATE ROLE plain LOGIN PASSWORD 'p'", "GRANT SELECT ON things TO plain"
    )
    rig.url = f"postgresql://plain:p@127.0.0.1:{server.port}/{rig.db.name}"
    rig.configure(SLOW)
    with busy(rig, 3):
        assert rig.run().details["pace"]["parallel_lowest"] == 1
    rig.db.execute("DROP OWNED BY plain", "DROP ROLE plain")


def test_above_the_memory_threshold_one_unit_runs_at_a_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "MEMORY_PAUSE_S", 0.2)
    rig.tuning = {"profile": "fast", "memory_threshold_mb": 1}
    rig.configure({**SLOW, "chunk_size": 10, "parallel": 3})
    levels = []
    with rig.planned() as (session, _), rig.db.connect() as looker:
        for event in session.execute():
            if isinstance(event, UnitCommitted):
                time.sleep(0.3)
                levels.append(reading(looker))
        assert session.finalize().rows == UNITS
    assert max(levels) == 1


LARGE: Final[dict[str, Any]] = {"table": EXPORT, "mode": "full"}  # 6 MB, one batch


@pytest.mark.parametrize(("policy", "batches"), [("warn", 1), ("auto_shrink", 6), ("fail", 0)])
def test_a_batch_over_its_memory(rig: Rig, policy: str, batches: int) -> None:
    rig.tuning = {"profile": "fast", "max_batch_memory_mb": 1, "on_batch_memory_exceeded": policy}
    rig.configure(LARGE)
    if policy == "fail":
        error = rig.failure()
        assert isinstance(error, RefusalError)
        assert (error.code, error.field) == ("RIVET_BATCH_TOO_LARGE", "tuning.max_batch_memory_mb")
        return
    assert rig.run().rows == UNITS
    assert pq.read_metadata(rig.parts()[0]).num_row_groups == batches
    told = [e.text for e in rig.events if isinstance(e, RunNote) and "a batch of 60 rows" in e.text]
    assert len(told) == (policy == "warn")
