"""Schedules tick from the config; the sensors ask for runs when they should, and only then."""

from __future__ import annotations

import dagster as dg
import pytest

from rivet_dagster.assets.crashed import RESUME_OF, resumable
from rivet_dagster.assets.sensors import Asked
from tests.live.dagster.conftest import EXPORTS, Project


@pytest.fixture
def watched(project: Project) -> Project:
    return project.write(EXPORTS.replace("kinds: [log],", "kinds: [log], sensor: true,"))


def test_the_sensor_asks_once_for_each_move_of_the_source(watched: Project) -> None:
    first = watched.tick("source_moved_events_log")
    assert len(first.run_requests or []) == 1

    again = watched.tick("source_moved_events_log", first.cursor)
    assert not again.run_requests, "the same state of the source, and no time has passed"

    assert watched.run("export_events_log").success
    idle = watched.tick("source_moved_events_log", first.cursor)
    assert not idle.run_requests
    assert idle.skip_reason is not None

    watched.db.execute("INSERT INTO events VALUES ('2026-03-01', 'new')")
    moved = watched.tick("source_moved_events_log", first.cursor)
    assert len(moved.run_requests or []) == 1
    assert moved.cursor != first.cursor
    assert "2026" not in (moved.cursor or ""), "a value of the source is not stored"


def test_the_sensor_waits_for_the_run_in_progress(watched: Project) -> None:
    job = watched.defs.resolve_job_def("export_events_log")
    watched.instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    result = watched.tick("source_moved_events_log")
    assert not result.run_requests
    assert "in progress" in str(result.skip_reason)


def test_a_source_that_cannot_be_reached_is_a_skip_with_the_code(
    watched: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.db.execute("DROP TABLE events")
    result = watched.tick("source_moved_events_log")
    assert not result.run_requests
    assert "RIVET_SOURCE_TABLE_NOT_FOUND" in str(result.skip_reason)


def test_the_same_state_is_asked_for_again_ever_more_slowly() -> None:
    asked = Asked().again("t", 0.0)
    assert asked == Asked("t", 0.0, 1)
    pauses = []
    for _ in range(8):
        assert asked is not None
        now = asked.at
        while asked.again("t", now) is None:
            now += 10
        pauses.append(now - asked.at)
        asked = asked.again("t", now)
    assert pauses == sorted(pauses)
    assert pauses[0] == 120
    assert pauses[-1] == 3600
    assert asked is not None
    assert asked.again("other", asked.at) == Asked("other", asked.at, 1)


@pytest.mark.parametrize("cursor", ["", "not json", "[]", '{"surprise": 1}', "null"])
def test_a_cursor_that_somebody_edited_starts_over(cursor: str) -> None:
    assert Asked.parse(cursor) == Asked()


def test_the_schedule_requests_its_job(project: Project) -> None:
    project.write(EXPORTS.replace("group: shop,", 'group: shop, schedule: "*/5 * * * *",'))
    (schedule,) = project.defs.schedules or []
    assert isinstance(schedule, dg.ScheduleDefinition)
    context = dg.build_schedule_context(instance=project.instance)
    data = schedule.evaluate_tick(context)
    assert len(data.run_requests or []) == 1


def test_no_active_run_means_no_look_at_the_state(project: Project) -> None:
    result = project.tick("rivet_stale_runs")
    assert not result.run_requests
    assert not list(project.folder.glob("rivet_state*"))


def test_a_crashed_run_is_resumed_once_and_not_twice(project: Project) -> None:
    job = project.defs.resolve_job_def("export_orders")
    create = project.instance.create_run_for_job
    assert resumable(project.instance, create(job))
    assert not resumable(project.instance, create(job, tags={RESUME_OF: "x"}))
    repair = project.defs.resolve_job_def("repair_orders")
    assert not resumable(project.instance, create(repair))
