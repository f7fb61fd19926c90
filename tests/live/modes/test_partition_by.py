"""``partition_by``: Hive folders of days, months and years; every row in exactly one."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pytest
import xxhash

from rivet_dagster.engine.destinations.local import LocalStore
from rivet_dagster.engine.errors import ConfigError, RefusalError, RivetError, UsageError
from rivet_dagster.engine.run.events import UnitCommitted
from rivet_dagster.engine.sources.postgres import bounds
from rivet_dagster.engine.verify.repair import plan_repair
from rivet_dagster.engine.verify.validate import validate_prefix
from tests.live.modes.kit import Project, Ran

NULL = "__HIVE_DEFAULT_PARTITION__"


@pytest.fixture
def project(project: Project) -> Project:
    project.keys = {"mode": "full", "partition_by": "d"}
    return project


def fill(project: Project, kind: str, *values: str | None, index: bool = True) -> None:
    """Table ``t`` of numbered rows with a column ``d`` of type ``kind``."""
    project.db.execute(f"CREATE TABLE t (n int PRIMARY KEY, d {kind})")
    if index:
        project.db.execute("CREATE INDEX ON t (d)")
    add(project, 0, *values)


def add(project: Project, first: int, *values: str | None) -> None:
    with project.db.connect() as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO t VALUES (%s, %s)", list(enumerate(values, first)))


def hive(project: Project, folder: str = "*") -> dict[str, list[int]]:
    """Rows by the value of their folder, as DuckDB reads Hive folders; each row with its own manifest's."""
    found: dict[str, list[int]] = {}
    glob = str(project.prefix / folder / "*.parquet")
    query = (
        "SELECT n, d FROM read_parquet($glob, hive_partitioning=true, hive_types_autocast=false) ORDER BY n"
    )
    for number, value in duckdb.sql(query, params={"glob": glob}).fetchall():
        found.setdefault(str(value), []).append(number)
    return found


def assert_folders_are_whole(project: Project) -> None:
    """Each folder is an export of its own to a reader: manifest, copy, marker, parts, nothing else."""
    rows = 0
    for folder in sorted(p for p in project.prefix.iterdir() if "=" in p.name):
        data = (folder / "manifest.json").read_bytes()
        manifest = json.loads(data)
        rows += manifest["row_count"]
        names = {part["path"] for part in manifest["parts"]}
        own = {"manifest.json", "_SUCCESS", f"manifest-{manifest['run_id']}.json"}
        assert {p.name for p in folder.iterdir()} == names | own
        assert (folder / "_SUCCESS").read_text() == f"xxh3:{xxhash.xxh3_64(data).hexdigest()}\n"
        report = validate_prefix(LocalStore(folder), str(folder), depth="full", export_name="o")
        assert (report.status, report.findings) == ("pass", ())
    assert rows == project.manifest().row_count
    with project.engine() as engine:
        report = engine.validate("o")
    assert (report.status, report.findings) == ("pass", ())


def choose(project: Project, *keys: str) -> Ran:
    with project.engine() as engine, engine.session("o", holder="test", lock_wait=0) as session:
        plan = session.plan(only=keys)
        events = tuple(session.execute())
        return Ran(plan, events, session.finalize())


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize(
    ("granularity", "folders"),
    [
        ("day", {"2023-12-31": [0], "2024-01-01": [1, 2], "2024-02-29": [3], "2031-07-01": [4], "None": [5]}),
        ("month", {"2023-12": [0], "2024-01": [1, 2], "2024-02": [3], "2031-07": [4], "None": [5]}),
        ("year", {"2023": [0], "2024": [1, 2, 3], "2031": [4], "None": [5]}),
    ],
)
@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamptz"])
def test_rows_lie_in_the_folder_of_their_day(
    project: Project, kind: str, granularity: str, folders: dict[str, list[int]], index: bool
) -> None:
    last = "2024-01-01" if kind == "date" else "2024-01-01 23:59:59.999999"
    zone = "+00" if kind == "timestamptz" else ""
    values = ["2023-12-31", "2024-01-01", last, "2024-02-29", "2031-07-01"]
    fill(project, kind, *(v + (zone if " " in v else "") for v in values), None, index=index)
    ran = project.run(partition_granularity=granularity)
    assert len(ran.plan.units) == len(folders)  # no unit for a folder without rows
    assert hive(project) == folders
    assert (project.prefix / f"d={NULL}").is_dir()
    assert_folders_are_whole(project)
    assert project.reconcile() == "match"


