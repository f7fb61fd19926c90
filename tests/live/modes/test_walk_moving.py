"""What every mode does with a table that is empty, closed, locked or moving, and after it was killed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from rivet_dagster.engine.errors import RefusalError, TransientError
from rivet_dagster.engine.run import workers
from tests.live.modes import walk
from tests.live.modes.kit import Project
from tests.live.modes.walk import MODES, ROWS

WHOLE = dict.fromkeys(range(1, ROWS + 1), 1)


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_table_and_its_first_rows(project: Project, mode: str) -> None:
    way = MODES[mode]
    walk.create(project, way)
    for _ in range(2):
        assert project.run(**way.keys, parallel=2).outcome.rows == 0
        assert project.rows("n") == {}
    walk.fill(project, way)
    assert project.run().outcome.rows == ROWS
    assert project.rows("n") == WHOLE
    with project.engine() as engine:
        assert engine.validate("o").findings == ()
        assert engine.reconcile("o").status == "match"


@pytest.mark.parametrize("mode", MODES)
def test_a_run_of_one_snapshot_is_one_instant(project: Project, mode: str) -> None:
    """Rows that go, come, and move to other units between planning and reading."""
    way = MODES[mode]
    walk.create(project, way)
    walk.fill(project, way)

    def moved() -> None:
        project.db.execute(
            f"DELETE FROM {way.base} WHERE n % 3 = 0",
            f"UPDATE {way.base} SET k = 29 - k, d = d - 20, at = at + interval '1 h', n = -n WHERE n % 3 = 1",
        )
        walk.insert(project, way, ROWS + 1, ROWS + 50)

    one = {"consistency": "snapshot"} if way.resumes else {}
    ran = project.run(moved, **way.keys, **one, parallel=2)
    assert ran.outcome.rows == ROWS
    assert project.rows("n") == WHOLE
    assert project.manifest().additions.consistency == "snapshot"  # type: ignore[union-attr]


@pytest.fixture
def reader(project: Project) -> Iterator[str]:
    """A login role that the export connects as."""
    role = f"r_{project.db.name}"
    project.db.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'reader'")
    project.url = f"postgresql://{role}:reader@127.0.0.1:{project.db.server.port}/{project.db.name}"
    yield role
    project.db.execute(f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


@pytest.mark.parametrize("mode", MODES)
def test_rows_that_a_policy_hides(project: Project, reader: str, mode: str) -> None:
    way = MODES[mode]
    walk.create(project, way)
    walk.fill(project, way)
    project.db.execute(
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {reader}",
        f"ALTER TABLE {way.base} ENABLE ROW LEVEL SECURITY",
        f"CREATE POLICY p ON {way.base} USING (n < 10)",
    )
    with pytest.raises(RefusalError) as caught:
        project.run(**way.keys)
    assert caught.value.code == "RIVET_SOURCE_ROW_SECURITY"
    assert not project.prefix.exists()
    project.db.execute(f"ALTER ROLE {reader} BYPASSRLS")
    assert project.run().outcome.rows == ROWS


@pytest.mark.parametrize("mode", MODES)
def test_a_lock_that_is_not_given(project: Project, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "backoff_s", lambda *_: 0.01)
    way = MODES[mode]
    walk.create(project, way)
    walk.fill(project, way)
    tuning: dict[str, Any] = {"lock_timeout_s": 1, "max_retries": 0}
    with contextlib.ExitStack() as held:

        def lock() -> None:
            connection = held.enter_context(project.db.connect())
            held.enter_context(connection.transaction())
            connection.execute(f"LOCK TABLE {way.base} IN ACCESS EXCLUSIVE MODE".encode())

        with pytest.raises(TransientError) as caught:
            project.run(lock, **way.keys, tuning=tuning)
    assert (caught.value.code, caught.value.sqlstate) == ("RIVET_SOURCE_CONFLICT", "55P03")
    assert project.run().outcome.rows == ROWS
    assert project.rows("n") == WHOLE


@pytest.mark.parametrize("mode", MODES)
def test_a_column_that_is_another_one_at_the_read(project: Project, mode: str) -> None:
    way = MODES[mode]
    walk.create(project, way)
    walk.fill(project, way)
    with pytest.raises(TransientError) as caught:
        project.run(lambda: walk.retype_a_column(project, way), **way.keys, parallel=2)
    assert (caught.value.code, caught.value.field) == ("RIVET_SOURCE_SCHEMA_CHANGED", "word")
    assert not project.parts
    assert not list(project.prefix.glob("[m_]*"))
    assert project.run().outcome.rows == ROWS
    assert project.rows("n") == WHOLE


#: Modes that no other test kills: see tests/crash and test_incremental.
_KILLED = [
    *(
        "full_view",
        "full_partitioned",
        "full_inheritance",
        "count",
        "days",
        "dense",
        "memory",
        "keyset_composite",
    ),
    *("incremental_coalesce", "incremental_settle", "time_window", "query", "query_file"),
    *("partition_full", "partition_chunked", "partition_incremental"),
]


@pytest.mark.parametrize("mode", _KILLED)
def test_killed_after_a_unit(project: Project, mode: str) -> None:
    way = MODES[mode]
    walk.create(project, way)
    walk.fill(project, way)
    kept = {"chunk_checkpoint": True} if way.resumes else {}
    project.keys = {**way.keys, **kept}
    project.killed_run("after_unit_commit")
    ran = project.run()
    assert [unit.carried for unit in ran.units].count(True) == bool(kept)
    assert project.rows("n") == WHOLE
    with project.engine() as engine:
        assert engine.validate("o").findings == ()
        assert engine.reconcile("o").status == "match"
