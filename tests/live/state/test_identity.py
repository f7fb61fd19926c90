"""Whose state it is (D6): a declared directory serves one source, a file beside configs warns."""

from __future__ import annotations

from pathlib import Path

import pytest

from rivet_dagster.config import load_config
from rivet_dagster.engine.errors import RefusalError, error_object
from rivet_dagster.engine.run.engine import Engine
from rivet_dagster.engine.run.events import RunNote
from tests.services.postgres import TestDatabase, TestServer, database

URL_ENV = "RIVET_TEST_IDENTITY_URL"
CONFIG = f"""
source: {{type: postgres, url_env: {URL_ENV}, tls: {{mode: disable}}}}
exports:
  - {{name: things, table: things, format: parquet, destination: {{type: local, path: ./out}}}}
"""


@pytest.fixture
def folder(tmp_path: Path, db: TestDatabase, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "rivet.yaml").write_text(CONFIG)
    db.execute("CREATE TABLE things AS SELECT 1 AS id")
    monkeypatch.setenv(URL_ENV, db.url)
    return tmp_path


def run(folder: Path, state_url: str) -> list[str]:
    """One run; what it noted."""
    with (
        Engine(load_config(folder / "rivet.yaml"), state_url=state_url) as engine,
        engine.session("things", holder="test") as session,
    ):
        session.plan()
        notes = [event.text for event in session.execute() if isinstance(event, RunNote)]
        session.finalize()
    return notes


def test_a_declared_directory_of_another_source_stays_as_it_was(
    folder: Path, pg: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = f"sqlite:{folder / 'state'}"
    run(folder, declared)
    kept = (folder / "state" / "rivet_state.db").read_bytes()
    with database(pg) as other:
        other.execute("CREATE TABLE things AS SELECT 1 AS id")
        monkeypatch.setenv(URL_ENV, other.url)
        with pytest.raises(RefusalError) as caught:
            run(folder, declared)
    assert error_object(caught.value)["code"] == "RIVET_STATE_FOREIGN"
    assert str(folder / "state") in caught.value.message
    assert (folder / "state" / "rivet_state.db").read_bytes() == kept
    monkeypatch.delenv(URL_ENV)  # who cannot know the source compares nothing
    with Engine(load_config(folder / "rivet.yaml"), state_url=declared) as engine:
        assert engine.state.latest_run("things") is not None


def test_a_state_beside_the_config_serves_two_sources_and_says_so(
    folder: Path, pg: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(folder, "") == []
    with database(pg) as other:
        other.execute("CREATE TABLE things AS SELECT 1 AS id")
        monkeypatch.setenv(URL_ENV, other.url)
        (note,) = [text for text in run(folder, "") if "state" in text]
    assert note.startswith("the state beside the config is also that of postgres://")


def test_a_state_in_postgres_is_shared_by_design(
    folder: Path, pg: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database(pg) as kept, database(pg) as other:
        run(folder, kept.url)
        other.execute("CREATE TABLE things AS SELECT 1 AS id")
        monkeypatch.setenv(URL_ENV, other.url)
        assert run(folder, kept.url) == []
