"""Every mode on every version of PostgreSQL beside 17, on which everything else runs."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import cast

import pytest

from rivet_dagster.engine.run.events import RunEvent, UnitCommitted
from tests.conftest import server_of
from tests.live.modes import walk
from tests.live.modes.kit import Project
from tests.live.modes.walk import MODES, ROWS
from tests.services.postgres import VERSIONS, TestServer, database

MORE = 20


@pytest.fixture(scope="module", params=[version for version in VERSIONS if version != 17])
def server(request: pytest.FixtureRequest) -> Iterator[TestServer]:
    yield from server_of(request.param)


def broken_run(project: Project) -> None:
    """A run that ends without a word after its first unit."""
    with project.engine() as engine, engine.session("o", holder="test") as session:
        session.plan()
        with contextlib.closing(cast("Generator[RunEvent]", session.execute())) as events:
            assert any(isinstance(event, UnitCommitted) for event in events)


@pytest.mark.parametrize("mode", MODES)
def test_every_row_once_after_a_broken_run(
    server: TestServer, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rivet_dagster.engine.plan.sizing.UNIT_MIN_BYTES", 16_384)
    monkeypatch.setattr("rivet_dagster.engine.plan.sizing.STATEMENT_BYTES", 8_192)
    monkeypatch.setattr("rivet_dagster.engine.plan.guards.MEMORY_CHUNK_ROWS", (5, 10))
    way = MODES[mode]
    with database(server) as db:
        project = Project(tmp_path, db, dict(way.keys))
        if way.resumes:
            project.keys["chunk_checkpoint"] = True
        walk.create(project, way)
        walk.fill(project, way)
        broken_run(project)
        ran = project.run()
        assert any(unit.carried for unit in ran.units) == way.resumes
        assert project.rows("n") == dict.fromkeys(range(1, ROWS + 1), 1)
        walk.insert(project, way, ROWS + 1, ROWS + MORE)
        project.run()
        assert project.rows("n") == dict.fromkeys(range(1, ROWS + MORE + 1), 1)
        assert project.validate().findings == ()
        assert project.reconcile() == "match"
