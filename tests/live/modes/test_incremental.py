"""Cursors: of two columns, held back until rows are settled, and of a key; each row exactly once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rivet_dagster.engine.errors import ConfigError, RefusalError
from rivet_dagster.engine.run.preview import preview
from tests.live.modes.kit import Project
from tests.services import rivet_cli
from tests.services.postgres import TestDatabase

COALESCE: dict[str, Any] = {
    "mode": "incremental",
    "cursor_column": "updated",
    "cursor_fallback_column": "created",
    "incremental_cursor_mode": "coalesce",
}


def only_new(project: Project, before: dict[int, int], *expected: int) -> dict[int, int]:
    now = project.rows("n")
    assert {n: now[n] - before.get(n, 0) for n in now if now[n] > before.get(n, 0)} == dict.fromkeys(
        expected, 1
    )
    return now


def test_a_cursor_of_two_columns(project: Project) -> None:
    project.db.execute(
        "CREATE TABLE t (n int, created timestamptz, updated timestamptz)",
        "INSERT INTO t VALUES (1, '2024-01-01', NULL), (2, '2024-01-02', '2024-03-01'), (3, NULL, NULL)",
    )
    ran = project.run(**COALESCE)
    assert "coalesce(updated,created) is NULL are read by a first run only" in ran.notes
    seen = only_new(project, {}, 1, 2, 3)
    extraction = project.manifest().source.extraction
    assert extraction.cursor_column == "coalesce(updated,created)"
    assert extraction.cursor_high == "2024-03-01 00:00:00+00"
    assert extraction.cursor_type == "timestamp with time zone"
    assert project.reconcile() == "match"
    assert project.run().outcome.status == "skipped"
    project.db.execute(
        "INSERT INTO t VALUES (4, '2024-04-01', NULL), (5, '2024-02-01', NULL),"
        " (6, '2020-01-01', '2024-04-02'),"
        " (7, NULL, NULL), (8, '2024-05-01', '2024-02-01')"
    )
    project.run()
    only_new(project, seen, 4, 6)
    assert project.reconcile() == "match"


def test_two_columns_of_different_types_compare_as_the_server_does(project: Project) -> None:
    project.db.execute(
        "CREATE TABLE t (n int, created date, updated timestamp)",
        "INSERT INTO t VALUES (1, '2024-01-02', NULL), (2, NULL, '2024-01-01 23:00:00.000001')",
    )
    project.run(**COALESCE)
    seen = only_new(project, {}, 1, 2)
    assert project.manifest().source.extraction.cursor_high == "2024-01-02 00:00:00"
    project.db.execute(
        "INSERT INTO t VALUES (3, '2024-01-02', NULL), (4, '2024-01-02', '2024-01-02 00:00:00.000001')"
    )
    project.run()
    only_new(project, seen, 4)


def test_another_cursor_is_not_mistaken_for_this_one(project: Project) -> None:
    project.db.execute(
        "CREATE TABLE t (n int, created date, updated date)", "INSERT INTO t VALUES (1, '2024-01-01')"
    )
    project.run(**COALESCE)
    project.keys = {"mode": "incremental", "cursor_column": "created"}
    with pytest.raises(RefusalError) as caught:
        project.run()
    assert caught.value.code == "RIVET_STATE_CURSOR_OWNER_MISMATCH"
    assert "coalesce(updated,created)" in caught.value.message


@pytest.mark.parametrize("kind", ["timestamptz", "timestamp"])
def test_a_late_commit_below_the_watermark_is_not_lost_once_settled(project: Project, kind: str) -> None:
    """The row of the transaction that commits last has the earlier time: without settling it is lost."""
    now = "now()" if kind == "timestamptz" else "now() AT TIME ZONE 'UTC'"
    project.db.execute(f"CREATE TABLE t (n int, at {kind})", "CREATE INDEX ON t (at)")
    keys: dict[str, Any] = {"mode": "incremental", "cursor_column": "at", "settle": {"after": "2s"}}
    with project.db.connect() as late:
        late.execute("BEGIN")
        late.execute(f"INSERT INTO t VALUES (1, {now})".encode())
        project.db.execute(
            f"INSERT INTO t VALUES (2, {now})", f"INSERT INTO t VALUES (0, {now} - interval '1 h')"
        )
        ran = project.run(**keys)
        seen = only_new(project, {}, 0)
        assert "not settled yet" in ran.notes
        late.execute("COMMIT")
    project.db.execute("SELECT pg_sleep(2.1)")
    project.run()
    seen = only_new(project, seen, 1, 2)
    assert project.reconcile() == "match"
    assert project.run().outcome.status == "skipped"


def test_nothing_is_settled_yet(project: Project) -> None:
    project.db.execute("CREATE TABLE t (n int, at timestamptz)", "INSERT INTO t VALUES (1, now()), (2, NULL)")
    ran = project.run(mode="incremental", cursor_column="at", settle={"after": "1h"})
    assert ran.outcome.status == "skipped"
    assert "not settled yet" in (ran.outcome.skip_reason or "")
    assert not project.prefix.exists() or not list(project.prefix.glob("*.parquet"))


def test_a_serial_cursor_stops_below_the_first_unsettled_row(project: Project) -> None:
    old, new = "now() - interval '1 day'", "now()"
    project.db.execute(
        "CREATE TABLE t (n int PRIMARY KEY, at timestamptz)",
        f"INSERT INTO t VALUES (1, {old}), (2, {old}), (3, {new}), (4, {old})",
    )
    keys: dict[str, Any] = {
        "mode": "incremental",
        "cursor_column": "n",
        "settle": {"after": "1h", "column": "at"},
    }
    ran = project.run(**keys)
    assert "rows from 3 on are left" in ran.notes
    seen = only_new(project, {}, 1, 2)
    ran = project.run()
    assert (ran.outcome.status, "from 3 on" in (ran.outcome.skip_reason or "")) == ("skipped", True)
    project.db.execute(f"UPDATE t SET at = NULL WHERE n = 4; UPDATE t SET at = {old} WHERE n = 3")
    ran = project.run()
    assert "'at' is NULL there" in ran.notes
    seen = only_new(project, seen, 3)
    project.db.execute(f"UPDATE t SET at = {old}")
    project.run()
    only_new(project, seen, 4)


def test_ties_of_an_unsettled_row_wait_for_it(project: Project) -> None:
    project.db.execute(
        "CREATE TABLE t (n int, k int, at timestamptz)",
        "INSERT INTO t VALUES (1, 1, '2024-01-01'), (2, 2, '2024-01-01'), (3, 2, now())",
    )
    keys: dict[str, Any] = {
        "mode": "incremental",
        "cursor_column": "k",
        "settle": {"after": "1h", "column": "at"},
    }
    project.run(**keys)
    seen = only_new(project, {}, 1)
    project.db.execute("UPDATE t SET at = '2024-01-01'")
    project.run()
    only_new(project, seen, 2, 3)


@pytest.mark.parametrize(("cursor", "age"), [("k", "s"), ("s", "k"), ("q", "bound")])
def test_names_that_the_statements_use_too(project: Project, cursor: str, age: str) -> None:
    project.db.execute(
        f"CREATE TABLE t (n int, {cursor} int, {age} timestamptz)",
        "INSERT INTO t SELECT i, i, CASE i WHEN 11 THEN now() ELSE '2024-01-01' END"
        " FROM generate_series(1, 12) i",
    )
    project.run(mode="incremental", cursor_column=cursor, settle={"after": "1h", "column": age})
    assert project.rows("n") == dict.fromkeys(range(1, 11), 1)
    assert project.manifest().source.extraction.cursor_high == "10"


def test_settle_needs_a_time(project: Project) -> None:
    project.db.execute("CREATE TABLE t (n int)", "INSERT INTO t VALUES (1)")
    with pytest.raises(ConfigError) as caught:
        project.run(mode="incremental", cursor_column="n", settle={"after": "1h"})
    assert caught.value.field == "settle"


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago", "UTC"])
def test_a_date_cursor_leaves_the_current_day_alone(project: Project, zone: str) -> None:
    """In UTC and in the server's own zone, whichever is behind."""
    with project.db.connect() as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET TimeZone = '{zone}'".encode())
        row = connection.execute(
            f"SELECT least((now() AT TIME ZONE '{zone}')::date, (now() AT TIME ZONE 'UTC')::date)".encode()
        ).fetchone()
    assert row is not None
    day = f"date '{row[0]}'"
    project.db.execute(
        "CREATE TABLE t (n int, d date)",
        f"INSERT INTO t VALUES (1, {day} - 2), (2, {day} - 1), (3, {day}), (4, NULL)",
    )
    project.run(mode="incremental", cursor_column="d")
    seen = only_new(project, {}, 1, 2, 4)
    project.db.execute(f"INSERT INTO t VALUES (5, {day}), (6, {day} + 1)")
    assert project.run().outcome.status == "skipped"
    project.db.execute("UPDATE t SET d = d - 1 WHERE n IN (3, 5)")  # what tomorrow would look like
    project.run(settle={"after": "1s"})
    assert seen == project.rows("n")  # strictly past the watermark: it is the same day


