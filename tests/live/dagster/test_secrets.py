"""Nothing secret reaches what Dagster keeps: events, run config, logs, sensor cursors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterEventType
from sqlalchemy.engine import make_url

from tests.live.dagster.conftest import URL_ENV, Project, instance_in_files

CANARY = "c4n4ry/p@ss:w0rd"


@pytest.fixture
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    with instance_in_files(tmp_path_factory.mktemp("dagster_home")) as stored:
        yield stored


def kept(instance: dg.DagsterInstance) -> Iterator[tuple[Path, bytes]]:
    for path in Path(instance.root_directory).rglob("*"):
        if path.is_file():
            yield path, path.read_bytes()


def forms(secret: str) -> list[bytes]:
    """The secret as it is, in JSON, and percent-encoded."""
    encoded = make_url("postgresql://h/d").set(username="u", password=secret)
    quoted = encoded.render_as_string(hide_password=False).split(":")[2].split("@")[0]
    return [secret.encode(), json.dumps(secret)[1:-1].encode(), quoted.encode()]


@pytest.mark.parametrize("works", [True, False], ids=["right", "wrong"])
def test_the_password_is_nowhere_in_the_instance(
    project: Project, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    url = make_url(project.db.url)
    role = f"canary_{project.db.name}"
    project.db.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD '{CANARY if works else 'another'}'",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}",
    )
    canary_url = url.set(username=role, password=CANARY).render_as_string(hide_password=False)
    monkeypatch.setenv(URL_ENV, canary_url)
    try:
        result = project.run("export_orders")
        assert result.success is works
        sensor = dg.build_sensor_context(instance=project.instance)
        assert sensor
        files = list(kept(project.instance))
        assert sum(len(data) for _, data in files) > 10_000, "the instance keeps its events in files"
        found = [path for path, data in files for form in forms(CANARY) if form in data]
        assert not found
    finally:
        project.db.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_an_unexpected_error_leaves_its_text_out_of_the_event_log(
    project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Even a defect of ours, whose text may hold a row's value, is told on stderr alone."""
    from rivet_dagster.engine.run.session import Session

    def broken(*_: object, **__: object) -> None:
        try:
            raise KeyError("row value 4711-secret-row")
        except KeyError as error:
            raise ValueError("around 4711-secret-row") from error

    monkeypatch.setattr(Session, "finalize", broken)
    result = project.run("export_orders")
    assert not result.success
    events = project.instance.all_logs(result.run_id)
    assert "4711-secret-row" not in "".join(repr(event) for event in events)
    (failed,) = project.instance.all_logs(result.run_id, of_type=DagsterEventType.STEP_FAILURE)
    assert "RIVET_INTERNAL" in repr(failed)
    assert "4711-secret-row" in capfd.readouterr().err


ROW = "4711-secret-row"
ROWS_EXPORTS = """
exports:
  - name: keyed
    table: public.people
    mode: chunked
    chunk_by_key: email
    chunk_size: 20
    format: parquet
    destination: {type: local, path: ./out/keyed}
    on_schema_drift: warn
  - name: followed
    table: public.people
    mode: incremental
    cursor_column: email
    format: parquet
    destination: {type: local, path: ./out/followed}
    dagster: {sensor: true}
  - name: gated
    table: public.people
    format: parquet
    destination: {type: local, path: ./out/gated}
    quality: {unique_columns: [note]}
  - name: broken
    query: SELECT email, note::int AS n FROM people
    format: parquet
    destination: {type: local, path: ./out/broken}
"""


def test_no_value_of_a_row_and_no_text_of_an_error_is_in_the_instance(project: Project) -> None:
    """Keys, cursors, what differs, and what the server says of a value that it cannot cast.

    The text is told to people alone: on the step's stderr, which Dagster keeps as the compute log.
    """
    project.db.execute(
        "CREATE TABLE people (email text PRIMARY KEY, note text)",
        f"INSERT INTO people SELECT '{ROW}-' || lpad(g::text, 4, '0'), '{ROW} ' || g % 7"
        " FROM generate_series(1, 100) g",
        "ANALYZE",
    )
    project.write(ROWS_EXPORTS)
    runs = {name: project.run(f"export_{name}") for name in ("keyed", "followed", "gated", "broken")}
    assert [runs[name].success for name in runs] == [True, True, False, False]
    project.db.execute(f"INSERT INTO people VALUES ('{ROW}-0101', 'new'), ('{ROW}-0000', 'late')")
    project.db.execute(f"DELETE FROM people WHERE email = '{ROW}-0050'")
    for job in ("reconcile_keyed", "reconcile_followed", "repair_keyed", "validate_keyed", "export_followed"):
        assert project.run(job).success, job
    assert project.run("export_all").success is False
    project.tick("source_moved_followed")
    project.tick("rivet_stale_runs")
    for name in ("gated", "broken"):
        project.tick_failed("rivet_crashed_runs", runs[name].dagster_run)

    files = dict(kept(project.instance))
    told = [path for path in files if "compute_logs" in path.parts]
    assert any(ROW.encode() in files[path] for path in told), "people see what the server said"
    stored = {path: data for path, data in files.items() if path not in told}
    assert sum(map(len, stored.values())) > 100_000, "the instance keeps its events in files"
    assert [path for path, data in stored.items() if ROW.encode() in data] == []
    for text in (b"invalid input syntax", b"Traceback (most recent call last)"):
        assert [path for path, data in stored.items() if text in data] == []


def test_a_state_url_stays_out_of_the_resource(project: Project) -> None:
    from rivet_dagster import RivetResource
    from rivet_dagster.engine.redact import redact

    resource = RivetResource.with_state_url(f"postgresql://u:{CANARY}@h/d")
    assert CANARY not in repr(resource)
    assert CANARY not in str(resource.model_dump())
    assert resource.state_url() == f"postgresql://u:{CANARY}@h/d"
    assert CANARY not in redact(f"cannot reach {CANARY} there")
