"""Large windows and large folders are read in pieces: short statements, shared by the workers."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
import pytest

from rivet_dagster.engine.plan import sizing
from rivet_dagster.engine.plan.units import UnitKind
from rivet_dagster.engine.sources.postgres.predicate import page_tiles, stretches
from tests.live.modes.kit import Project, Ran
from tests.live.modes.test_partition_by import assert_folders_are_whole

CURSOR: dict[str, Any] = {"mode": "incremental", "cursor_column": "at", "parallel": 3}
LATE: dict[str, Any] = {**CURSOR, "late_rows": "1h"}
SNAPSHOT: dict[str, Any] = {"mode": "full", "consistency": "snapshot"}
FIRST, NEW = 200, 3_000
#: Ties by the hundred: a range never splits them.
ROWS = (
    "INSERT INTO t SELECT i, CASE WHEN i % 50 <> 0 THEN now() - interval '30 min' + i / 100 * interval '1 s'"
    " END FROM generate_series({}, {}) AS i"
)
#: Days of two years, all over the table.
FAR = "timestamptz '2024-01-01' + i % 700 * interval '1 d'"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements of a few pages, units of some statements."""
    monkeypatch.setattr(sizing, "STATEMENT_BYTES", 16_384)
    monkeypatch.setattr(sizing, "UNIT_MIN_BYTES", 40_000)
    monkeypatch.setattr(sizing, "UNIT_MAX_BYTES", 40_000)


def table(project: Project, *more: str) -> None:
    project.db.execute(
        "CREATE TABLE t (n int, at timestamptz) WITH (autovacuum_enabled = off)",
        *more,
        ROWS.format(1, FIRST),
    )


def reads(ran: Ran) -> int:
    """Statements of the plan."""
    return sum(
        len(list(page_tiles(unit.spec, lambda _, spec=unit.spec: spec["step"])))  # type: ignore[misc]
        if unit.kind is UnitKind.PAGES
        else len(stretches(unit))
        for unit in ran.plan.units
    )


@pytest.mark.parametrize("keys", [CURSOR, LATE], ids=["incremental", "late_rows"])
@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
def test_a_large_window(project: Project, keys: dict[str, Any], index: bool) -> None:
    table(project, *(["CREATE INDEX ON t (at)"] if index else []))
    project.run(**keys)
    before = project.rows("n")
    project.db.execute(ROWS.format(FIRST + 1, FIRST + NEW))
    ran = project.run()
    assert {unit.kind for unit in ran.plan.units} == {UnitKind.WINDOW if index else UnitKind.PAGES}
    assert len(ran.units) > 2
    assert reads(ran) > len(ran.units)
    assert sum(unit.rows > 0 for unit in ran.units) > 1
    new = [n for n in range(FIRST + 1, FIRST + NEW + 1) if n % 50]
    # each once; rows without a value of the cursor are a first run's
    assert project.rows("n") - before == dict.fromkeys(new, 1)
    assert project.reconcile() == "match"
    assert project.run().outcome.status == "skipped"


def test_a_row_that_came_late_lies_in_one_piece(project: Project) -> None:
    table(project, "CREATE INDEX ON t (at)")
    with project.db.connect() as late:
        late.execute("BEGIN; INSERT INTO t VALUES (-1, now() - interval '30 min')")
        project.run(**LATE)
        project.db.execute(ROWS.format(FIRST + 1, FIRST + NEW))
        project.run()
        assert -1 not in project.rows("n")
        late.execute("COMMIT")
    assert len(project.run().units) > 1
    wanted = [-1, *(n for n in range(1, FIRST + NEW + 1) if n <= FIRST or n % 50)]
    assert project.rows("n") == dict.fromkeys(wanted, 1)


def test_the_cursor_waits_for_the_last_piece(project: Project) -> None:
    table(project, "CREATE INDEX ON t (at)")
    project.run(
        **CURSOR,
    )
    project.db.execute(ROWS.format(FIRST + 1, FIRST + NEW))
    project.killed_run("after_unit_commit")
    with project.engine() as engine:
        cursor = engine.state.cursor("o", str(project.prefix))
        assert cursor is not None
        with project.db.connect() as connection:
            row = connection.execute(
                "SELECT %s::timestamptz = max(at) FROM t WHERE n <= %s", (cursor.value, FIRST)
            ).fetchone()
        assert row == (True,)
    project.run()
    assert project.rows("n") == dict.fromkeys(
        [n for n in range(1, FIRST + NEW + 1) if n <= FIRST or n % 50], 1
    )


def test_a_small_window_is_one_unit(project: Project) -> None:
    table(project, "CREATE INDEX ON t (at)", ROWS.format(FIRST + 1, FIRST + NEW))
    project.run(**CURSOR)
    project.db.execute("INSERT INTO t VALUES (0, now())")
    ran = project.run()
    assert (len(ran.units), reads(ran), ran.outcome.rows) == (1, 1, 1)


def test_names_that_our_own_statements_use(project: Project) -> None:
    """The walk along the index must mean its own values, not a column of the table."""
    project.db.execute("CREATE TABLE t (k int, n int, cut int)", "CREATE INDEX ON t (k)")
    insert = "INSERT INTO t SELECT i, i, i FROM generate_series({}, {}) AS i"
    project.db.execute(insert.format(1, 10))
    project.run(mode="incremental", cursor_column="k")
    project.db.execute(insert.format(11, NEW))
    assert len(project.run().units) > 2
    assert project.rows("n") == dict.fromkeys(range(1, NEW + 1), 1)


