"""A column that took the place of a dropped one of the same name and type is not read as that one."""

from __future__ import annotations

from typing import Any, Final

import pytest

from rivet_dagster.engine.run import workers
from rivet_dagster.engine.run.events import UnitCommitted
from tests.live.postgres.rig import EXPORT, Rig, source_rows

ROWS: Final = 300
REPLACE: Final = "ALTER TABLE things DROP COLUMN n, ADD COLUMN n int DEFAULT 7"
RANGES: Final[dict[str, Any]] = {"mode": "chunked", "chunk_column": "id", "chunk_size": 100}
EXPORTS: Final[dict[str, dict[str, Any]]] = {
    "full": {},
    "ranges": RANGES,
    "cursor": {"mode": "incremental", "cursor_column": "id"},
    "query": {"table": None, "query": "SELECT id, n FROM things"},
    # as the server's text, which comes from no column
    "converted": {"columns": {"n": "text"}},
}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "backoff_s", lambda *_: 0.01)


def things(rig: Rig) -> None:
    rig.db.execute(
        "CREATE TABLE things (id int PRIMARY KEY, n int)",
        f"INSERT INTO things SELECT g, g FROM generate_series(1, {ROWS}) g",
        "ANALYZE things",
    )


@pytest.mark.parametrize("export", EXPORTS)
def test_a_replaced_column_ends_the_run(rig: Rig, export: str) -> None:
    things(rig)
    rig.configure({"table": EXPORT, **EXPORTS[export]})
    error = rig.failure(between=lambda: rig.db.execute(REPLACE))
    assert (error.code, error.field, error.retryable) == ("RIVET_SOURCE_SCHEMA_CHANGED", "n", True)
    rig.run()
    assert rig.read("id, n::int") == source_rows(rig.db, "id, n")


def test_a_column_of_a_partition_has_a_number_of_its_own(rig: Rig) -> None:
    rig.db.execute(
        "CREATE TABLE things (id int, n int) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF things FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE high (gone int, n int, also int, id int)",
        "ALTER TABLE high DROP COLUMN gone, DROP COLUMN also",
        "ALTER TABLE things ATTACH PARTITION high FOR VALUES FROM (100) TO (200)",
        "INSERT INTO things SELECT g, g FROM generate_series(0, 199) g",
    )
    rig.export().run()
    assert rig.read("id, n") == source_rows(rig.db, "id, n")
    assert rig.failure(between=lambda: rig.db.execute(REPLACE)).code == "RIVET_SOURCE_SCHEMA_CHANGED"
    rig.export(**RANGES).run()
    assert rig.read("id, n") == source_rows(rig.db, "id, n")


def test_a_run_is_not_continued_over_a_replaced_column(rig: Rig) -> None:
    things(rig)
    rig.export(**RANGES, chunk_checkpoint=True)
    with rig.planned() as (session, first):
        for event in session.execute():
            if isinstance(event, UnitCommitted):
                break
    with rig.planned() as (session, again):
        assert (again.resumed, again.run_id) == (True, first.run_id)
    rig.db.execute(REPLACE)
    with rig.planned() as (session, fresh):
        assert not fresh.resumed
        list(session.execute())
        session.finalize()
    assert rig.read("id, n") == source_rows(rig.db, "id, n")