def test_a_run_without_any_value_is_a_whole_pass_too(project: Project) -> None:
    """It leaves no cursor, and must not bring an older one back."""
    project.db.execute("CREATE TABLE t (n int)", "INSERT INTO t VALUES (50)")
    project.run(mode="incremental", cursor_column="n")
    project.keys = {"mode": "full"}
    project.run()
    project.db.execute("TRUNCATE t")
    project.keys = {"mode": "incremental", "cursor_column": "n"}
    project.run()
    project.db.execute("INSERT INTO t VALUES (7), (60)")
    project.run()
    assert project.rows("n") == {7: 1, 60: 1}


KEYSET: dict[str, Any] = {
    "mode": "chunked",
    "chunk_by_key": "n",
    "keyset_incremental": True,
    "chunk_size": 10,
}


def serials(db: TestDatabase, first: int, last: int) -> None:
    db.execute(f"INSERT INTO t SELECT i FROM generate_series({first}, {last}) i", "ANALYZE t")


def test_a_key_goes_on_after_its_last_value(project: Project) -> None:
    project.db.execute("CREATE TABLE t (n int PRIMARY KEY)")
    assert project.run(**KEYSET).outcome.rows == 0
    serials(project.db, 1, 95)
    ran = project.run(lambda: serials(project.db, 96, 99), parallel=2)
    assert len(ran.plan.units) == 10
    seen = only_new(project, {}, *range(1, 96))
    ran = project.run()
    seen = only_new(project, seen, 96, 97, 98, 99)
    assert project.run().outcome.status == "skipped"
    serials(project.db, 100, 134)
    ran = project.run()
    assert [e.rows for e in ran.units] == [10, 10, 10, 5]
    seen = only_new(project, seen, *range(100, 135))
    assert project.reconcile() == "match"
    assert sorted(project.rows("n")) == list(range(1, 135))


