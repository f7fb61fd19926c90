"""Incremental exports: every row once, whatever the cursor's type; and reconcile finds what differs."""

from __future__ import annotations

import threading
from typing import Any, Final

import pytest

from rivet_dagster.engine.errors import RefusalError
from rivet_dagster.engine.plan.units import UnitKind
from rivet_dagster.engine.run.events import UnitCommitted
from tests.live.postgres.rig import EXPORT, Rig, source_rows

#: (type of the cursor, values of the first rows, one past them and one past that)
CURSORS: Final[dict[str, tuple[str, list[str], str, str]]] = {
    "int": ("int", ["-7", "0", "9"], "10", "2147483647"),
    "bigint": ("bigint", ["-9223372036854775808", "5"], "6", "9223372036854775807"),
    "numeric": ("numeric(30,10)", ["-1", "2", "10"], "10.0000000001", "100000000000000000.1"),
    "loose": ("numeric", ["-1e-30", "2", "10"], "10.0000000000000000000000000000001", "1e100"),
    "text": ("text", ["", "a'b", "b\\c"], "c\\d'e", "é🚰"),
    "uuid": ("uuid", ["00000000-0000-0000-0000-000000000001"], "0" * 31 + "2", "f" * 32),
    "date": ("date", ["4713-01-01 BC", "2026-01-01"], "2026-01-02", "2026-02-28"),
    "timestamp": ("timestamp", ["1999-12-31 23:59:59.999999"], "2000-01-01", "2026-03-29 02:30:00.000001"),
    "timestamptz": (
        "timestamptz", ["2026-01-01 00:00:00.123456+00"], "2026-01-01 00:00:00.123457+00",
        "2026-10-25 00:30:00+00",
    ),
    "float": ("float8", ["-1.5", "0.1"], "0.30000000000000004", "1e300"),
}  # fmt: skip


def text_rows(rig: Rig) -> list[tuple[Any, ...]]:
    return source_rows(rig.db, "id")


def ids(rig: Rig) -> list[int]:
    return [i for (i,) in rig.read("id")]


@pytest.mark.parametrize("cursor", CURSORS)
def test_each_row_comes_once(rig: Rig, cursor: str) -> None:
    kind, first, second, third = CURSORS[cursor]
    # what the role and the database prefer must not change what a cursor means
    for setting in ("TimeZone = 'America/Los_Angeles'", "DateStyle = 'SQL, DMY'", "extra_float_digits = -5"):
        rig.db.execute(f"ALTER DATABASE {rig.db.name} SET {setting}")
    rig.db.execute(f"CREATE TABLE things (id serial, c {kind})")

    def add(value: str | None) -> None:
        with rig.db.connect() as connection:
            connection.execute(f"INSERT INTO things (c) VALUES (%s::text::{kind})".encode(), [value])

    for value in (*first, None):
        add(value)
    rig.export(mode="incremental", cursor_column="c")
    assert rig.run().rows == len(first) + 1  # rows without a cursor come with the first run
    marker = rig.manifest()["run_id"]
    outcome = rig.run()
    assert (outcome.status, outcome.rows) == ("skipped", 0)
    assert rig.manifest()["run_id"] == marker
    for value in (second, third):
        add(value)
        add(value)  # a tie at the bound belongs to the same run
        assert rig.run().rows == 2
    assert ids(rig) == [i for (i,) in text_rows(rig)]
    assert rig.engine.validate(EXPORT).passed


def test_an_empty_later_run_touches_nothing(rig: Rig) -> None:
    rig.db.execute("CREATE TABLE things (id int)", "INSERT INTO things SELECT generate_series(1, 10)")
    rig.export(mode="incremental", cursor_column="id").run()
    seen = {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in rig.folder().rglob("*")}
    rig.db.execute("INSERT INTO things VALUES (NULL), (3)")  # both below the watermark
    outcome = rig.run()
    assert (outcome.status, outcome.files, outcome.bytes) == ("skipped", 0, 0)
    assert outcome.skip_reason
    assert "id" in outcome.skip_reason
    assert {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in rig.folder().rglob("*")} == seen
    assert rig.engine.state.open_run(EXPORT) is None


def test_an_empty_first_run(rig: Rig) -> None:
    rig.db.execute("CREATE TABLE things (id int)")
    rig.export(mode="incremental", cursor_column="id")
    for _ in range(2):
        assert (rig.run().rows, rig.files().count("_SUCCESS"), len(rig.parts())) == (0, 1, 1)
    rig.db.execute("INSERT INTO things VALUES (NULL)")
    assert rig.run().rows == 1
    rig.db.execute("INSERT INTO things VALUES (1)")
    rig.run()
    rig.db.execute("INSERT INTO things VALUES (2)")
    assert rig.run().rows == 1
    assert rig.read() == source_rows(rig.db)


def test_rows_that_come_while_the_run_goes_on_are_the_next_one_s(rig: Rig) -> None:
    rig.db.execute("CREATE TABLE things (id int)", "INSERT INTO things SELECT generate_series(1, 10)")
    rig.export(mode="incremental", cursor_column="id")
    assert rig.run(between=lambda: rig.db.execute("INSERT INTO things VALUES (11), (5)")).rows == 10
    assert rig.run(between=lambda: rig.db.execute("INSERT INTO things VALUES (12)")).rows == 1
    assert rig.run().rows == 1
    assert sorted(ids(rig)) == list(range(1, 13))


