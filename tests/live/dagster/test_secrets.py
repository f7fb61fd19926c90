"""Nothing secret reaches what Dagster keeps: events, run config, logs, sensor cursors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterEventType
from sqlalchemy.engine import make_url

from tests.live.dagster.conftest import URL_ENV, Project

CANARY = "c4n4ry/p@ss:w0rd"


@pytest.fixture
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    """An instance that keeps everything in files, as one on a laptop does."""
    home = tmp_path_factory.mktemp("dagster_home")
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with dg.DagsterInstance.from_config(str(home)) as stored:
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


def test_a_state_url_stays_out_of_the_resource(project: Project) -> None:
    from rivet_dagster import RivetResource
    from rivet_dagster.engine.redact import redact

    resource = RivetResource.with_state_url(f"postgresql://u:{CANARY}@h/d")
    assert CANARY not in repr(resource)
    assert CANARY not in str(resource.model_dump())
    assert resource.state_url() == f"postgresql://u:{CANARY}@h/d"
    assert CANARY not in redact(f"cannot reach {CANARY} there")
