"""Reconcile and repair in every mode: what changed is found, run again alone, and nothing is lost after."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import pytest

from rivet_dagster.engine.errors import UsageError
from rivet_dagster.engine.sources.postgres.aggregate import aggregate_sql
from tests.live.modes.kit import Project
from tests.services.postgres import TestDatabase

ROWS = 40
TABLE = """
CREATE TABLE t (
  n int PRIMARY KEY, a int NOT NULL, at timestamptz, made timestamptz, v text, UNIQUE (a, n)
)"""


def fill(db: TestDatabase, first: int, last: int) -> None:
    """Rows n of [first, last]; ``at`` is some seconds of yesterday, in the order of n."""
    db.execute(
        "INSERT INTO t SELECT g, g / 7, date_trunc('day', now()) - interval '12 h' + g * interval '1 s',"
        f" now() - interval '1 day', 'v' || g FROM generate_series({first}, {last}) g"
    )


@dataclass(frozen=True)
class Mode:
    """keys: of the export. second: the run in question goes on after an earlier one. units: run again."""

    keys: dict[str, Any]
    second: bool = False
    units: int | None = None
    setup: tuple[str, ...] = field(default=())


CHUNKED: dict[str, Any] = {"mode": "chunked", "chunk_size": 10}
BY_TIME: dict[str, Any] = {"mode": "incremental", "cursor_column": "at"}
COALESCE = {**BY_TIME, "cursor_fallback_column": "made", "incremental_cursor_mode": "coalesce"}
SETTLED = {**BY_TIME, "settle": {"after": "1h"}}
LATE = {**BY_TIME, "late_rows": "2d"}
KEYS = {**CHUNKED, "chunk_by_key": "n", "keyset_incremental": True}
DAYS: dict[str, Any] = {"mode": "time_window", "time_column": "at", "days_window": 3}
QUERY: dict[str, Any] = {"query": "SELECT * FROM t", "mode": "incremental", "cursor_column": "n"}
MODES = {
    "full": Mode({"mode": "full"}),
    "range": Mode({**CHUNKED, "chunk_column": "n"}, units=1),
    "count": Mode({"mode": "chunked", "chunk_column": "n", "chunk_count": 4}, units=1),
    "days": Mode({"mode": "chunked", "chunk_column": "at", "chunk_by_days": 1}, units=1),
    "dense": Mode({**CHUNKED, "chunk_column": "a", "chunk_dense": True}, units=1),
    "keyset": Mode({**CHUNKED, "chunk_by_key": "n"}, units=1),
    "composite": Mode({**CHUNKED, "chunk_by_key": ["a", "n"]}, units=1),
    "one snapshot": Mode({**CHUNKED, "chunk_column": "n", "consistency": "snapshot"}),
    "window": Mode(DAYS, units=1),
    "incremental, first": Mode(BY_TIME),
    "incremental": Mode(BY_TIME, second=True, units=1),
    "query, first": Mode(QUERY),
    "query": Mode(QUERY, second=True, units=1),
    "coalesce, first": Mode(COALESCE),
    "coalesce": Mode(COALESCE, second=True, units=1),
    "settle, first": Mode(SETTLED),
    "settle": Mode(SETTLED, second=True, units=1),
    "late, first": Mode(LATE),
    "late": Mode(LATE, second=True, units=1),
    "keyset_incremental, first": Mode(KEYS, units=1),
    "keyset_incremental": Mode(KEYS, second=True, units=1),
    "two keys, first": Mode({**KEYS, "chunk_by_key": ["a", "n"]}, units=1),
    "two keys": Mode({**KEYS, "chunk_by_key": ["a", "n"]}, second=True, units=1),
}


def start(project: Project, mode: Mode) -> None:
    """The run in question is the last one, and it holds the rows from 31 to 40."""
    project.db.execute(TABLE)
    if mode.second:
        fill(project.db, 1, 30)
        project.db.execute("ANALYZE t")
        project.run(**mode.keys)
        fill(project.db, 31, ROWS)
    else:
        fill(project.db, 1, ROWS)
        project.db.execute("ANALYZE t")
    project.run(**mode.keys)


@pytest.mark.parametrize("name", MODES)
def test_what_changed_is_found_and_run_again_and_no_row_is_lost_or_twice(project: Project, name: str) -> None:
    mode = MODES[name]
    start(project, mode)
    assert project.reconcile() == "match"
    cursor = project.manifest().source.extraction
    project.db.execute("UPDATE t SET v = 'new' WHERE n = 35")
    report = project.reconciled()
    assert report.status == "mismatch"
    assert report.count("mismatch") == 1
    ran = project.repair()
    if mode.units is not None:
        assert len(ran.plan.outstanding) == mode.units
    assert project.reconcile() == "match"
    again = project.manifest().source.extraction
    assert (again.cursor_low, again.cursor_high) == (cursor.cursor_low, cursor.cursor_high)
    found = project.validate()
    assert found.passed, found.findings
    assert not found.findings

    changed = {35: "new"}
    wanted = {(n, changed.get(n, f"v{n}")): 1 for n in range(1, ROWS + 1)}
    if "late_rows" in mode.keys:
        # the changed row is a version of a later transaction: the next run reads it
        if mode.second:
            assert project.rows("n", "v") == {k: 1 for k in wanted if k[0] != 35}
        project.run()
    assert project.rows("n", "v") == wanted
    fill(project.db, ROWS + 1, ROWS + 3)
    project.run()
    assert project.rows("n") == dict.fromkeys(range(1, ROWS + 4), 1), "the next run goes on where it should"
    assert project.validate().findings == ()


SWAP = (
    "UPDATE t SET v = o.v, made = o.made FROM t o WHERE t.n IN (34, 36) AND o.n = 70 - t.n",
    "UPDATE t SET a = a + 1 WHERE n = 34",
    "UPDATE t SET a = a - 1 WHERE n = 36",
)


@pytest.mark.parametrize("file_format", ["parquet", "csv"])
@pytest.mark.parametrize("name", ["full", "range", "window", "incremental", "two keys, first"])
def test_cells_that_changed_places_are_seen_by_whole_rows_alone(
    project: Project, name: str, file_format: str
) -> None:
    mode = MODES[name]
    project.keys["format"] = file_format
    start(project, mode)
    before = project.reconciled("rows")
    assert (before.status, before.depth, before.not_hashed) == ("match", "rows", ())
    # the same column sums in each unit, whatever it was cut by
    project.db.execute(*SWAP[: 1 if "keys" in name else 3])
    assert project.reconcile() == "match"
    (unit,) = [u for u in project.reconciled("rows").units if u.status == "mismatch"]
    assert "the sums agree and the rows differ" in (unit.note or "")
    project.repair("rows")
    assert project.reconciled("rows").status == "match"


def test_a_column_without_a_form_is_named_and_left_out(project: Project) -> None:
    project.db.execute(
        "CREATE TABLE t (n int PRIMARY KEY, list int[], u uuid)",
        f"INSERT INTO t VALUES (1, '{{1}}', '{uuid.UUID(int=1)}'), (2, '{{2}}', '{uuid.UUID(int=2)}')",
    )
    project.run(mode="full", format="parquet")
    swap = "UPDATE t SET {0} = o.{0} FROM t o WHERE o.n = 3 - t.n"
    project.db.execute(swap.format("list"))
    report = project.reconciled("rows")
    assert (report.status, report.not_hashed) == ("match", ("list",))
    assert report.as_json()["columns_not_hashed"] == ["list"]
    project.db.execute(swap.format("u"))
    assert project.reconciled("rows").status == "mismatch"
    project.run(format="csv")  # a uuid is text in CSV and does not read back as one
    assert project.reconciled("rows").not_hashed == ("list", "u")


@pytest.mark.parametrize("name", [n for n, m in MODES.items() if m.keys.get("cursor_column") or m.second])
def test_rows_of_the_next_run_are_no_difference(project: Project, name: str) -> None:
    start(project, MODES[name])
    for n in range(ROWS + 1, ROWS + 4):  # each in a transaction of its own
        fill(project.db, n, n)
    assert project.reconcile() == "match"


@pytest.mark.parametrize("name", ["incremental", "late", "keyset_incremental", "incremental, first"])
def test_a_row_that_was_deleted_is_found(project: Project, name: str) -> None:
    start(project, MODES[name])
    project.db.execute("DELETE FROM t WHERE n = 33")
    (unit,) = [u for u in project.reconciled().units if u.status == "mismatch"]
    assert (unit.source_rows or 0) - (unit.exported_rows or 0) == -1


@pytest.mark.parametrize("keys", [BY_TIME, LATE, KEYS, QUERY], ids=["time", "late", "key", "query"])
def test_a_first_run_of_no_rows_stays_what_it_was(project: Project, keys: dict[str, Any]) -> None:
    project.db.execute(TABLE)
    project.run(**keys)
    assert project.reconcile() == "match"
    fill(project.db, 1, 5)
    assert project.reconcile() == "match", "they belong to the next run"
    project.run()
    assert project.rows("n") == dict.fromkeys(range(1, 6), 1)


def test_rows_without_a_cursor_belong_to_the_first_run(project: Project) -> None:
    project.db.execute(TABLE, "INSERT INTO t (n, a) VALUES (1, 1), (2, 2)")
    project.run(**BY_TIME)
    assert project.rows("n") == {1: 1, 2: 1}
    assert project.reconcile() == "match"
    project.db.execute("DELETE FROM t WHERE n = 2")
    assert project.reconcile() == "mismatch"


def test_a_repair_of_a_repair_counts_once(project: Project) -> None:
    start(project, MODES["incremental"])
    for value in ("one", "two"):
        project.db.execute(f"UPDATE t SET v = '{value}' WHERE n = 35")
        project.repair()
    fill(project.db, ROWS + 1, ROWS + 1)
    project.run()
    assert project.rows("n") == dict.fromkeys(range(1, ROWS + 2), 1)
    assert project.rows("v")["two"] == 1
    assert project.validate().findings == ()


@pytest.mark.parametrize("name", ["range", "window", "incremental", "keyset_incremental"])
@pytest.mark.parametrize("point", ["after_unit_commit", "after_manifest_copy", "after_quarantine"])
def test_a_killed_repair_leaves_each_row_once(project: Project, name: str, point: str) -> None:
    start(project, MODES[name])
    project.db.execute("UPDATE t SET v = 'new' WHERE n = 35")
    project.killed_run(point, "repair", "--execute")
    fill(project.db, ROWS + 1, ROWS + 3)
    project.run()
    assert project.rows("n") == dict.fromkeys(range(1, ROWS + 4), 1)
    assert project.validate().findings == ()


def test_the_marker_comes_back_when_a_killed_repair_is_followed_by_nothing_new(project: Project) -> None:
    start(project, MODES["incremental"])
    project.db.execute("UPDATE t SET v = 'new' WHERE n = 35")
    project.killed_run("after_unit_commit", "repair", "--execute")
    assert not (project.prefix / "_SUCCESS").exists()
    assert project.run().outcome.status == "skipped"
    assert project.validate().findings == ()
    assert project.rows("n") == dict.fromkeys(range(1, ROWS + 1), 1)
    assert project.reconcile() == "mismatch", "it is still to be repaired"


def test_chosen_partitions_of_a_failed_window_are_that_windows(project: Project) -> None:
    """Not those of the complete run before it, which has partitions of the same names."""
    start(project, MODES["incremental"])
    fill(project.db, ROWS + 1, ROWS + 3)
    project.killed_run("after_unit_commit")
    with project.engine() as engine, engine.session("o", holder="t", lock_wait=0) as session:
        session.plan(only=["000000"])
        list(session.execute())
        session.finalize()
    assert project.rows("n") == dict.fromkeys(range(1, ROWS + 4), 1)


def test_a_window_whose_export_changed_is_not_repaired_by_the_next_window(project: Project) -> None:
    start(project, MODES["incremental"])
    project.db.execute("ALTER TABLE t ADD extra int")
    with (
        project.engine() as engine,
        engine.session("o", holder="t", lock_wait=0) as session,
        pytest.raises(UsageError) as caught,
    ):
        session.plan(only=["000000"], repair=True)
    assert "cannot be run again" in caught.value.message


def test_a_table_that_is_rewritten_while_it_is_compared_is_compared_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot does not see the rows of a table that was rewritten after it: it looks empty."""
    start(project, MODES["range"])
    real = aggregate_sql
    attempts: list[int] = []
    with project.db.connect() as other:
        other.autocommit = False

        def let_go_when_waited_for() -> None:
            with project.db.connect() as look:
                for _ in range(400):
                    waits = look.execute("SELECT 1 FROM pg_locks WHERE NOT granted LIMIT 1").fetchone()
                    if waits:
                        break
                    time.sleep(0.05)
            other.commit()

        thread = threading.Thread(target=let_go_when_waited_for)

        def rewriting(*args: Any, **options: Any) -> Any:
            attempts.append(1)
            if len(attempts) == 1:
                other.execute("ALTER TABLE t ALTER n TYPE bigint")
                other.execute("ALTER TABLE t ALTER n TYPE int")
                thread.start()
            return real(*args, **options)

        monkeypatch.setattr("rivet_dagster.engine.sources.postgres.recount.aggregate_sql", rewriting)
        report = project.reconciled()
        thread.join()
    assert report.status == "match"
    assert len(attempts) == len(report.units) + 1, "one was counted again"


@pytest.mark.parametrize("name", ["range", "window", "incremental, first", "late, first"])
def test_a_match_moves_the_verified_boundary_to_the_committed_one(project: Project, name: str) -> None:
    start(project, MODES[name])
    with project.engine() as engine:
        before = engine.state.progression("o", str(project.prefix))
        engine.reconcile("o")
        after = engine.state.progression("o", str(project.prefix))
    assert before.verified is None
    assert after.committed is not None
    assert after.verified is not None
    where = [(b.strategy, b.run_id, b.cursor, b.chunk_index) for b in (after.committed, after.verified)]
    assert where[0] == where[1]
