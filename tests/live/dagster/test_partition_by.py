"""Exports with a folder a day: their partitions in Dagster, dynamic or of time, and rows without a day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import duckdb
import pytest

from tests.live.dagster.conftest import Project, plain

TABLE = dg.AssetKey(["rivet", "visits"])
CHUNKS = dg.AssetKey(["rivet", "visits", "chunks"])
NULLS = dg.AssetKey(["rivet", "visits", "nulls"])
#: In no window, which end with yesterday; tomorrow, so that midnight may pass while the tests run.
TOMORROW = datetime.now(UTC).date() + timedelta(days=1)
NEXT_YEAR = TOMORROW + timedelta(days=364)

VISITS = (
    "CREATE TABLE visits (n int PRIMARY KEY, day date)",
    "INSERT INTO visits VALUES (1, '2024-01-01'), (2, '2024-01-02'), (3, '2024-01-02'), (4, '2024-01-04'),"
    f" (5, NULL), (6, '2019-05-05'), (7, '{TOMORROW}'), (8, '{NEXT_YEAR}')",
    "CREATE INDEX ON visits (day)",
)

EXPORT = """
exports:
  - name: visits
    table: public.visits
    partition_by: day
    format: parquet
    destination: {type: local, path: "./out/{export}/{partition}"}
