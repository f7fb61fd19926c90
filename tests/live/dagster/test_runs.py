"""Runs of exports as Dagster shows them: table mode, range mode, skips, failures, retries."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest

from rivet_dagster.engine.run.engine import Engine
from tests.golden.checker import faults
from tests.live.dagster.conftest import Project, plain

ORDERS = dg.AssetKey(["rivet", "orders"])
CHUNKS = dg.AssetKey(["rivet", "orders", "chunks"])
EVENTS = dg.AssetKey(["rivet", "events_log"])
GRID = [f"{low:012d}" for low in range(0, 501, 100)]


def statuses(project: Project, key: dg.AssetKey = CHUNKS) -> dict[str, str]:
    """Partition -> status, as the UI shows it."""
    graph = project.defs.resolve_asset_graph()
    partitions = graph.get(key).partitions_def
    assert partitions is not None
    found = project.instance.get_status_by_partition(key, GRID, partitions)
    return {k: v.name if v else "MISSING" for k, v in (found or {}).items()}


def failure_of(result: dg.ExecuteInProcessResult) -> tuple[dict[str, Any], dg.DagsterEvent]:
    """Metadata of the failed step, and its event."""
    (event,) = [e for e in result.all_events if e.event_type == dg.DagsterEventType.STEP_FAILURE]
    data = event.step_failure_data.user_failure_data
    assert data is not None
    return plain(data.metadata), event


def evaluation(result: dg.ExecuteInProcessResult, name: str) -> dg.AssetCheckEvaluation:
    """The run's only evaluation of the check ``name``."""
    (found,) = [e for e in result.get_asset_check_evaluations() if e.check_name == name]
    return found


def test_a_table_run_reports_every_chunk_and_then_the_table(project: Project) -> None:
    result = project.run("export_orders")
    assert result.success
    chunks = project.materialized(result, CHUNKS)
    assert [m.partition for m in chunks] == GRID
    assert project.instance.get_dynamic_partitions("rivet__orders") == GRID
    assert set(statuses(project).values()) == {"MATERIALIZED"}
    first = plain(chunks[0].metadata)
    assert first["dagster/partition_row_count"] == first["rows"] == 99
    assert (first["files"], first["attempt"], first["key_range"]) == (1, 1, "[1..99]")
    assert isinstance(first["seconds"], float)
    assert first["bytes"] > 0

    (table,) = project.materialized(result, ORDERS)
    metadata = plain(table.metadata)
    assert metadata["dagster/row_count"] == metadata["rows"] == 500
    assert metadata["files"] == metadata["partitions"] == 6
    assert metadata["dagster/uri"] == (project.out / "orders").as_uri()
    assert isinstance(metadata["rows_per_second"], float)
    assert metadata["retries"] == 0
    schema = metadata["dagster/column_schema"]
    assert [(c.name, c.type) for c in schema.columns] == [
        ("id", "int64"),
        ("note", "string"),
        ("amount", "decimal128(10, 2)"),
    ]
    assert project.rows("orders") == 500


def test_a_run_says_how_it_reads_and_why(project: Project) -> None:
    result = project.run("export_orders")
    (table,) = project.materialized(result, ORDERS)
    metadata = plain(table.metadata)
    assert (metadata["strategy"], metadata["consistency"]) == ("chunked", "chunk")
    assert "ranges of" in metadata["reason"]
    log = "".join(e.user_message for e in project.instance.all_logs(result.run_id))
    assert f"6 to do (chunked, consistency chunk): {metadata['reason']}" in log


def test_chunk_uris_name_their_file(project: Project) -> None:
    for chunk in project.materialized(project.run("export_orders"), CHUNKS):
        uri = plain(chunk.metadata)["dagster/uri"]
        path = uri.removeprefix("file://")
        assert pq.read_metadata(path).num_rows == plain(chunk.metadata)["rows"]


def test_the_inline_check_passes_and_blocks_nothing(project: Project) -> None:
    result = project.run("export_orders")
    check = evaluation(result, "validate")
    assert (check.passed, check.blocking) == (True, True)
    assert plain(check.metadata)["depth"] == "sample"
    assert plain(check.metadata)["parts"] == 6


def test_a_damaged_destination_fails_the_check_and_blocks_downstream(project: Project) -> None:
    """The damage happens between finalize and the check; here: before a skipped run's check."""
    assert project.run("export_events_log").success
    part = next((project.out / "events").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-1])
    result = project.run("export_events_log")
    assert not result.success
    check = evaluation(result, "validate")
    assert not check.passed
    assert check.severity == dg.AssetCheckSeverity.ERROR
    assert "RIVET_VERIFY_PART_SIZE_MISMATCH" in str(plain(check.metadata)["findings"])


