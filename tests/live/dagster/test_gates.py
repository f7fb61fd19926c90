"""Quality gates, drift and validation as asset checks, beside a step that ends well or not."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from tests.live.dagster.conftest import EXPORTS, Project, plain
from tests.live.dagster.test_runs import CHUNKS, EVENTS, ORDERS, evaluation, failure_of

GATES = "{row_count_min: 500, null_ratio_max: {note: 0.1}, unique_columns: [note]}"


def gated(project: Project, gates: str = GATES, more: str = "") -> Project:
    """``orders`` with quality gates."""
    return project.write(
        EXPORTS.replace("chunk_column: id", f"chunk_column: id\n    quality: {gates}{more}", 1)
    )


def names(result: dg.ExecuteInProcessResult) -> list[str]:
    return sorted(e.check_name for e in result.get_asset_check_evaluations())


def only_checks(project: Project, *checks: str) -> dg.ExecuteInProcessResult:
    """Run inline checks of ``orders`` alone, as their buttons in the UI do."""
    selection = dg.AssetSelection.checks(*(dg.AssetCheckKey(ORDERS, name) for name in checks))
    job = dg.define_asset_job("only_checks", selection=selection, executor_def=dg.in_process_executor)
    defs = dg.Definitions.merge(project.defs, dg.Definitions(jobs=[job]))
    return defs.resolve_job_def("only_checks").execute_in_process(
        instance=project.instance, raise_on_error=False
    )


def test_gates_that_hold_pass_with_their_figures(project: Project) -> None:
    result = gated(project).run("export_orders")
    assert result.success
    assert names(result) == ["drift", "quality", "validate"]
    check = evaluation(result, "quality")
    assert check.passed
    metadata = plain(check.metadata)
    assert (metadata["row_count_min"], metadata["null_ratio_max: note"]) == (500, 0)
    assert metadata["gates"][0] == {
        "gate": "row_count_min", "column": None, "threshold": 500, "measured": 500, "passed": True,
        "status": "pass", "note": "",
    }  # fmt: skip


def test_a_gate_that_fails_fails_the_step_and_shows_as_a_failed_check(project: Project) -> None:
    project.db.execute("UPDATE orders SET note = 'same secret' WHERE id <= 3")
    result = gated(project).run("export_orders")
    assert not result.success
    assert failure_of(result)[0]["code"] == "RIVET_QUALITY_FAILED"
    check = evaluation(result, "quality")
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.ERROR)
    metadata = plain(check.metadata)
    assert metadata["failed"] == 1
    assert [(g["gate"], g["column"], g["measured"]) for g in metadata["gates"] if not g["passed"]] == [
        ("unique_columns", "note", 2)
    ]
    assert "secret" not in str(metadata)
    assert evaluation(result, "drift").passed
    assert not project.materialized(result, ORDERS)
    assert not (project.out / "orders" / "_SUCCESS").exists()


def test_a_gate_that_looked_at_part_of_the_rows_only_warns(project: Project) -> None:
    result = gated(project, "{unique_columns: [note], unique_max_entries: 100}").run("export_orders")
    assert result.success
    check = evaluation(result, "quality")
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "only 100 of 500" in plain(check.metadata)["gates"][0]["note"]


@pytest.mark.parametrize("how", ["warn", "fail"])
def test_drift_is_a_check_of_the_severity_that_the_config_gives_it(project: Project, how: str) -> None:
    gated(project, more=f"\n    on_schema_drift: {how}")
    first = project.run("export_orders")
    assert evaluation(first, "drift").passed
    project.db.execute("ALTER TABLE orders ADD extra int", "ALTER TABLE orders DROP amount")
    result = project.run("export_orders")
    assert result.success == (how == "warn")
    check = evaluation(result, "drift")
    severity = dg.AssetCheckSeverity.WARN if how == "warn" else dg.AssetCheckSeverity.ERROR
    assert (check.passed, check.severity) == (False, severity)
    metadata = plain(check.metadata)
    assert (metadata["added"], metadata["removed"], metadata["retyped"]) == (1, 1, 0)
    assert metadata["columns"]["added"] == ["extra"]
    assert names(result) == (["drift", "quality", "validate"] if how == "warn" else ["drift"])
    assert evaluation(project.run("export_orders"), "drift").passed == (how == "warn")


def test_values_that_outgrew_all_before_warn(project: Project) -> None:
    assert project.run("export_orders").success
    project.db.execute("UPDATE orders SET note = repeat('x', 1000) WHERE id = 5")
    check = evaluation(project.run("export_orders"), "drift")
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert plain(check.metadata)["columns"]["wider"] == {"note": {"bytes": 1000, "before": 8}}


def test_without_checks_selected_nothing_is_evaluated(project: Project) -> None:
    gated(project)
    job = dg.define_asset_job("bare", selection=dg.AssetSelection.assets(ORDERS).without_checks())
    defs = dg.Definitions.merge(project.defs, dg.Definitions(jobs=[job]))
    result = defs.resolve_job_def("bare").execute_in_process(instance=project.instance)
    assert names(result) == []


def test_a_skipped_run_tells_its_gates_too(project: Project) -> None:
    project.write(EXPORTS.replace("cursor_column: at", "cursor_column: at\n    quality: {row_count_max: 60}"))
    assert project.run("export_events_log").success
    result = project.run("export_events_log")
    assert not project.materialized(result, EVENTS)
    assert evaluation(result, "quality").passed
    assert evaluation(result, "drift").passed


def validated(project: Project, **config: Any) -> tuple[bool, dict[str, Any]]:
    run_config = {"ops": {"rivet_export__orders": {"config": config}}} if config else None
    result = project.run("validate_orders", config=run_config)
    assert names(result) == ["validate"]
    assert not project.materialized(result, ORDERS), "nothing is run"
    assert not project.materialized(result, CHUNKS)
    check = evaluation(result, "validate")
    assert result.success == check.passed
    return check.passed, plain(check.metadata)


def test_the_validate_job_reads_as_deep_as_it_is_told(project: Project) -> None:
    assert project.run("export_orders").success
    part = next((project.out / "orders").glob("*.parquet"))
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    assert validated(project, depth="light")[0]
    assert validated(project, depth="sample")[0], "its size is as it was"
    passed, metadata = validated(project, depth="full")
    assert not passed
    assert metadata["findings"][0]["code"] == "RIVET_VERIFY_PART_CHECKSUM_MISMATCH"
    assert validated(project) == (False, metadata), "on its own it reads everything"
    part.unlink()
    assert validated(project, depth="light")[0]
    assert validated(project, depth="sample")[1]["findings"][0]["code"] == "RIVET_VERIFY_PART_MISSING"


def test_a_run_can_be_told_to_validate_what_it_wrote_in_full(project: Project) -> None:
    config = {"ops": {"rivet_export__orders": {"config": {"depth": "full"}}}}
    metadata = plain(evaluation(project.run("export_orders", config=config), "validate").metadata)
    assert (metadata["depth"], metadata["parts"]) == ("full", 6)


def test_checks_alone_look_at_the_last_complete_run(project: Project) -> None:
    gated(project)
    assert project.run("export_orders").success
    project.db.execute("ALTER TABLE orders ADD extra int", "DELETE FROM orders")
    result = only_checks(project, "quality", "drift")
    assert names(result) == ["drift", "quality"]
    assert evaluation(result, "quality").passed, "the files hold what they held"
    assert plain(evaluation(result, "drift").metadata)["columns"]["added"] == ["extra"]
    assert project.rows("orders") == 500


def test_a_validation_waits_for_the_run_that_writes(project: Project) -> None:
    assert project.run("export_orders").success
    from rivet_dagster.engine.run.engine import Engine

    with Engine(project.config) as engine, engine.session("orders", holder="other", lock_wait=0):
        result = project.run(
            "validate_orders", config={"ops": {"rivet_export__orders": {"config": {"lock_wait": 0}}}}
        )
    assert not result.success
    assert failure_of(result)[0]["code"] == "RIVET_STATE_RUN_IN_PROGRESS"
    assert not names(result)


def test_a_validation_before_the_first_run_fails_with_what_to_do(project: Project) -> None:
    result = project.run("validate_orders")
    assert not result.success
    assert failure_of(result)[0]["code"] == "RIVET_CONFIG_INVALID"


def test_files_beside_the_runs_own_are_counted_in_its_metadata_and_in_the_check(project: Project) -> None:
    first = project.run("export_orders")
    (table,) = project.materialized(first, ORDERS)
    assert not [key for key in table.metadata if key.startswith("files_")]
    (project.out / "orders" / "notes.txt").write_text("somebody's")
    second = project.run("export_orders")
    (table,) = project.materialized(second, ORDERS)
    metadata = plain(table.metadata)
    assert (metadata["files_superseded"], metadata["files_untracked"]) == (6, 1)
    assert "files_orphaned" not in metadata
    check = plain(evaluation(second, "validate").metadata)
    assert (check["files_untracked"], check["files_superseded"], check["files_quarantined"]) == (1, 0, 6)
    aside = (project.out / "orders" / "_quarantine").rglob("*.parquet")
    assert check["bytes_quarantined"] == sum(path.stat().st_size for path in aside)
