"""Automation conditions, freshness, time zones, lineage and typed metadata, on a real instance."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.freshness import FreshnessState
from dagster._core.definitions.freshness_evaluator import TimeWindowFreshnessPolicyEvaluator
from dagster._core.loader import LoadingContextForTest

from rivet_dagster import RivetMetadataSet, column_lineage
from rivet_dagster.config.loader import load_config
from rivet_dagster.engine.errors import ConfigError
from tests.live.dagster.conftest import EXPORTS, HEAD, Project, plain

# the evaluation itself uses a parameter of Dagster's that is in beta
pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")

ORDERS = dg.AssetKey(["rivet", "orders"])
UPSTREAM = dg.AssetKey(["erp", "orders"])
#: 03:00 in Berlin
NIGHT = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)


def write(project: Project, block: str) -> Project:
    return project.write(EXPORTS.replace("group: shop,", f"group: shop, {block},"))


class Automation:
    """Dagster's evaluation of all conditions, tick after tick."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.cursor: Any = None

    def tick(self, at: datetime) -> set[str]:
        """What is asked for: names of assets and of checks."""
        result = dg.evaluate_automation_conditions(
            self.project.defs,
            instance=self.project.instance,
            cursor=self.cursor,
            evaluation_time=at,
        )
        self.cursor = result.cursor
        asked = {r.key for r in result.results if r.true_subset.size}
        return {key.name if isinstance(key, dg.AssetCheckKey) else key.to_user_string() for key in asked}


def test_a_cron_line_runs_the_table_with_its_checks_once_a_tick(project: Project) -> None:
    write(project, 'automation: "0 3 * * *", timezone: Europe/Berlin')
    automation = Automation(project)
    assert automation.tick(NIGHT - timedelta(minutes=1)) == set()
    assert automation.tick(NIGHT + timedelta(minutes=1)) == set(), "what it depends on was not updated yet"
    project.instance.report_runless_asset_event(dg.AssetMaterialization(UPSTREAM))
    assert automation.tick(NIGHT + timedelta(minutes=2)) == {"rivet/orders", "validate", "drift"}
    project.instance.report_runless_asset_event(dg.AssetMaterialization(UPSTREAM))
    assert automation.tick(NIGHT + timedelta(minutes=3)) == set()


def test_a_cron_line_does_not_wait_for_the_tables_own_chunks(project: Project) -> None:
    project.write(EXPORTS.replace("deps: [erp/orders]", 'automation: "0 3 * * *"'))
    automation = Automation(project)
    assert automation.tick(NIGHT) == set()
    assert automation.tick(NIGHT + timedelta(minutes=61)) == {"rivet/orders", "validate", "drift"}
    assert automation.tick(NIGHT + timedelta(minutes=62)) == set()


def test_eager_runs_when_what_it_depends_on_was_updated(project: Project) -> None:
    write(project, "automation: eager")
    automation = Automation(project)
    automation.tick(NIGHT)
    assert project.run("export_orders").success
    assert automation.tick(NIGHT + timedelta(minutes=1)) == set(), "its own chunks are no reason"
    project.instance.report_runless_asset_event(dg.AssetMaterialization(UPSTREAM))
    assert automation.tick(NIGHT + timedelta(minutes=2)) >= {"rivet/orders", "validate", "drift"}


def test_a_schedule_ticks_in_the_zone_of_the_config(project: Project) -> None:
    write(project, 'schedule: "0 3 * * *", timezone: Europe/Berlin')
    (schedule,) = project.defs.schedules or []
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert schedule.execution_timezone == "Europe/Berlin"