PAIR: dict[str, Any] = {**KEYSET, "chunk_by_key": ["word", "n"]}


def pairs(db: TestDatabase, word: str, first: int, last: int) -> None:
    values = f"SELECT $q${word}$q$, i FROM generate_series({first}, {last}) i"
    db.execute(f"INSERT INTO t (word, n) {values}", "ANALYZE t")


def test_a_key_of_two_columns_goes_on_after_its_last_row(project: Project) -> None:
    """Compared as a row, by the server: neither as text (9 < 10) nor one column at a time."""
    project.db.execute(
        "CREATE TABLE t (word text, n int, PRIMARY KEY (word, n))",
        # the index would give the whole order even to a statement that asks for less
        *(
            f"ALTER DATABASE {project.db.name} SET {name} = off"
            for name in ("enable_indexscan", "enable_indexonlyscan")
        ),
    )
    assert project.run(**PAIR).outcome.rows == 0
    pairs(project.db, "it's", 1, 5)
    pairs(project.db, "m", 1, 40)
    ran = project.run(lambda: pairs(project.db, "m", 41, 42), parallel=2)
    assert len(ran.plan.units) == 5
    extraction = project.manifest().source.extraction
    assert (extraction.cursor_column, extraction.cursor_type) == ("(word, n)", "text, integer")
    assert extraction.cursor_high == '["m", "40"]'
    assert project.reconcile() == "match"
    pairs(project.db, "o", 1, 25)
    ran = project.run()
    assert [e.rows for e in ran.units] == [10, 10, 7]
    assert ran.plan.units[0].start_key == "m, 40"
    assert project.reconcile() == "match"
    with project.engine() as engine:
        assert engine.source_moved("o") is None
        pairs(project.db, "a", 1, 3)  # below the last key, so not appended: not seen
        assert engine.source_moved("o") is None
        pairs(project.db, "o", 100, 100)
        assert engine.source_moved("o") == '["o", "100"]'
    project.run()
    assert project.run().outcome.status == "skipped"
    wanted = [("it's", n) for n in range(1, 6)] + [("m", n) for n in range(1, 43)]
    wanted += [("o", n) for n in (*range(1, 26), 100)]
    assert project.rows("word", "n") == dict.fromkeys(wanted, 1)


def test_a_key_of_two_columns_is_another_than_its_first_alone(project: Project) -> None:
    project.db.execute("CREATE TABLE t (word text UNIQUE NOT NULL, n int, PRIMARY KEY (word, n))")
    pairs(project.db, "m", 1, 1)
    project.run(**PAIR)
    with pytest.raises(RefusalError) as caught:
        project.run(chunk_by_key="word")
    assert caught.value.code == "RIVET_STATE_CURSOR_OWNER_MISMATCH"


