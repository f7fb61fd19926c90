"""One message a run to a webhook, by the sensors that look at finished runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import dagster as dg
import pytest

from rivet_dagster import RivetResource
from tests.live.dagster.conftest import EXPORTS, HEAD, Project
from tests.services.webhook import SECRET, Webhook, webhook

HOOK_ENV = "RIVET_TEST_WEBHOOK"
QUIET = {"ops": {"rivet_export__orders": {"config": {"no_notify": True}}}}


@dataclass
class Told:
    """A project whose runs are told to ``hook``, and the cursors of its sensors."""

    project: Project
    hook: Webhook
    cursors: dict[str, str | None] = field(default_factory=dict)

    def tick(self) -> list[str]:
        """One evaluation of each sensor, as the daemon does it; returns the new messages' texts."""
        before = len(self.hook.messages)
        for sensor in self.project.defs.sensors or []:
            assert isinstance(sensor, dg.SensorDefinition)
            if not sensor.name.startswith("rivet_notify"):
                continue
            with dg.build_sensor_context(
                instance=self.project.instance,
                cursor=self.cursors.get(sensor.name),
                definitions=self.project.defs,
                resources={"rivet": RivetResource()},
            ) as context:
                data = sensor.evaluate_tick(context)
                self.cursors[sensor.name] = context.cursor or data.cursor
        return [message["text"] for message in self.hook.messages[before:]]

    def write(self, slack: str = f"webhook_url_env: {HOOK_ENV}", exports: str = EXPORTS) -> None:
        self.project.write(exports, f"{HEAD}\nnotifications: {{slack: {{{slack}}}}}\n")


@pytest.fixture
def told(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    with webhook() as hook:
        monkeypatch.setenv(HOOK_ENV, hook.url)
        told = Told(project, hook)
        told.write()
        told.tick()  # a sensor begins with the runs that end after it was switched on
        yield told


def test_a_failed_run_is_told_once_with_its_code(told: Told) -> None:
    told.project.db.execute("DROP TABLE orders")
    result = told.project.run("export_orders")
    assert not result.success
    (text,) = told.tick()
    assert text.startswith("orders: failed, [RIVET_SOURCE_TABLE_NOT_FOUND] refusal: ")
    (message,) = told.hook.messages
    assert message["color"] == "danger"
    assert result.run_id in message["footer"]
    assert told.tick() == [], "each run is told once"


def test_a_run_without_trouble_is_not_told(told: Told) -> None:
    assert told.project.run("export_all").success
    assert told.tick() == []


def test_one_message_tells_all_exports_of_a_run(told: Told) -> None:
    told.project.db.execute("DROP TABLE orders", "DROP TABLE events")
    assert not told.project.run("export_all").success
    (text,) = told.tick()
    assert sorted(line.split(":")[0] for line in text.splitlines()) == ["events-log", "orders"]


def test_columns_that_came_are_told(told: Told) -> None:
    assert told.project.run("export_orders").success
    told.project.db.execute("ALTER TABLE orders ADD COLUMN colour text")
    assert told.project.run("export_orders").success
    assert told.tick() == ["orders: the source's columns changed: added colour"]
    (message,) = told.hook.messages
    assert message["color"] == "warning"


def test_a_check_that_did_not_pass_is_told(told: Told) -> None:
    assert told.project.run("export_orders").success
    told.project.db.execute("DELETE FROM orders WHERE id = 250")
    told.project.run("reconcile_orders")
    assert told.tick() == ["orders: check reconcile did not pass"]


def test_a_run_whose_worker_died_is_told(told: Told) -> None:
    job = told.project.defs.resolve_job_def("export_orders")
    instance = told.project.instance
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    step = "rivet_export__orders"
    started = dg.DagsterEvent("STEP_START", run.job_name, step_key=step)
    instance.report_dagster_event(started, run.run_id)
    instance.report_run_failed(run)
    assert told.tick() == ["orders: failed, crashed"]


@pytest.mark.parametrize("job", ["export_orders", "export_all"])
def test_no_notify_keeps_an_export_out(told: Told, job: str) -> None:
    told.project.db.execute("DROP TABLE orders")
    assert not told.project.run(job, config=QUIET).success
    assert told.tick() == []


def test_a_run_that_dagster_tries_again_is_told_by_its_last_attempt(told: Told) -> None:
    told.project.db.execute("DROP TABLE orders")
    told.project.run("export_orders", tags={"dagster/will_retry": "true"})
    assert told.tick() == []


def test_only_what_the_config_names_is_told(told: Told) -> None:
    told.write(f"webhook_url_env: {HOOK_ENV}, on: [schema_change]")
    told.project.db.execute("DROP TABLE orders")
    assert not told.project.run("export_orders").success
    assert told.tick() == []
    told.write(f"webhook_url_env: {HOOK_ENV}, on: []")
    assert not [s for s in told.project.defs.sensors or [] if s.name.startswith("rivet_notify")]


def refusals(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """What the sensors said of messages that did not arrive."""
    return [line for line in capfd.readouterr().err.splitlines() if line.startswith("rivet: nobody was told")]


@pytest.mark.parametrize("status", [404, 500, 302, 307])
def test_a_webhook_that_refuses_is_said_without_its_address(
    told: Told, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    told.hook.status = status
    told.hook.location = told.hook.url
    told.project.db.execute("DROP TABLE orders")
    told.project.run("export_orders")
    told.tick()
    (said,) = set(refusals(capfd))
    assert f"answered {status}" in said
    assert SECRET not in said
    assert len(told.hook.received) == 1, "neither repeated nor sent on"


def test_a_missing_address_and_a_dead_webhook_are_said(
    told: Told, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    told.project.db.execute("DROP TABLE orders")
    monkeypatch.setenv(HOOK_ENV, f"http://127.0.0.1:1/{SECRET}")
    told.project.run("export_orders")
    told.tick()
    monkeypatch.setenv(HOOK_ENV, f"http://hooks.example/{SECRET}")
    told.project.run("export_orders")
    told.tick()
    monkeypatch.delenv(HOOK_ENV)
    told.project.run("export_orders")
    told.tick()
    said = refusals(capfd)
    assert ["not reached" in said[0], "https" in said[1], HOOK_ENV in said[2]] == [True, True, True]
    assert SECRET not in "".join(said)


def test_neither_events_nor_definitions_hold_the_address(told: Told) -> None:
    told.write(f'webhook_url: "{told.hook.url}"')
    told.project.db.execute("DROP TABLE orders")
    result = told.project.run("export_orders")
    assert len(told.tick()) == 1
    events = told.project.instance.all_logs(result.run_id)
    assert events
    assert SECRET not in "".join(map(repr, events))
    assert SECRET not in repr(told.project.defs)