def test_a_cursor_belongs_to_its_column_and_table(rig: Rig) -> None:
    rig.db.execute(
        "CREATE TABLE things (id int, other int)",
        "INSERT INTO things SELECT g, -g FROM generate_series(1, 10) g",
        "CREATE TABLE copies AS TABLE things",
    )
    rig.export(mode="incremental", cursor_column="id").run()
    files = rig.files()
    for export in ({"cursor_column": "other"}, {"cursor_column": "id", "table": "copies"}):
        error = rig.configure({"table": EXPORT, "mode": "incremental", **export}).failure()
        assert isinstance(error, RefusalError)
        assert (error.code, error.exit_code) == ("RIVET_STATE_CURSOR_OWNER_MISMATCH", 5)
        assert "'id'" in error.message
    assert rig.files() == files
    assert rig.export(mode="incremental", cursor_column="id").run().status == "skipped"


def test_the_first_run_of_a_large_table_is_cut_in_pages(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rivet_dagster.engine.plan.sizing.UNIT_MIN_BYTES", 100_000)
    rig.db.execute(
        "CREATE TABLE things (id int, pad text)",
        "INSERT INTO things SELECT NULLIF(g, 77), repeat('x', 100) FROM generate_series(1, 5000) g",
    )
    rig.export(mode="incremental", cursor_column="id", parallel=2)
    rig.run(between=lambda: rig.db.execute("INSERT INTO things VALUES (5001, 'late')"))
    units = [e.unit.kind for e in rig.events if isinstance(e, UnitCommitted)]
    assert len(units) > 3
    assert set(units) == {UnitKind.PAGES}
    assert (
        rig.engine.reconcile(EXPORT).status == "match"
    )  # the row without a cursor counts, the late one does not
    assert rig.run().rows == 1
    assert rig.read() == source_rows(rig.db)


def test_a_cursor_of_a_query(rig: Rig) -> None:
    rig.db.execute("CREATE TABLE things (id int)", "INSERT INTO things SELECT generate_series(1, 10)")
    rig.configure(
        {"query": "SELECT id, -id AS n FROM things -- all;", "mode": "incremental", "cursor_column": "id"}
    )
    assert rig.run().rows == 10
    rig.db.execute("INSERT INTO things SELECT generate_series(11, 13)")
    assert rig.run().rows == 3
    assert rig.run().status == "skipped"
    assert sorted(ids(rig)) == list(range(1, 14))


def test_a_run_that_fails_moves_no_cursor(rig: Rig) -> None:
    rig.db.execute("CREATE TABLE things (id int, day date)", "INSERT INTO things VALUES (1, '2026-01-01')")
    rig.export(mode="incremental", cursor_column="id").run()
    rig.db.execute("INSERT INTO things VALUES (2, '2026-01-02'), (3, 'infinity'), (4, '2026-01-04')")
    assert rig.failure().code == "RIVET_SOURCE_VALUE_UNREPRESENTABLE"
    assert ids(rig) == [1]
    rig.db.execute("UPDATE things SET day = '2026-01-03' WHERE id = 3")
    assert rig.run().rows == 3
    assert ids(rig) == [1, 2, 3, 4]
    assert "_SUCCESS" in rig.files()


def test_reconcile_while_others_write(rig: Rig) -> None:
    """Selected partitions, run again, make an export match that a change had made differ."""
    rig.db.execute(
        "CREATE TABLE things (id int PRIMARY KEY, n int, word text)",
        "INSERT INTO things SELECT g, g, 'w' || g FROM generate_series(0, 999) g",
    )
    rig.export(mode="chunked", chunk_column="id", chunk_size=250).run()
    assert rig.engine.reconcile(EXPORT).status == "match"
    rig.db.execute("UPDATE things SET n = n + 1 WHERE id = 300")
    report = rig.engine.reconcile(EXPORT)
    assert report.status == "mismatch"
    assert [u.index for u in report.units if u.status == "mismatch"] == [1]
    rig.db.execute("DELETE FROM things WHERE id BETWEEN 600 AND 610")
    report = rig.engine.reconcile(EXPORT)
    assert [u.index for u in report.units if u.status == "mismatch"] == [1, 2]
    rig.run(only={"000000000250"})
    assert [u.index for u in rig.engine.reconcile(EXPORT).units if u.status == "mismatch"] == [2]
    rig.run(only={"000000000500"})
    assert rig.engine.reconcile(EXPORT).status == "match"
    assert rig.read() == source_rows(rig.db)


def test_two_incremental_runs_at_once_make_no_row_twice(rig: Rig) -> None:
    rig.db.execute("CREATE TABLE things (id int)", "INSERT INTO things SELECT generate_series(1, 100)")
    rig.export(mode="incremental", cursor_column="id")
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with rig.engine.session(EXPORT, holder="test", lock_wait=60) as session:
                session.plan()
                list(session.execute())
                session.finalize()
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    rig.db.execute("INSERT INTO things SELECT generate_series(101, 150)")
    for thread in threads:
        thread.join()
    assert not failures
    rig.run()
    assert sorted(ids(rig)) == list(range(1, 151))