def test_a_key_whose_first_column_ends_the_order_is_refused(project: Project) -> None:
    project.db.execute(
        "CREATE TABLE t (at timestamp, n int, PRIMARY KEY (at, n))",
        "INSERT INTO t VALUES ('infinity', 1), ('2026-01-01', 2)",
    )
    with pytest.raises(RefusalError) as caught:
        project.run(**{**KEYSET, "chunk_by_key": ["at", "n"]})
    assert caught.value.code == "RIVET_SOURCE_VALUE_UNREPRESENTABLE"


@pytest.mark.parametrize("keys", [KEYSET, PAIR], ids=["one", "two"])
def test_a_resumed_run_moves_the_key_as_it_would_have(project: Project, keys: dict[str, Any]) -> None:
    project.db.execute("CREATE TABLE t (n int PRIMARY KEY, word text NOT NULL DEFAULT 'w', UNIQUE (word, n))")
    serials(project.db, 1, 40)
    with project.engine_with(**keys, chunk_checkpoint=True) as engine:
        with engine.session("o", holder="one", lock_wait=0) as session:
            first = session.plan()
            events = session.execute()
            next(events)
            events.close()  # type: ignore[attr-defined]
        serials(project.db, 41, 60)
        with engine.session("o", holder="two", lock_wait=0) as session:
            second = session.plan()
            assert (second.resumed, second.run_id) == (True, first.run_id)
            list(session.execute())
            session.finalize()
    seen = only_new(project, {}, *range(1, 41))
    project.run()
    only_new(project, seen, *range(41, 61))


def test_a_whole_pass_between_starts_the_key_anew(project: Project) -> None:
    project.db.execute("CREATE TABLE t (n int PRIMARY KEY)")
    serials(project.db, 1, 20)
    project.run(**KEYSET)
    project.run(keyset_incremental=False)
    assert project.rows("n") == dict.fromkeys(range(1, 21), 1)
    project.run(keyset_incremental=True)
    assert project.rows("n") == dict.fromkeys(range(1, 21), 1)


def test_uuid_keys(project: Project) -> None:
    """A type that is ordered but has no max()."""
    project.db.execute(
        "CREATE TABLE t (n uuid PRIMARY KEY)",
        "INSERT INTO t SELECT lpad(to_hex(i), 32, '0')::uuid FROM generate_series(1, 30) i",
    )
    project.run(**KEYSET)
    project.db.execute("INSERT INTO t SELECT lpad(to_hex(i), 32, '0')::uuid FROM generate_series(31, 45) i")
    project.run()
    assert len(project.rows("n")) == 45
    assert set(project.rows("n").values()) == {1}


def test_state_holds_the_identity(project: Project, tmp_path: Path) -> None:
    project.db.execute(
        "CREATE TABLE t (n int, created date, updated date)", "INSERT INTO t VALUES (1, '2024-01-01')"
    )
    project.run(**COALESCE)
    with project.engine() as engine:
        cursor = engine.state.cursor("o", str(project.prefix))
    assert cursor is not None
    assert (cursor.column, cursor.value, cursor.type) == ("coalesce(updated,created)", "2024-01-01", "date")
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())


@pytest.mark.parametrize(
    "keys", [KEYSET, COALESCE | {"late_rows": "1d"}, COALESCE], ids=["key", "late", "coalesce"]
)
def test_folders_that_grow_are_whole(project: Project, keys: dict[str, Any]) -> None:
    """By our own judgement and by the reference's."""
    project.db.execute("CREATE TABLE t (n int PRIMARY KEY, created timestamp, updated timestamp)")
    new = "INSERT INTO t SELECT i, timestamp '2024-01-01' + i * interval '1 h' FROM generate_series({}, {}) i"
    for first in (1, 31, 61):
        project.db.execute(new.format(first, first + 29), "ANALYZE t")
        project.run(**keys)
        with project.engine() as engine:
            report = engine.validate("o")
        assert report.passed, report.findings
    assert project.rows("n") == dict.fromkeys(range(1, 91), 1)
    project.keys.pop("late_rows", None)
    project.engine().close()
    verdict = rivet_cli.validate(project.folder / "rivet.yaml", "o", "full")
    assert verdict.passed, verdict


WINDOW: dict[str, Any] = {"mode": "time_window", "time_column": "at", "days_window": 2}


