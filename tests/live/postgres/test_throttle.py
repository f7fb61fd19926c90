"""A throttled read keeps its pace and is not ended by its own pauses; what takes too long is read in less."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import pyarrow as pa
import pytest

from rivet_dagster.engine.errors import EnvironmentFault
from rivet_dagster.engine.plan import sizing
from rivet_dagster.engine.run import workers
from rivet_dagster.engine.run.events import RunNote, UnitCommitted, UnitFailed
from rivet_dagster.engine.run.sink import UnitSink
from rivet_dagster.engine.sources.postgres import pieces
from rivet_dagster.engine.sources.postgres.connect import PostgresConnector
from tests.live.postgres.rig import Rig, read_parquet, source_rows
from tests.live.postgres.sockets import open_narrow

#: Rows wide enough to fill what lies between server and reader: the server has to wait for our pauses.
ROWS: Final = 4_000
SECONDS: Final = 2.4
MODES: Final[dict[str, dict[str, Any]]] = {
    "full": {},
    "view": {"table": "seen"},
    "query": {"table": None, "query": "SELECT * FROM things"},
    "range": {"mode": "chunked", "chunk_column": "id", "chunk_size": 10**6},
    "key": {"mode": "chunked", "chunk_by_key": "id", "chunk_size": 10**6},
    "incremental": {"mode": "incremental", "cursor_column": "id"},
}
SLOW: Final = "SELECT id, slow(id, 0.005) AS slept FROM things"


@pytest.fixture(autouse=True)
def _narrow_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgresConnector, "_open", open_narrow)


@pytest.fixture(autouse=True)
def _things(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "backoff_s", lambda *_: 0.01)
    monkeypatch.setattr(sizing, "UNIT_MIN_BYTES", sizing.GIB)  # one unit
    rig.db.execute(
        "CREATE TABLE things (id int PRIMARY KEY, pad text)",
        "ALTER TABLE things ALTER pad SET STORAGE PLAIN",
        f"INSERT INTO things SELECT g, repeat('x', 5000) FROM generate_series(1, {ROWS}) g",
        "CREATE FUNCTION slow(int, float) RETURNS int LANGUAGE plpgsql STABLE AS"
        " $$ BEGIN PERFORM pg_sleep($2); RETURN $1; END $$",
        "CREATE VIEW seen AS SELECT * FROM things",
        "ANALYZE things",
    )


@pytest.mark.timeout(60)
@pytest.mark.parametrize("mode", MODES)
def test_a_throttled_read_outlives_its_timeout(rig: Rig, mode: str) -> None:
    """One statement with its pauses takes more than twice what a statement may take."""
    rig.tuning = {"throttle_ms": 60, "batch_size": 100, "statement_timeout_s": 1, "max_retries": 0}
    groups: dict[str, Any] = {"parquet": {"row_group_strategy": "fixed_rows", "row_group_rows": 250}}
    rig.configure({"table": "things", **MODES[mode], **groups})
    began = time.monotonic()
    rig.run()
    seconds = time.monotonic() - began
    assert {e.attempt for e in rig.events if isinstance(e, UnitCommitted)} == {1}
    assert rig.read() == source_rows(rig.db)
    assert SECONDS <= seconds < 3 * SECONDS + 2  # the pace that the throttle sets


@pytest.mark.timeout(60)
def test_no_statement_is_open_while_a_table_is_paused_for(rig: Rig) -> None:
    table = f"paced_{rig.db.name}"
    rig.db.execute(
        f"ALTER TABLE things RENAME TO {table}",
        f"ALTER DATABASE {rig.db.name} SET log_min_duration_statement = 0",
    )
    rig.tuning = {"throttle_ms": 60, "batch_size": 100}
    rig.export(table).run()
    text = rig.db.server.log.read_text(errors="replace")
    copies = [
        line for line in text.splitlines() if "COPY (" in line and table in line and "duration:" in line
    ]
    took = [float(line.split("duration: ")[1].split(" ms")[0]) for line in copies]
    assert len(took) >= 2
    assert max(took) < 500  # of 2.4 s


@pytest.mark.timeout(60)
def test_what_is_slow_between_pauses_is_ended(rig: Rig) -> None:
    rig.tuning = {"throttle_ms": 60, "batch_size": 100, "statement_timeout_s": 1, "max_retries": 3}
    rig.configure({"table": None, "query": SLOW})
    began = time.monotonic()
    error = rig.failure()
    assert time.monotonic() - began < 10
    assert isinstance(error, EnvironmentFault)
    assert (error.code, error.field) == ("RIVET_SOURCE_STATEMENT_TIMEOUT", "tuning.statement_timeout_s")
    assert "unit 0 cannot be cut" in error.message
    assert "(1 s)" in error.message


@pytest.mark.timeout(60)
def test_a_range_that_takes_too_long_is_read_in_pieces(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "FIRST_ROWS", 150)
    rig.db.execute("DELETE FROM things WHERE id > 400", "CREATE VIEW slow AS " + SLOW)
    rig.tuning = {"profile": "fast", "statement_timeout_s": 1, "max_retries": 0}
    ranges = {"mode": "chunked", "chunk_column": "id", "chunk_size": 10**6}
    rig.configure({"table": "slow", **ranges})
    assert rig.run().rows == 400
    assert [e.attempt for e in rig.events if isinstance(e, UnitCommitted)] == [2]
    assert [e.text for e in rig.events if isinstance(e, RunNote) and "read in pieces now" in e.text]
    assert read_parquet(rig.parts(), "id") == source_rows(rig.db, "id")


@pytest.mark.timeout(60)
def test_a_range_whose_pieces_take_too_long_as_well_ends(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_PAUSE_S", 0.001)
    rig.db.execute("CREATE VIEW slow AS SELECT id, slow(id, 1.5) AS slept FROM things")
    rig.tuning = {"profile": "fast", "statement_timeout_s": 1, "max_retries": 3}
    rig.configure({"table": "slow", "mode": "chunked", "chunk_column": "id", "chunk_size": 10**6})
    error = rig.failure()
    assert isinstance(error, EnvironmentFault)
    assert (error.code, error.sqlstate) == ("RIVET_SOURCE_STATEMENT_TIMEOUT", "57014")
    assert [e.attempt for e in rig.events if isinstance(e, UnitFailed)] == [2]


@pytest.mark.timeout(60)
def test_pages_that_take_too_long_are_read_fewer_at_a_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The destination is slow, so the server waits for us to take its rows."""
    write = UnitSink.write

    def slowly(sink: UnitSink, batch: pa.RecordBatch) -> None:
        time.sleep(0.2)
        write(sink, batch)

    monkeypatch.setattr(UnitSink, "write", slowly)
    rig.tuning = {"profile": "fast", "statement_timeout_s": 1, "max_retries": 0}
    groups: dict[str, Any] = {"parquet": {"row_group_strategy": "fixed_rows", "row_group_rows": 250}}
    rig.export(**groups).run()
    assert [e.attempt for e in rig.events if isinstance(e, UnitCommitted)] == [2]
    assert [e.text for e in rig.events if isinstance(e, RunNote) and "fewer pages" in e.text]
    assert rig.read() == source_rows(rig.db)


@pytest.mark.timeout(60)
def test_a_cancel_by_a_person_is_not_called_a_timeout(rig: Rig) -> None:
    rig.tuning = {"profile": "fast", "statement_timeout_s": 50, "max_retries": 3}
    rig.configure({"table": None, "query": SLOW})

    def cancel() -> None:
        with rig.db.connect() as connection:
            query = (
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
                f" WHERE datname = '{rig.db.name}' AND query LIKE 'COPY%' AND state = 'active'"
            )
            while connection.execute(query).fetchone() is None:
                time.sleep(0.02)

    person = threading.Thread(target=cancel)
    person.start()
    error = rig.failure()
    person.join()
    assert (error.code, error.retryable) == ("RIVET_SOURCE_CANCELLED", False)
    assert [e.attempt for e in rig.events if isinstance(e, UnitFailed)] == [1]
