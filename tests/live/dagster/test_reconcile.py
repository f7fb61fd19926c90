"""Reconcile as asset checks, and the repair job that follows from it."""

from __future__ import annotations

from typing import Any

import dagster as dg

from tests.live.dagster.conftest import EXPORTS, Project, plain
from tests.live.dagster.test_runs import CHUNKS, EVENTS, GRID, ORDERS, failure_of

RECONCILE = dg.AssetCheckKey(ORDERS, "reconcile")
PER_CHUNK = dg.AssetCheckKey(CHUNKS, "reconcile_chunks")


def reconcile(project: Project, job: str = "reconcile_orders") -> dict[str, Any]:
    """Evaluation of the table's check."""
    result = project.run(job)
    (check,) = [e for e in result.get_asset_check_evaluations() if e.check_name == "reconcile"]
    return {"passed": check.passed, "severity": check.severity.name, **plain(check.metadata)}


def per_chunk(project: Project) -> dict[str | None, str]:
    """Partition -> status of its newest check execution, as the UI reads it: of its newest files only."""
    infos = project.instance.event_log_storage.get_asset_check_partition_info([PER_CHUNK])
    return {info.partition_key: info.latest_execution_status.name for info in infos if info.is_current}


def repair(
    project: Project, *, name: str = "orders", **config: object
) -> tuple[dg.ExecuteInProcessResult, dict[str, Any]]:
    result = project.run(f"repair_{name}", config={"ops": {f"rivet_repair__{name}": {"config": config}}})
    observations = result.get_asset_observation_events()
    metadata = observations[0].asset_observation_data.asset_observation.metadata if observations else {}
    return result, plain(metadata)


def test_a_faithful_export_passes_for_the_table_and_each_chunk(project: Project) -> None:
    assert project.run("export_orders").success
    check = reconcile(project)
    assert check["passed"]
    assert (check["units"], check["match"], check["mismatch"], check["unknown"]) == (6, 6, 0, 0)
    assert check["source_rows"] == check["exported_rows"] == 500
    assert per_chunk(project) == dict.fromkeys(GRID, "SUCCEEDED")


def test_a_difference_is_an_error_of_its_chunk_and_of_the_table(project: Project) -> None:
    assert project.run("export_orders").success
    project.db.execute("DELETE FROM orders WHERE id = 250", "UPDATE orders SET amount = 7 WHERE id = 350")
    check = reconcile(project)
    assert (check["passed"], check["severity"], check["mismatch"]) == (False, "ERROR", 2)
    assert [entry["partition"] for entry in check["differing"]] == [GRID[2], GRID[3]]
    assert per_chunk(project) == {
        **dict.fromkeys(GRID, "SUCCEEDED"),
        GRID[2]: "FAILED",
        GRID[3]: "FAILED",
    }


def test_cells_that_changed_places_are_found_at_depth_rows(project: Project) -> None:
    assert project.run("export_orders").success
    project.db.execute(
        "UPDATE orders SET note = o.note FROM orders o"
        " WHERE orders.id IN (210, 220) AND o.id = 430 - orders.id"
    )
    assert reconcile(project)["passed"]
    deep = {"ops": {"rivet_reconcile__orders": {"config": {"depth": "rows"}}}}
    result = project.run("reconcile_orders", config=deep)
    (check,) = [e for e in result.get_asset_check_evaluations() if e.check_name == "reconcile"]
    metadata = plain(check.metadata)
    assert (check.passed, metadata["mismatch"], metadata["depth"]) == (False, 1, "rows")
    assert repair(project)[1]["status"] == "nothing_to_repair"
    _, plan = repair(project, depth="rows", execute=True)
    assert plan["partition_keys"] == [GRID[2]]
    assert reconcile(project)["passed"]