@pytest.mark.parametrize(
    ("block", "policy"),
    [
        (
            "{fail_after: 26h, warn_after: 25h}",
            dg.FreshnessPolicy.time_window(timedelta(hours=26), timedelta(hours=25)),
        ),
        (
            '{by: "0 6 * * *", within: 3h}',
            dg.FreshnessPolicy.cron("0 6 * * *", timedelta(hours=3), "Asia/Tokyo"),
        ),
    ],
)
def test_freshness_is_dagsters_policy(project: Project, block: str, policy: dg.FreshnessPolicy) -> None:
    write(project, f"timezone: Asia/Tokyo, freshness: {block}")
    graph = project.defs.resolve_asset_graph()
    assert graph.get(ORDERS).freshness_policy == policy
    assert graph.get(dg.AssetKey(["rivet", "orders", "chunks"])).freshness_policy is None


def test_a_materialized_table_is_fresh(project: Project) -> None:
    write(project, "freshness: {fail_after: 1h}")
    node = project.defs.resolve_asset_graph().get(ORDERS)

    def state() -> FreshnessState:
        context = LoadingContextForTest(project.instance)
        return asyncio.run(TimeWindowFreshnessPolicyEvaluator().evaluate_freshness(context, node))

    assert state() == FreshnessState.UNKNOWN
    assert project.run("export_orders").success
    assert state() == FreshnessState.PASS


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ("automation: on_missing", "automation"),
        ('automation: "0 25 * * *"', "automation"),
        ('automation: "0 3 * * *", schedule: "0 4 * * *"', "automation"),
        ("timezone: Europe/Atlantis", "timezone"),
        ("freshness: {}", "freshness"),
        ('freshness: {fail_after: 1h, by: "0 6 * * *", within: 1h}', "freshness"),
        ("freshness: {fail_after: 1h, warn_after: 1h}", "freshness.warn_after"),
        ("freshness: {fail_after: soon}", "freshness.fail_after"),
        ("freshness: {fail_after: 30s}", "freshness.fail_after"),
        ('freshness: {by: "0 6 * * *"}', "freshness"),
        ("freshness: {fail_after: 1h, within: 1h}", "freshness.within"),
    ],
)
def test_what_dagster_would_refuse_names_its_line(project: Project, block: str, field: str) -> None:
    project.path.write_text(HEAD + EXPORTS.replace("group: shop,", f"group: shop, {block},"))
    with pytest.raises(ConfigError) as caught:
        load_config(project.path)
    assert (caught.value.export, caught.value.field) == ("orders", f"dagster.{field}")
    assert caught.value.line is not None


def test_columns_lead_back_to_the_upstream_table(project: Project) -> None:
    result = project.run("export_orders")
    (made,) = project.materialized(result, ORDERS)
    lineage = plain(made.metadata)["dagster/column_lineage"]
    assert lineage == column_lineage(UPSTREAM, ["id", "note", "amount"])
    assert plain(made.metadata)["folder"] == str(project.out / "orders")

    events = project.run("export_events_log")
    (made,) = project.materialized(events, dg.AssetKey(["rivet", "events_log"]))
    assert "dagster/column_lineage" not in made.metadata, "nothing above it is an asset"


def test_definitions_carry_typed_metadata_and_tags_to_filter_by(project: Project) -> None:
    node = project.defs.resolve_asset_graph().get(ORDERS)
    found = RivetMetadataSet.extract(node.metadata)
    assert (found.export, found.mode, found.format, found.config) == (
        "orders",
        "chunked",
        "parquet",
        "rivet.yaml",
    )
    assert found.line is not None
    assert "name: orders" in project.path.read_text().splitlines()[found.line - 1]
    assert node.tags["rivet/mode"] == "chunked"
    assert node.tags["tier"] == "gold"


def test_chunks_and_tables_have_numbers_that_dagster_plots(project: Project) -> None:
    result = project.run("export_orders")
    for key in (ORDERS, dg.AssetKey(["rivet", "orders", "chunks"])):
        metadata = plain(project.materialized(result, key)[0].metadata)
        assert all(
            isinstance(metadata[name], int | float)
            for name in ("rows", "bytes", "seconds", "rows_per_second")
        )