"""
WINDOWS = EXPORT + "    dagster: {partitions_start: 2024-01-01}\n"


@pytest.fixture
def visits(project: Project) -> Project:
    project.db.execute(*VISITS)
    return project.write(WINDOWS)


def rows(project: Project) -> list[int]:
    glob = str(project.out / "visits" / "*" / "*.parquet")
    return [
        n for (n,) in duckdb.sql("SELECT n FROM read_parquet($g) ORDER BY n", params={"g": glob}).fetchall()
    ]


def partitions(project: Project, result: dg.ExecuteInProcessResult) -> list[str | None]:
    return [m.partition for m in project.materialized(result, CHUNKS)]


def choose(project: Project, *keys: dg.AssetKey, partition: str | None = None) -> dg.ExecuteInProcessResult:
    """What the UI does for assets that a person selected."""
    job = project.defs.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(
        instance=project.instance,
        asset_selection=list(keys),
        partition_key=partition,
        raise_on_error=False,
    )


def test_without_a_start_the_partitions_are_the_folders_that_there_are(visits: Project) -> None:
    visits.write(EXPORT)
    result = visits.run("export_visits")
    assert result.success
    days = ["2019-05-05", "2024-01-01", "2024-01-02", "2024-01-04", str(TOMORROW), str(NEXT_YEAR), "null"]
    assert partitions(visits, result) == days
    assert visits.instance.get_dynamic_partitions("rivet__visits") == days
    second = plain(visits.materialized(result, CHUNKS)[2].metadata)
    assert (second["rows"], second["key_range"]) == (2, "[2024-01-02..2024-01-02]")
    file = Path(second["dagster/uri"].removeprefix("file://"))
    assert file.parent == visits.out / "visits" / "day=2024-01-02"
    assert file.is_file()


def test_a_table_run_fills_the_windows_of_time_and_the_rows_without_one(visits: Project) -> None:
    dg.Definitions.validate_loadable(visits.defs)
    result = visits.run("export_visits")
    assert result.success
    assert partitions(visits, result) == ["2024-01-01", "2024-01-02", "2024-01-04"]
    assert [plain(m.metadata)["rows"] for m in visits.materialized(result, NULLS)] == [1]
    (table,) = visits.materialized(result, TABLE)
    assert plain(table.metadata)["rows"] == 8  # those outside the windows too
    assert rows(visits) == [1, 2, 3, 4, 5, 6, 7, 8]
    graph = visits.defs.resolve_asset_graph()
    windows = graph.get(CHUNKS).partitions_def
    assert isinstance(windows, dg.TimeWindowPartitionsDefinition)
    at = datetime(2024, 2, 1, tzinfo=UTC)
    assert windows.get_partition_keys(current_time=at)[-1] == "2024-01-31"
    found = visits.instance.get_status_by_partition(CHUNKS, ["2024-01-02", "2024-01-03"], windows)
    assert {k: v and v.name for k, v in (found or {}).items()} == {
        "2024-01-02": "MATERIALIZED",
        "2024-01-03": None,
    }


def test_one_day_is_materialized_before_anything_else_was(visits: Project) -> None:
    result = choose(visits, CHUNKS, partition="2024-01-02")
    assert result.success
    assert partitions(visits, result) == ["2024-01-02"]
    assert rows(visits) == [2, 3]
    visits.db.execute("INSERT INTO visits VALUES (20, '2024-01-03'), (21, '2024-01-02')")
    assert partitions(visits, choose(visits, CHUNKS, partition="2024-01-03")) == ["2024-01-03"]
    assert rows(visits) == [2, 3, 20]
    assert not visits.materialized(choose(visits, NULLS), CHUNKS)
    assert rows(visits) == [2, 3, 5, 20]


def test_a_range_of_days_with_one_that_has_no_rows(visits: Project) -> None:
    result = visits.run_partitions("2024-01-02", "2024-01-04", "visits")
    assert result.success
    found = {m.partition: plain(m.metadata)["rows"] for m in visits.materialized(result, CHUNKS)}
    assert found == {"2024-01-02": 2, "2024-01-03": 0, "2024-01-04": 1}
    assert sorted(p.name for p in (visits.out / "visits").glob("day=*")) == [
        "day=2024-01-02",
        "day=2024-01-04",
    ]


def test_the_rows_without_a_day_alone(visits: Project) -> None:
    visits.run("export_visits")
    visits.db.execute("INSERT INTO visits VALUES (20, NULL), (21, '2024-01-02')")
    result = choose(visits, NULLS)
    assert [plain(m.metadata)["rows"] for m in visits.materialized(result, NULLS)] == [2]
    assert partitions(visits, result) == []
    assert rows(visits) == [1, 2, 3, 4, 5, 6, 7, 8, 20]


def test_a_day_that_fails_is_shown_as_failed(visits: Project) -> None:
    visits.db.execute("ALTER TABLE visits ADD v numeric", "UPDATE visits SET v = 'NaN' WHERE n = 4")
    visits.write(WINDOWS + '    columns: {v: "decimal(10,2)"}\n')
    result = visits.run("export_visits")
    assert not result.success
    windows = visits.defs.resolve_asset_graph().get(CHUNKS).partitions_def
    assert windows is not None
    found = visits.instance.get_status_by_partition(CHUNKS, ["2024-01-02", "2024-01-04"], windows) or {}
    assert {k: v and v.name for k, v in found.items()} == {
        "2024-01-02": "MATERIALIZED",
        "2024-01-04": "FAILED",
    }
    visits.db.execute("UPDATE visits SET v = 1 WHERE n = 4")
    assert choose(visits, CHUNKS, partition="2024-01-04").success
    assert rows(visits) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_reconcile_and_repair_of_a_day(visits: Project) -> None:
    visits.run("export_visits")
    visits.db.execute("DELETE FROM visits WHERE n = 3", "INSERT INTO visits VALUES (30, '2024-01-03')")
    result = visits.run("reconcile_visits")
    found = {e.partition: e.passed for e in result.get_asset_check_evaluations() if e.partition}
    assert found == {"2024-01-01": True, "2024-01-02": False, "2024-01-04": True}
    repaired = visits.run(
        "repair_visits", config={"ops": {"rivet_repair__visits": {"config": {"execute": True}}}}
    )
    assert partitions(visits, repaired) == ["2024-01-02", "2024-01-03"]
    assert rows(visits) == [1, 2, 4, 5, 6, 7, 8, 30]
    assert all(e.passed for e in visits.run("reconcile_visits").get_asset_check_evaluations())


@pytest.mark.parametrize(("granularity", "key"), [("month", "2024-01"), ("year", "2024")])
def test_months_and_years(visits: Project, granularity: str, key: str) -> None:
    start = "2024-01-15"  # the window that holds it is the first
    visits.write(
        EXPORT + f"    partition_granularity: {granularity}\n    dagster: {{partitions_start: {start}}}\n"
    )
    assert partitions(visits, choose(visits, CHUNKS, partition=key)) == [key]
    assert rows(visits) == [1, 2, 3, 4]


def test_a_schedule_over_the_days_asks_for_the_one_that_is_over(visits: Project) -> None:
    job = dg.define_asset_job("daily", selection=dg.AssetSelection.assets(CHUNKS))
    schedule = dg.build_schedule_from_partitioned_job(job)
    defs = dg.Definitions.merge(visits.defs, dg.Definitions(jobs=[job], schedules=[schedule]))
    found = next(s for s in defs.get_repository_def().schedule_defs if s.name == schedule.name)
    at = datetime(2024, 1, 3, tzinfo=UTC)
    with dg.build_schedule_context(
        visits.instance, scheduled_execution_time=at, repository_def=defs.get_repository_def()
    ) as context:
        (request,) = found.evaluate_tick(context).run_requests or []
    assert request.partition_key == "2024-01-02"
    run = defs.resolve_job_def("daily").execute_in_process(
        instance=visits.instance, partition_key=request.partition_key
    )
    assert partitions(visits, run) == ["2024-01-02"]


def test_a_daily_asset_depends_on_the_day(visits: Project) -> None:
    """What time partitions are for: Dagster maps them to those of other assets."""

    @dg.asset(partitions_def=dg.DailyPartitionsDefinition("2024-01-01"), deps=[CHUNKS])
    def report() -> None: ...

    graph = dg.Definitions.merge(visits.defs, dg.Definitions(assets=[report])).resolve_asset_graph()
    mapping = graph.get_partition_mapping(dg.AssetKey("report"), CHUNKS)
    assert isinstance(mapping, dg.TimeWindowPartitionMapping)