def test_the_day_of_an_instant_is_the_day_in_utc(project: Project) -> None:
    """Whatever the zone of the server, and on both sides of a change of its clocks."""
    name = project.db.url.rpartition("/")[2]
    project.db.execute(f"ALTER DATABASE \"{name}\" SET TimeZone = 'America/New_York'")
    fill(
        project,
        "timestamptz",
        "2024-03-09 18:59:59.999999-05",
        "2024-03-09 19:00:00-05",
        "2024-03-10 03:30:00-04",  # the hour after the missing one
        "2024-03-10 20:00:00-04",
        "2024-11-03 01:30:00-04",
        "2024-11-03 01:30:00-05",
    )
    project.run()
    assert hive(project) == {"2024-03-09": [0], "2024-03-10": [1, 2], "2024-03-11": [3], "2024-11-03": [4, 5]}
    assert project.reconcile() == "match"


def test_a_time_without_a_zone_lies_in_the_day_that_it_says(project: Project) -> None:
    name = project.db.url.rpartition("/")[2]
    project.db.execute(f"ALTER DATABASE \"{name}\" SET TimeZone = 'Asia/Tokyo'")
    fill(project, "timestamp", "2024-03-09 23:59:59.999999", "2024-03-10 00:00:00")
    project.run()
    assert hive(project) == {"2024-03-09": [0], "2024-03-10": [1]}


@pytest.mark.parametrize("granularity", ["day", "month", "year"])
@pytest.mark.parametrize("kind", ["date", "timestamptz"])
def test_the_first_and_the_last_day_of_all(project: Project, kind: str, granularity: str) -> None:
    fill(project, kind, *(f"{d} 00:00+00" for d in ("0001-01-01", "9999-12-31", "1970-01-01")))
    ran = project.run(partition_granularity=granularity)
    assert len(ran.plan.units) == 3
    assert [numbers for _, numbers in sorted(hive(project).items())] == [[0], [2], [1]]