def test_nothing_new_is_an_observation_and_downstream_does_not_run(project: Project) -> None:
    @dg.asset(deps=[EVENTS])
    def downstream() -> None: ...

    defs = dg.Definitions.merge(project.defs, dg.Definitions(assets=[downstream]))
    job = dg.define_asset_job(
        "both", selection=dg.AssetSelection.assets(EVENTS, "downstream").without_checks()
    )
    defs = dg.Definitions.merge(defs, dg.Definitions(jobs=[job]))

    def run() -> dg.ExecuteInProcessResult:
        return defs.resolve_job_def("both").execute_in_process(instance=project.instance)

    first = run()
    assert [m.metadata["dagster/row_count"].value for m in project.materialized(first, EVENTS)] == [50]
    assert project.materialized(first, dg.AssetKey("downstream"))

    second = run()
    assert second.success
    assert not second.get_asset_materialization_events()
    (observation,) = second.get_asset_observation_events()
    metadata = plain(observation.asset_observation_data.asset_observation.metadata)
    assert (metadata["status"], metadata["rows"]) == ("skipped", 0)

    project.db.execute("INSERT INTO events VALUES ('2026-02-01', 'new')")
    third = run()
    assert [m.metadata["dagster/row_count"].value for m in project.materialized(third, EVENTS)] == [1]
    assert project.materialized(third, dg.AssetKey("downstream"))


def test_failed_chunks_show_as_failed_and_only_they_run_again(project: Project) -> None:
    project.db.execute("UPDATE orders SET amount = 'NaN' WHERE id IN (250, 450)")
    result = project.run("export_orders")
    assert not result.success
    assert not project.materialized(result, ORDERS)
    assert [m.partition for m in project.materialized(result, CHUNKS)] == [GRID[n] for n in (0, 1, 3, 5)]
    failed = {GRID[2], GRID[4]}
    assert {k for k, v in statuses(project).items() if v == "FAILED"} == failed
    metadata, _ = failure_of(result)
    assert set(metadata["failed_partitions"]) == failed
    assert metadata["code"] == "RIVET_SOURCE_VALUE_UNREPRESENTABLE"
    assert (metadata["class"], metadata["retryable"]) == ("refusal", False)
    assert metadata["failures"] == 2

    project.db.execute("UPDATE orders SET amount = 1 WHERE id IN (250, 450)")
    first = project.run_partitions(GRID[2], GRID[2])
    assert first.success
    assert [m.partition for m in project.materialized(first, CHUNKS)] == [GRID[2]]
    assert not project.materialized(first, ORDERS), "one chunk is still missing"

    last = project.run_partitions(GRID[4], GRID[4])
    assert last.success
    assert [m.partition for m in project.materialized(last, CHUNKS)] == [GRID[4]]
    (table,) = project.materialized(last, ORDERS)
    assert plain(table.metadata)["dagster/row_count"] == 500
    assert set(statuses(project).values()) == {"MATERIALIZED"}
    assert project.rows("orders") == 500


def test_a_range_run_that_fails_keeps_its_good_chunks(project: Project) -> None:
    """Chunks of the range that were done before are reported again: this run announced them as planned."""
    project.db.execute("UPDATE orders SET amount = 'NaN' WHERE id = 250")
    assert not project.run("export_orders").success
    again = project.run_partitions(GRID[1], GRID[3])
    assert not again.success
    assert {k for k, v in statuses(project).items() if v == "FAILED"} == {GRID[2]}


def test_a_table_run_resumes_what_is_outstanding(project: Project) -> None:
    project.db.execute("UPDATE orders SET amount = 'NaN' WHERE id = 250")
    failed = project.run("export_orders")
    files = sorted(p.name for p in (project.out / "orders").glob("*.parquet"))
    project.db.execute("UPDATE orders SET amount = 1 WHERE id = 250")
    resumed = project.run("export_orders")
    assert resumed.success
    assert [m.partition for m in project.materialized(resumed, CHUNKS)] == [
        *(GRID[n] for n in (0, 1, 3, 4, 5)),
        GRID[2],
    ]
    metadata, _ = failure_of(failed)
    (table,) = project.materialized(resumed, ORDERS)
    assert plain(table.metadata)["run_id"] == metadata["run_id"]
    assert set(files) < {p.name for p in (project.out / "orders").glob("*.parquet")}


def test_fresh_starts_over(project: Project) -> None:
    project.db.execute("UPDATE orders SET amount = 'NaN' WHERE id = 250")
    failed, _ = failure_of(project.run("export_orders"))
    project.db.execute("UPDATE orders SET amount = 1 WHERE id = 250")
    config = {"ops": {"rivet_export__orders": {"config": {"fresh": True}}}}
    result = project.run("export_orders", config=config)
    assert result.success
    (table,) = project.materialized(result, ORDERS)
    assert plain(table.metadata)["run_id"] != failed["run_id"]
    assert [m.partition for m in project.materialized(result, CHUNKS)] == GRID


