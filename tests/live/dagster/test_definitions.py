"""What a config becomes: names, keys, jobs, schedules, sensors; and that loading touches nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

import rivet_dagster
from rivet_dagster import RivetDagsterTranslator, build_rivet_definitions
from rivet_dagster.assets.naming import ExportNames, export_all_job
from rivet_dagster.config import ExportConfig, RivetConfig
from tests.live.dagster.conftest import EXPORTS, HEAD, URL_ENV

ORDERS = dg.AssetKey(["rivet", "orders"])
CHUNKS = dg.AssetKey(["rivet", "orders", "chunks"])
EVENTS = dg.AssetKey(["rivet", "events_log"])


@pytest.fixture
def config_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config whose password variable is not set: loading must not need it."""
    monkeypatch.delenv(URL_ENV, raising=False)
    path = tmp_path / "rivet.yaml"
    path.write_text(HEAD + EXPORTS)
    return path


@pytest.fixture
def defs(config_path: Path) -> dg.Definitions:
    return build_rivet_definitions(config_path)


def test_each_export_has_a_table_and_its_chunks(defs: dg.Definitions) -> None:
    graph = defs.resolve_asset_graph()
    events_chunks = dg.AssetKey(["rivet", "events_log", "chunks"])
    assert graph.materializable_asset_keys == {ORDERS, CHUNKS, EVENTS, events_chunks}
    assert graph.get(ORDERS).parent_keys == {CHUNKS, dg.AssetKey(["erp", "orders"])}
    assert graph.get(ORDERS).partitions_def is None
    partitions = graph.get(CHUNKS).partitions_def
    assert isinstance(partitions, dg.DynamicPartitionsDefinition)
    assert partitions.name == "rivet__orders"
    assert graph.get(CHUNKS).backfill_policy == dg.BackfillPolicy.single_run()
    dg.Definitions.validate_loadable(defs)


def test_the_dagster_block_shows_on_the_assets(defs: dg.Definitions) -> None:
    graph = defs.resolve_asset_graph()
    orders, events = graph.get(ORDERS), graph.get(EVENTS)
    assert (orders.group_name, list(orders.owners)) == ("shop", ["team:data"])
    assert orders.tags["tier"] == "gold"
    assert orders.kinds == {"postgres", "parquet"}
    assert orders.metadata["dagster/table_name"] == "public.orders"
    assert events.kinds == {"postgres", "parquet", "log"}
    assert events.description == "Everything that happened."
    assert events.group_name == "rivet"  # by default the config file's own name


def test_jobs_checks_and_sensors_of_every_export(defs: dg.Definitions) -> None:
    jobs = {job.name for job in defs.resolve_all_job_defs()} - {"__ASSET_JOB"}
    assert jobs == {
        "export_all",
        *(
            f"{verb}_{name}"
            for verb in ("export", "validate", "reconcile", "repair")
            for name in ("orders", "events_log")
        ),
    }
    checks = {(key.asset_key, key.name) for key in defs.resolve_asset_graph().asset_check_keys}
    assert {(ORDERS, "validate"), (ORDERS, "reconcile"), (CHUNKS, "reconcile_chunks")} <= checks
    assert (ORDERS, "drift") in checks
    assert (ORDERS, "quality") not in checks, "the config has no gates"
    assert [sensor.name for sensor in defs.sensors or []] == ["rivet_stale_runs", "rivet_crashed_runs"]
    assert not defs.schedules


def test_the_export_job_is_not_partitioned_and_leaves_reconcile_out(defs: dg.Definitions) -> None:
    """Launching it must need no partition, and a source is compared only when someone asks."""
    job = defs.resolve_job_def("export_orders")
    assert job.partitions_def is None
    assert [node.name for node in job.nodes] == ["rivet_export__orders"]
    assert job.asset_layer.asset_graph.asset_check_keys == {
        dg.AssetCheckKey(ORDERS, name) for name in ("validate", "drift")
    }


def test_each_step_queues_in_the_pool_of_its_export(config_path: Path) -> None:
    config_path.write_text(HEAD + EXPORTS.replace("group: shop,", "group: shop, pool: crm,"))
    defs = build_rivet_definitions(config_path)
    pools = {
        node.name: node.definition.pool  # type: ignore[attr-defined]
        for job in ("export_orders", "export_events_log", "repair_orders")
        for node in defs.resolve_job_def(job).nodes
    }
    assert pools == {
        "rivet_export__orders": "crm",
        "rivet_export__events_log": "rivet_events_log",
        "rivet_repair__orders": "crm",
    }


def test_steps_of_all_exports_queue_in_the_pool_of_their_source(config_path: Path) -> None:
    config_path.write_text(f"{HEAD}dagster: {{source_pool_limit: 2}}\n{EXPORTS}")
    defs = build_rivet_definitions(config_path)
    jobs = ("export_orders", "export_events_log", "repair_orders", "reconcile_orders")
    nodes = [node for job in jobs for node in defs.resolve_job_def(job).nodes]
    assert {node.definition.pool for node in nodes} == {f"rivet_source/{URL_ENV}"}  # type: ignore[attr-defined]