@pytest.mark.parametrize("value", ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01"])
@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamptz"])
def test_a_day_that_no_folder_can_name_is_refused(project: Project, kind: str, value: str) -> None:
    fill(project, kind, "2024-01-01", value)
    with pytest.raises(RefusalError, match="outside the years 1 to 9999") as caught:
        project.run()
    assert (caught.value.code, caught.value.field) == ("RIVET_PLAN_BOUNDS_UNREADABLE", "partition_by")
    assert not project.prefix.exists()


def test_a_column_without_days_is_refused(project: Project) -> None:
    project.db.execute("CREATE TABLE t (n int, d text)")
    with pytest.raises(ConfigError, match="folders need a date or timestamp column"):
        project.run()
    with pytest.raises(ConfigError, match="there is no column 'e'"):
        project.run(partition_by="e")


def test_each_folder_of_a_table_without_an_index_is_a_pass_over_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rivet_dagster.engine.plan.folders.PASSES_BYTES", 30_000)
    fill(project, "date", *(f"2024-01-{day:02}" for day in range(1, 29)), index=False)
    with pytest.raises(RefusalError, match="each of 28 folders reads the whole table"):
        project.run()
    project.run(partition_granularity="month")
    project.run(partition_granularity="day", allow_scan=True)
    assert len(hive(project)) == 28


def test_too_many_folders_are_refused(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rivet_dagster.engine.plan.folders.MAX_UNITS", 2)
    fill(project, "date", "2024-01-01", "2024-01-02", "2025-01-02")
    with pytest.raises(RefusalError, match="would need 3 folders"):
        project.run()
    project.run(partition_granularity="year")
    chunked: dict[str, Any] = {
        "mode": "chunked",
        "chunk_column": "n",
        "chunk_size": 1,
        "partition_granularity": "year",
    }
    with pytest.raises(RefusalError, match="more than 2 units"):
        project.run(**chunked)


def test_an_empty_table_shows_its_columns(project: Project) -> None:
    fill(project, "date")
    ran = project.run()
    assert (ran.outcome.rows, ran.outcome.files) == (0, 1)
    glob = str(project.prefix / "*" / "*.parquet")
    found = duckdb.sql("SELECT * FROM read_parquet($g, hive_partitioning=true)", params={"g": glob})
    assert (found.columns, found.fetchall()) == (["n", "d"], [])


CUTS: list[dict[str, Any]] = [
    {"chunk_column": "n", "chunk_size": 7},
    {"chunk_column": "n", "chunk_count": 3},
    {"chunk_column": "n", "chunk_size": 7, "chunk_dense": True},
    {"chunk_column": "d", "chunk_by_days": 10},
    {"chunk_column": "n", "chunk_size": 7, "consistency": "snapshot"},
]


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: "-".join(map(str, cut.values())))
def test_each_folder_is_cut_into_chunks_of_its_own(project: Project, cut: dict[str, Any]) -> None:
    values = [f"2024-0{1 + n * 7 % 3}-{1 + n % 28:02}" if n % 10 else None for n in range(100)]
    fill(project, "date", *values)
    ran = project.run(mode="chunked", partition_granularity="month", parallel=2, **cut)
    assert len(ran.plan.units) > 6
    assert ran.plan.partitions == ("2024-01", "2024-02", "2024-03", "null")
    expected: dict[str, list[int]] = {}
    for number, value in enumerate(values):
        expected.setdefault(str(value and value[:7]), []).append(number)
    assert hive(project) == expected
    assert_folders_are_whole(project)
    assert project.reconcile() == "match"


def test_a_new_run_replaces_all_folders(project: Project) -> None:
    fill(project, "date", "2024-01-01", "2024-01-02", "2024-01-03", None)
    project.run()
    project.db.execute("DELETE FROM t WHERE d IS NULL OR d = '2024-01-01'")
    add(project, 10, "2024-01-03", "2024-01-04")
    project.run()
    assert hive(project) == {"2024-01-02": [1], "2024-01-03": [2, 10], "2024-01-04": [11]}
    assert {p.name for p in project.prefix.iterdir() if p.is_dir()} == {
        "d=2024-01-02",
        "d=2024-01-03",
        "d=2024-01-04",
        "_quarantine",
    }
    assert_folders_are_whole(project)


def test_another_granularity_or_column_replaces_the_folders_of_the_one_before(project: Project) -> None:
    project.db.execute(
        "CREATE TABLE t (n int, d date, e date)", "INSERT INTO t VALUES (1, '2024-01-01', '2025-06-01')"
    )
    for keys, folder in (
        ({}, "d=2024-01-01"),
        ({"partition_granularity": "year"}, "d=2024"),
        ({"partition_by": "e"}, "e=2025"),
    ):
        project.keys |= keys
        project.run()
        assert {p.name for p in project.prefix.iterdir() if "=" in p.name} == {folder}
        assert project.reconcile() == "match"


def test_files_of_others_in_the_folders_stay(project: Project) -> None:
    fill(project, "date", "2024-01-01")
    project.run()
    notes = project.prefix / "d=2024-01-01" / "notes.txt"
    notes.write_text("mine")
    project.db.execute("DELETE FROM t")
    project.run()
    assert notes.read_text() == "mine"


def test_rows_of_a_folder_that_come_after_the_plan_are_read(project: Project) -> None:
    """A chunk reads its own snapshot; a day that had no row is the next run's."""
    fill(project, "date", "2024-01-01", "2024-01-02")
    project.run(between=lambda: add(project, 10, "2024-01-02", "2024-01-09"))
    assert hive(project) == {"2024-01-01": [0], "2024-01-02": [1, 10]}
    assert project.reconcile() == "mismatch"  # the folder of the 9th is not there
    project.run(consistency="snapshot", between=lambda: add(project, 20, "2024-01-02"))
    assert hive(project) == {"2024-01-01": [0], "2024-01-02": [1, 10], "2024-01-09": [11]}


def test_a_folder_that_loses_its_rows_while_the_run_goes_on(project: Project) -> None:
    fill(project, "date", "2024-01-01", "2024-01-02")
    project.run(between=lambda: project.db.execute("DELETE FROM t WHERE n = 1"))
    assert hive(project) == {"2024-01-01": [0]}
    assert not (project.prefix / "d=2024-01-02").exists()
    assert_folders_are_whole(project)


def test_chosen_folders_are_run_again_and_the_others_carried(project: Project) -> None:
    fill(project, "date", "2024-01-01", "2024-01-02", "2024-01-03", None)
    project.run()
    kept = (project.prefix / "d=2024-01-01" / "manifest.json").read_bytes()
    add(project, 10, "2024-01-01", "2024-01-02", None)
    ran = choose(project, "2024-01-02", "null")
    assert {e.unit.partition for e in ran.units if not e.carried} == {"2024-01-02", "null"}
    assert hive(project) == {"2024-01-01": [0], "2024-01-02": [1, 11], "2024-01-03": [2], "None": [3, 12]}
    assert (project.prefix / "d=2024-01-01" / "manifest.json").read_bytes() == kept
    assert_folders_are_whole(project)


def test_a_day_that_no_run_had_is_added(project: Project) -> None:
    fill(project, "date", "2024-01-01", "2024-01-03")
    assert choose(project, "2024-01-03").plan.partitions == ("2024-01-03",)  # the very first run
    assert hive(project) == {"2024-01-03": [1]}
    add(project, 10, "2024-01-02")
    ran = choose(project, "2024-01-02", "2030-01-01")
    assert ran.plan.partitions == ("2024-01-02", "2024-01-03", "2030-01-01")
    assert hive(project) == {"2024-01-02": [10], "2024-01-03": [1]}
    assert not (project.prefix / "d=2030-01-01").exists()  # no row, no folder
    assert_folders_are_whole(project)
    with pytest.raises(UsageError, match="named like 2024-01-31, or null"):
        choose(project, "2024-01")


def test_reconcile_finds_what_is_wrong_and_repair_runs_that_folder(project: Project) -> None:
    fill(project, "date", "2024-01-01", "2024-01-02", "2024-01-03")
    project.run()
    project.db.execute("UPDATE t SET n = 7 WHERE n = 1")
    add(project, 10, "2024-02-01", None)
    with project.engine() as engine:
        report = engine.reconcile("o")
    wanted = plan_repair(report).partitions
    assert wanted == ("2024-01-02", "2024-02-01", "null")
    choose(project, *wanted)
    assert hive(project) == {
        "2024-01-01": [0],
        "2024-01-02": [7],
        "2024-01-03": [2],
        "2024-02-01": [10],
        "None": [11],
    }
    assert project.reconcile() == "match"


def test_a_run_that_was_killed_goes_on_with_its_folders(project: Project) -> None:
    fill(project, "date", "2024-01-01", "2024-01-02", "2024-01-03", None)
    project.keys["chunk_checkpoint"] = True
    project.killed_run("after_unit_commit:2")
    ran = project.run()
    assert ran.plan.resumed
    assert sum(not e.carried for e in ran.units) == 2
    assert hive(project) == {"2024-01-01": [0], "2024-01-02": [1], "2024-01-03": [2], "None": [3]}
    assert_folders_are_whole(project)


@pytest.mark.parametrize("late", [False, True], ids=["cursor", "late_rows"])
def test_an_incremental_run_adds_files_to_the_folders_of_its_rows(project: Project, late: bool) -> None:
    project.db.execute("CREATE TABLE t (n int PRIMARY KEY, d date, at timestamptz NOT NULL)")

    def insert(*rows: tuple[int, str | None]) -> None:
        for number, day in rows:
            project.db.execute(
                f"INSERT INTO t VALUES ({number}, {f'{day!r}' if day else 'NULL'},"
                f" timestamptz '2024-01-01 00:00+00' + interval '{number} s')"
            )

    project.keys |= {"mode": "incremental", "cursor_column": "at"} | ({"late_rows": "1d"} if late else {})
    insert((1, "2024-01-01"), (2, "2024-01-02"), (3, None))
    assert project.run().plan.partitions == ("2024-01-01", "2024-01-02", "null")
    insert((4, "2024-01-02"), (5, "2024-01-03"))
    assert project.run().plan.partitions == ("2024-01-02", "2024-01-03")
    assert project.run().outcome.status == "skipped"
    insert((6, None))
    assert project.run().plan.partitions == ("null",)
    assert hive(project) == {"2024-01-01": [1], "2024-01-02": [2, 4], "2024-01-03": [5], "None": [3, 6]}
    with project.engine() as engine:
        assert engine.validate("o").status == "pass"
        assert engine.reconcile("o").status == "match"
    folder = project.prefix / "d=2024-01-02"
    assert len(list(folder.glob("manifest-*.json"))) == 2  # each run's delta, as in the prefix itself
    assert (folder / "_SUCCESS").exists()


def test_a_query_and_csv(project: Project) -> None:
    fill(project, "date", "2024-01-01", "2024-01-02", None)
    project.run(query="SELECT n, d FROM t WHERE n <> 1", format="csv")
    glob = str(project.prefix / "*" / "*.csv")
    rows = duckdb.sql("SELECT n FROM read_csv($g, hive_partitioning=true) ORDER BY n", params={"g": glob})
    assert rows.fetchall() == [(0,), (2,)]
    assert project.reconcile() == "match"


def test_a_part_that_goes_is_seen_through_its_folder(project: Project) -> None:
    fill(project, "date", "2024-01-01", "2024-01-02")
    project.run()
    (project.prefix / "d=2024-01-01" / "_SUCCESS").unlink()
    with project.engine() as engine:
        report = engine.validate("o", depth="sample")
    assert [f.kind for f in report.findings] == ["folder_inconsistent"]


def test_a_day_is_added_while_another_one_keeps_a_run_open(project: Project) -> None:
    """What the open run has done stays done, and what it has not stays to be done."""
    project.db.execute("CREATE TABLE t (n int, d date, v numeric)")
    project.db.execute("INSERT INTO t VALUES (0, '2024-01-01', 1), (1, '2024-01-02', 'NaN')")
    project.keys["columns"] = {"v": "decimal(10,2)"}
    with pytest.raises(RivetError, match="NaN"):
        project.run()
    project.db.execute("INSERT INTO t VALUES (2, '2024-01-03', 1)")
    with project.engine() as engine, engine.session("o", holder="test", lock_wait=0) as session:
        assert session.plan(only=["2024-01-03"]).partitions == ("2024-01-01", "2024-01-02", "2024-01-03")
        assert [e.rows for e in session.execute() if isinstance(e, UnitCommitted) and not e.carried] == [1]
        assert not session.complete
    project.db.execute("UPDATE t SET v = 1, n = 7 WHERE n = 1")
    ran = choose(project, "2024-01-02")
    assert {e.unit.partition for e in ran.units if not e.carried} == {"2024-01-02"}
    assert hive(project) == {"2024-01-01": [0], "2024-01-02": [7], "2024-01-03": [2]}
    assert_folders_are_whole(project)


def test_a_run_with_other_folders_is_not_continued(project: Project) -> None:
    fill(project, "date", "2024-01-01", "2024-01-02", "2024-02-03")
    project.keys["chunk_checkpoint"] = True
    project.killed_run("after_unit_commit:1")
    ran = project.run(partition_granularity="month")
    assert not ran.plan.resumed
    assert hive(project) == {"2024-01": [0, 1], "2024-02": [2]}
    assert_folders_are_whole(project)


def test_days_far_apart_are_found_through_the_index(project: Project) -> None:
    """Not by a pass over the table, and not day by day."""
    days = [f"{year:04}-06-30" for year in range(1, 9999, 500)]
    fill(project, "date", *days)
    project.db.execute("INSERT INTO t SELECT n, '0001-06-30' FROM generate_series(100, 50000) n", "ANALYZE t")
    with project.engine() as engine:
        export = engine.export("o")
        with engine.source(export).planner(snapshot=False) as planner:
            statement = bounds.spans(
                planner.origin.from_sql(), planner.facts, "d", "day", "0001-06-30", "9999-01-01"
            )
            assert planner.spans("d", "day", "0001-06-30", "9999-01-01") == days
    with project.db.connect() as connection:
        (plan,) = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}".encode()).fetchone() or ()
    assert "Seq Scan" not in json.dumps(plan)