@pytest.mark.parametrize("consistency", ["chunk", "snapshot"])
@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamptz"])
def test_a_large_folder(project: Project, kind: str, consistency: str) -> None:
    project.db.execute(
        f"CREATE TABLE t (n int, k {kind})",
        "CREATE INDEX ON t (k)",
        "INSERT INTO t SELECT i, timestamp '2023-12-01' + i * interval '2 h' FROM generate_series(1, 4000) i",
        "INSERT INTO t VALUES (0, NULL)",
    )
    keys: dict[str, Any] = {"mode": "full", "partition_by": "k", "partition_granularity": "year"}
    keys["destination"] = {"type": "local", "path": str(project.prefix / "{partition}")}
    ran = project.run(**keys, consistency=consistency, parallel=3)
    by_folder = {key: sum(u.partition == key for u in ran.plan.units) for key in ran.plan.partitions}
    assert list(by_folder) == ["2023", "2024", "null"]
    assert by_folder["2024"] > 3
    assert ran.outcome.rows == 4_001
    assert project.reconcile() == "match"  # each piece, row by row
    assert_folders_are_whole(project)


def test_a_date_ends_its_folder(project: Project) -> None:
    """No piece for what lies past the last date of a folder."""
    project.db.execute(
        "CREATE TABLE t (n int, k date)",
        "CREATE INDEX ON t (k)",
        "INSERT INTO t SELECT i, date '2024-01-01' + i / 1000 FROM generate_series(0, 3999) i",
    )
    keys: dict[str, Any] = {"mode": "full", "partition_by": "k"}
    keys["destination"] = {"type": "local", "path": str(project.prefix / "{partition}")}
    ran = project.run(**keys)
    assert [unit.rows for unit in ran.units] == [1000] * 4


def test_folders_of_a_large_window(project: Project) -> None:
    project.db.execute(
        "CREATE TABLE t (n int PRIMARY KEY, k timestamptz)",
        "CREATE INDEX ON t (k)",
        f"INSERT INTO t SELECT i, {FAR} FROM generate_series(1, 3000) i",
    )
    keys: dict[str, Any] = {"mode": "incremental", "cursor_column": "n", "partition_by": "k"}
    keys |= {"partition_granularity": "year"}
    keys["destination"] = {"type": "local", "path": str(project.prefix / "{partition}")}
    assert len(project.run(**keys).units) > 4
    project.db.execute(f"INSERT INTO t SELECT i, {FAR} FROM generate_series(3001, 6000) i")
    assert len(project.run().units) > 4
    project.db.execute("INSERT INTO t VALUES (6001, '2024-05-01')")
    assert len(project.run().units) == 1
    assert project.reconcile() == "match"
    with project.db.connect() as connection:
        assert count(project) == connection.execute("SELECT count(*), sum(n) FROM t").fetchone()


def count(project: Project) -> tuple[int, int]:
    found = [
        n
        for path in project.prefix.glob("k=*/*.parquet")
        for n in pq.ParquetFile(path).read(["n"]).column("n").to_pylist()
    ]
    return len(found), sum(found)


def test_cuts_follow_the_order_of_a_text_cursor(project: Project) -> None:
    project.db.execute('CREATE TABLE t (k text COLLATE "C", n int)', "CREATE INDEX ON t (k)")
    project.db.execute("INSERT INTO t VALUES ('', 0)")
    project.run(mode="incremental", cursor_column="k")
    project.db.execute(
        "INSERT INTO t SELECT chr(97 + i % 26) || i || '''\\', i FROM generate_series(1, 3000) i"
    )
    assert len(project.run().units) > 2
    assert project.rows("n") == dict.fromkeys(range(3001), 1)


@pytest.mark.parametrize(
    ("keys", "index"),
    [(SNAPSHOT, False), (CURSOR, False), (CURSOR, True)],
    ids=["full", "cursor", "cursor with an index"],
)
def test_folders_without_an_index_are_passes_in_short_statements(
    project: Project, keys: dict[str, Any], index: bool
) -> None:
    project.db.execute(
        "CREATE TABLE t (n int, at timestamptz, k timestamptz)",
        *(["CREATE INDEX ON t (at)"] if index else []),
        f"INSERT INTO t SELECT i, now() - interval '2 d', {FAR} FROM generate_series(1, 3000) i",
        "INSERT INTO t VALUES (0, NULL, NULL)",
    )
    keys = {**keys, "partition_by": "k", "partition_granularity": "year"}
    keys["destination"] = {"type": "local", "path": str(project.prefix / "{partition}")}
    ran = project.run(**keys)
    assert ran.outcome.rows == 3_001
    assert len(ran.units) == 3
    assert reads(ran) > 9 * len(ran.units)
    assert project.reconcile() == "match"
    assert_folders_are_whole(project)
    project.db.execute("INSERT INTO t SELECT n + 3000, now() - interval '1 d', k FROM t WHERE n > 0")
    project.run()
    assert project.reconcile() == "match"
    with project.db.connect() as connection:
        assert count(project) == connection.execute("SELECT count(*), sum(n) FROM t").fetchone()


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ({"query": "SELECT * FROM t"}, "nothing of a query can be cut without a key"),
        ({"table": "v"}, "a view or foreign table has no pages"),
        ({"table": "t"}, None),
    ],
    ids=["query", "view", "table"],
)
def test_a_plan_says_that_it_is_one_statement(
    project: Project, what: dict[str, Any], why: str | None
) -> None:
    table(project, "CREATE VIEW v AS SELECT * FROM t")
    project.run(**CURSOR, **what)
    project.db.execute(ROWS.format(FIRST + 1, NEW))
    ran = project.run()
    assert ("in one statement" in ran.plan.reason) == bool(why)
    assert (why or "") in ran.plan.reason