def test_repair_is_dry_until_told_otherwise_and_then_heals(project: Project) -> None:
    assert project.run("export_orders").success
    project.db.execute("DELETE FROM orders WHERE id = 250")
    assert not reconcile(project)["passed"]

    files = sorted(project.out.rglob("*"))
    result, plan = repair(project)
    assert result.success
    assert (plan["status"], plan["partition_keys"]) == ("dry_run", [GRID[2]])
    assert sorted(project.out.rglob("*")) == files
    assert not project.materialized(result, CHUNKS)

    result, plan = repair(project, execute=True)
    assert result.success
    assert plan["status"] == "executing"
    assert [m.partition for m in project.materialized(result, CHUNKS)] == [GRID[2]]
    (table,) = project.materialized(result, ORDERS)
    assert plain(table.metadata)["dagster/row_count"] == 499
    assert project.rows("orders") == 499, "one version of each row"
    assert GRID[2] not in per_chunk(project), "what was said of the old files is not said of the new"

    assert reconcile(project)["passed"]
    assert per_chunk(project) == dict.fromkeys(GRID, "SUCCEEDED")
    result, plan = repair(project, execute=True)
    assert result.success
    assert plan["status"] == "nothing_to_repair"


def test_repair_runs_the_chunks_that_are_named(project: Project) -> None:
    assert project.run("export_orders").success
    result, plan = repair(project, chunks=[GRID[1], GRID[4]], execute=True)
    assert result.success
    assert plan["partitions"] == 2
    assert [m.partition for m in project.materialized(result, CHUNKS)] == [GRID[1], GRID[4]]
    assert project.rows("orders") == 500


def test_repair_of_a_chunk_that_is_not_there_fails_by_name_of_the_code(project: Project) -> None:
    assert project.run("export_orders").success
    result, _ = repair(project, chunks=["000000009900"], execute=True)
    assert not result.success
    metadata, _ = failure_of(result)
    assert metadata["code"] == "RIVET_PARTITION_UNKNOWN"


def test_reconcile_before_the_first_run_fails_with_what_to_do(project: Project) -> None:
    result = project.run("reconcile_orders")
    assert not result.success
    _, event = failure_of(result)
    assert event.step_failure_data.error is not None
    assert "(orders)" in event.step_failure_data.error.message


def test_an_export_without_ranges_is_compared_and_repaired_as_a_whole(project: Project) -> None:
    project.write(EXPORTS.replace("mode: chunked", "mode: full").replace("chunk_", "# chunk_"))
    assert project.run("export_orders").success
    assert reconcile(project)["passed"]
    project.db.execute("DELETE FROM orders WHERE id = 250")
    assert not reconcile(project)["passed"]
    _, plan = repair(project)
    assert (plan["whole_table"], plan["partitions"]) == (False, 1), (
        "one unit is the whole table in any snapshot"
    )
    result, _ = repair(project, execute=True)
    assert result.success
    assert project.rows("orders") == 499
    assert reconcile(project)["passed"]


def test_an_incremental_window_is_compared(project: Project) -> None:
    assert project.run("export_events_log").success
    assert reconcile(project, "reconcile_events_log")["passed"]
    project.db.execute("INSERT INTO events VALUES ('2026-05-01', 'new')")
    assert reconcile(project, "reconcile_events_log")["passed"], "the window ends at its pinned bound"
    assert project.instance.get_latest_materialization_event(EVENTS)


def test_an_incremental_export_is_repaired_from_the_start_or_by_its_last_window(project: Project) -> None:
    assert project.run("export_events_log").success
    project.db.execute("UPDATE events SET kind = 'other' WHERE at = '2026-01-01 00:00:05+00'")
    result, plan = repair(project, name="events_log", execute=True)
    assert result.success
    assert (plan["whole_table"], project.rows("events")) == (True, 50)
    assert reconcile(project, "reconcile_events_log")["passed"]

    project.db.execute("INSERT INTO events VALUES ('2026-05-01', 'new'), ('2026-05-02', 'new')")
    assert project.run("export_events_log").success
    project.db.execute("DELETE FROM events WHERE at = '2026-05-01'")
    check = reconcile(project, "reconcile_events_log")
    assert (check["passed"], check["mismatch"]) == (False, 1)
    result, plan = repair(project, name="events_log", execute=True)
    assert result.success
    assert (plan["whole_table"], plan["partition_keys"]) == (False, ["000000"])
    assert project.rows("events") == 51
    assert reconcile(project, "reconcile_events_log")["passed"]