def test_units_beyond_the_cap_share_partitions(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from rivet_dagster.engine.plan import plan

    monkeypatch.setattr(plan, "MAX_PARTITIONS", 3)
    result = project.run("export_orders")
    assert result.success
    chunks = project.materialized(result, CHUNKS)
    assert len(chunks) <= 3
    assert sum(plain(c.metadata)["units"] for c in chunks) == 6
    assert sum(plain(c.metadata)["rows"] for c in chunks) == 500


def test_a_failure_tells_the_code_and_not_the_message(project: Project) -> None:
    project.db.execute("DROP TABLE orders")
    result = project.run("export_orders")
    metadata, event = failure_of(result)
    assert metadata["code"] == "RIVET_SOURCE_TABLE_NOT_FOUND"
    assert set(metadata) >= {"code", "kind", "class", "exit_code", "retryable", "action", "export"}
    assert "message" not in metadata
    error = event.step_failure_data.error
    assert error is not None
    assert "(orders)" in error.message
    assert "public.orders" not in str(error)
    assert error.cause is None
    assert error.context is None
    assert event.step_failure_data.user_failure_data is not None
    assert not [e for e in result.all_events if e.event_type == dg.DagsterEventType.STEP_UP_FOR_RETRY]


def test_a_busy_export_is_retried_under_its_budget_and_then_fails(project: Project) -> None:
    config = {"ops": {"rivet_export__orders": {"config": {"lock_wait": 0}}}}
    with Engine(project.config) as engine, engine.session("orders", holder="somebody else"):
        result = project.run("export_orders", config=config)
    assert not result.success
    kinds = [e.event_type for e in result.all_events]
    assert kinds.count(dg.DagsterEventType.STEP_UP_FOR_RETRY) == 1  # tuning.max_retries
    metadata, _ = failure_of(result)
    assert metadata["code"] == "RIVET_STATE_RUN_IN_PROGRESS"
    assert metadata["retryable"] is True
    assert project.run("export_orders", config=config).success


def test_export_all_runs_every_export(project: Project) -> None:
    result = project.run("export_all")
    assert result.success
    assert len(project.materialized(result, ORDERS)) == len(project.materialized(result, EVENTS)) == 1


def test_no_step_has_a_blanket_policy(project: Project) -> None:
    """A retry is asked for by class: a policy would retry refusals, and crashes past their budget."""
    repository = project.defs.get_repository_def()
    for job in repository.get_all_jobs():
        policies = [
            p for n in job.nodes for p in (n.retry_policy, getattr(n.definition, "retry_policy", None))
        ]
        assert [policy for policy in policies if policy is not None] == []
        assert not any(key.startswith("dagster/max_retries") for key in job.tags)


@pytest.mark.parametrize("job", ["export_orders", "validate_orders", "reconcile_orders", "repair_orders"])
def test_every_job_waits_for_the_lease(project: Project, job: str) -> None:
    """``lock_wait`` of the run config: none, so that it is told at once."""
    op = {"reconcile": "rivet_reconcile__orders", "repair": "rivet_repair__orders"}.get(
        job.partition("_")[0], "rivet_export__orders"
    )
    config = {"ops": {op: {"config": {"lock_wait": 0, "no_notify": True}}}}
    with Engine(project.config) as engine, engine.session("orders", holder="somebody else"):
        result = project.run(job, config=config)
    assert not result.success
    assert [e.event_type for e in result.all_events].count(dg.DagsterEventType.STEP_UP_FOR_RETRY) == 1
    metadata, _ = failure_of(result)
    assert metadata["code"] == "RIVET_STATE_RUN_IN_PROGRESS"
    assert facts_of(metadata)["status"] == "failed"


def facts_of(metadata: dict[str, Any]) -> dict[str, Any]:
    """Of an event's metadata what the scheduler contract speaks of (D9)."""
    keys = {"export", "table", "run_id", "mode", "status", "rows", "files", "stop_reason"}
    if metadata["status"] == "failed":
        keys |= {"code", "kind", "class", "exit_code", "retryable", "action"}
    assert not {"message", "error", "error_message"} & metadata.keys()
    facts = {key: metadata[key] for key in keys}
    assert faults("unit_facts", facts) == []
    return facts


def test_events_hold_the_facts_of_the_contract(project: Project) -> None:
    (done,) = project.materialized(project.run("export_events_log"), EVENTS)
    assert facts_of(plain(done.metadata))["rows"] == 50
    project.run("export_events_log")
    (seen,) = project.instance.fetch_observations(EVENTS, limit=1).records
    assert seen.asset_observation is not None
    facts = facts_of(plain(seen.asset_observation.metadata))
    assert (facts["status"], facts["mode"], facts["stop_reason"]) == ("skipped", "incremental", None)