def test_schedule_and_sensor_are_switched_on_by_the_config(config_path: Path) -> None:
    text = EXPORTS.replace("group: shop,", 'group: shop, schedule: "0 3 * * *",')
    config_path.write_text(HEAD + text.replace("kinds: [log],", "kinds: [log], sensor: true,"))
    defs = build_rivet_definitions(config_path, reaper=True)
    (schedule,) = defs.schedules or []
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert (schedule.cron_schedule, schedule.job_name) == ("0 3 * * *", "export_orders")
    assert schedule.default_status == dg.DefaultScheduleStatus.RUNNING
    stale, crashed, moved = defs.sensors or []
    assert crashed.default_status == stale.default_status
    assert isinstance(stale, dg.SensorDefinition)
    assert isinstance(moved, dg.SensorDefinition)
    assert (moved.name, moved.job_name) == ("source_moved_events_log", "export_events_log")
    assert stale.default_status == moved.default_status == dg.DefaultSensorStatus.RUNNING


def test_a_translator_changes_keys_and_groups_and_execution_follows(config_path: Path) -> None:
    class Ours(RivetDagsterTranslator):
        def get_asset_key(self, export: ExportConfig, config: RivetConfig) -> dg.AssetKey:
            return dg.AssetKey(["lake", export.name.upper()])

        def get_group_name(self, export: ExportConfig, config: RivetConfig) -> str:
            return "lake"

    graph = build_rivet_definitions(config_path, translator=Ours()).resolve_asset_graph()
    assert dg.AssetKey(["lake", "ORDERS", "chunks"]) in graph.materializable_asset_keys
    assert graph.get(dg.AssetKey(["lake", "ORDERS"])).group_name == "lake"


def test_an_export_called_all_does_not_take_the_name_of_the_job_for_all(config_path: Path) -> None:
    config_path.write_text(HEAD + EXPORTS.replace("name: orders", "name: all"))
    defs = build_rivet_definitions(config_path)
    assert {"export_all", "export_all_exports"} <= {job.name for job in defs.resolve_all_job_defs()}
    assert export_all_job([]) == "export_all"


def test_names_of_different_kinds_never_meet() -> None:
    """An export may be called like another export's job, op or pool."""
    names = [ExportNames(base) for base in ("x", "repair_x", "export__x", "reconcile_x")]
    for kind in ("op", "reconcile_op", "repair_op"):
        assert len({getattr(n, kind) for n in names}) == len(names)
    ops = [getattr(n, kind) for n in names for kind in ("op", "reconcile_op", "repair_op")]
    jobs = [getattr(n, kind) for n in names for kind in ("export_job", "reconcile_job", "repair_job")]
    assert len(set(ops)) == len(ops)
    assert len(set(jobs)) == len(jobs)


def test_loading_needs_no_driver_no_engine_and_no_secret(config_path: Path) -> None:
    program = (
        "import sys\n"
        "from rivet_dagster import build_rivet_definitions\n"
        f"build_rivet_definitions({str(config_path)!r}).resolve_all_job_defs()\n"
        "heavy = {'pyarrow', 'psycopg', 'alembic'}\n"
        "heavy |= {'rivet_dagster.engine.run', 'rivet_dagster.engine.state'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_the_package_does_not_import_dagster() -> None:
    program = "import sys, rivet_dagster, rivet_dagster.engine.errors; print('dagster' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert set(rivet_dagster.__all__) <= {*dir(rivet_dagster), *rivet_dagster._HOMES}


def test_a_missing_config_is_one_clear_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import rivet_dagster.definitions"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert "RIVET_CONFIG_UNREADABLE" in last
    assert "set RIVET_CONFIG" in last
    assert str(tmp_path / "rivet.yaml") in last


def test_three_hundred_exports_load_in_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPU of the whole process, the interpreter and Dagster included, until every job is resolved.

    It is 1.9 s on the machine that docs/dagster.md names; twice that is a mistake, not a slow machine.
    """
    exports = "".join(
        f"\n  - {{name: t{n}, table: public.t{n}, format: parquet, "
        f"destination: {{type: local, path: ./out/t{n}}}}}"
        for n in range(300)
    )
    path = tmp_path / "rivet.yaml"
    path.write_text(f"{HEAD}\nexports:{exports}\n")
    monkeypatch.setenv("RIVET_CONFIG", str(path))
    program = (
        "import time, rivet_dagster.definitions as loaded\n"
        "imported = time.process_time()\n"
        "print(len(loaded.defs.resolve_all_job_defs()), imported, time.process_time())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    jobs, imported, resolved = done.stdout.split()
    assert int(jobs) == 4 * 300 + 2
    with capsys.disabled():
        print(f"\n300 exports: imported in {imported} s of CPU, every job resolved in {resolved} s")
    assert float(resolved) < 4


def test_a_job_sees_its_own_assets_and_what_they_depend_on(config_path: Path) -> None:
    """The graph of a job must not grow with the location: that is what loading would pay for."""
    other = EXPORTS.split("exports:")[1].replace("name: ", "name: other-").replace("./out/", "./out/other-")
    config_path.write_text(HEAD + EXPORTS.replace("deps: [erp/orders]", "deps: [rivet/events_log]") + other)
    defs = build_rivet_definitions(config_path)
    job = defs.resolve_job_def("export_orders")
    seen = job.asset_layer.asset_graph.source_asset_graph.get_all_asset_keys()
    assert {ORDERS, CHUNKS, EVENTS} <= seen
    assert not any("other" in part for key in seen for part in key.path)
    narrowed = job.get_subset(asset_selection={ORDERS}, asset_check_selection=set())
    assert narrowed.asset_layer.executable_asset_keys == {ORDERS}
    assert not narrowed.asset_layer.asset_graph.asset_check_keys