@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamptz", "bigint", "float8"])
def test_a_window_of_days(project: Project, kind: str) -> None:
    unix = kind in {"bigint", "float8"}
    today = "date_trunc('day', now() AT TIME ZONE 'UTC')"
    times = [
        f"{today} - interval '3 days' + interval '23 h'",
        f"{today} - interval '2 days'",
        today,
        f"{today} + interval '9 days'",
    ]
    cast = (
        "extract(epoch FROM ({}) AT TIME ZONE 'UTC')"
        if unix
        else "({}) AT TIME ZONE 'UTC'"
        if kind == "timestamptz"
        else "({})"
    )
    project.db.execute(f"CREATE TABLE t (n int, at {kind})")
    for n, time in enumerate(times):
        project.db.execute(f"INSERT INTO t VALUES ({n}, ({cast.format(time)})::{kind})")
    keys = {**WINDOW, "time_column_type": "unix"} if unix else WINDOW
    for _ in range(2):  # the second run replaces the first
        ran = project.run(**keys)
        assert project.rows("n") == {1: 1, 2: 1, 3: 1}
    assert len(ran.plan.partitions) == 3
    assert [e.rows for e in ran.units] == [1, 0, 2]
    assert project.manifest().additions.consistency == "snapshot"  # type: ignore[union-attr]
    assert project.reconcile() == "match"


def test_a_window_reads_one_snapshot(project: Project) -> None:
    project.db.execute(
        "CREATE TABLE t (n int, at timestamptz)",
        "INSERT INTO t VALUES (1, now()), (2, now() - interval '1 d')",
    )
    move = "UPDATE t SET at = CASE n WHEN 1 THEN now() - interval '1 d' ELSE now() END"
    project.run(lambda: project.db.execute(move, "INSERT INTO t VALUES (3, now())"), **WINDOW)
    assert project.rows("n") == {1: 1, 2: 1}


def test_a_window_over_no_time(project: Project) -> None:
    project.db.execute("CREATE TABLE t (n int, at text)")
    for keys in (WINDOW, {**WINDOW, "time_column_type": "unix"}):
        with pytest.raises(ConfigError) as caught:
            project.run(**keys)
        assert caught.value.field == "time_column"


@pytest.mark.parametrize(
    "point", ["after_unit_commit", "before_finalize", "after_manifest_copy", "after_success"]
)
@pytest.mark.parametrize(
    "keys", [KEYSET | {"chunk_checkpoint": True}, COALESCE | {"late_rows": "1d"}], ids=["key", "late"]
)
def test_killed_runs_lose_and_repeat_nothing(project: Project, keys: dict[str, Any], point: str) -> None:
    project.db.execute("CREATE TABLE t (n int PRIMARY KEY, created timestamp, updated timestamp)")
    new = "INSERT INTO t SELECT i, timestamp '2024-01-01' FROM generate_series({}, {}) i"
    project.db.execute(new.format(1, 30), "ANALYZE t")
    project.run(**keys)
    project.db.execute(new.format(31, 60))
    project.killed_run(point)
    project.db.execute(new.format(61, 90))
    project.run()
    project.run()
    assert project.rows("n") == dict.fromkeys(range(1, 91), 1)


@pytest.mark.parametrize(
    ("column", "keys", "remedy"),
    [
        ("at", {}, "`late_rows` finds them, `settle"),
        ("day", {}, "`late_rows` finds them, `settle"),
        ("n", {}, "with a time column"),
        ("at", {"query": "SELECT * FROM t"}, "can be; `settle: {after: ...}` waits"),
        ("n", {"mode": "chunked", "chunk_by_key": "n", "keyset_incremental": True}, "`mode: incremental`"),
        ("at", {"late_rows": "1h"}, None),
        ("at", {"settle": {"after": "1h"}}, None),
        ("n", {"mode": "chunked", "chunk_by_key": "n"}, None),
    ],
)
def test_a_plan_and_a_run_say_what_the_cursor_can_miss(
    project: Project, column: str, keys: dict[str, Any], remedy: str | None
) -> None:
    project.db.execute(
        "CREATE TABLE t (n int PRIMARY KEY, at timestamptz, day date)",
        "INSERT INTO t VALUES (1, '2024-01-02', '2024-01-02')",
    )
    keys = {"mode": "incremental", **keys}
    if keys["mode"] == "incremental":
        keys["cursor_column"] = column
    ran = project.run(**keys)
    assert ran.notes.count("are committed are missed") == (remedy is not None)
    assert (remedy or "") in ran.notes
    with project.engine() as engine:  # there is nothing to do now
        shown = preview(engine, "o").text()
    assert shown.count(f"rows whose {column} is at or below the last one") == (remedy is not None)
    assert (remedy or "") in shown
