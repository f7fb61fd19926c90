"""Every test that asks for ``location``, ``fresh`` or ``store`` runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rivet_dagster.engine.state.location import StateLocation
from rivet_dagster.engine.state.schema import metadata
from rivet_dagster.engine.state.store import StateStore
from tests.services.postgres import TestDatabase, TestServer, database

BACKENDS = ("sqlite", "postgresql")


@pytest.fixture(params=BACKENDS)
def location(request: pytest.FixtureRequest, tmp_path: Path) -> StateLocation:
    """An empty place for a state."""
    if request.param == "sqlite":
        return StateLocation.parse(None, tmp_path)
    empty: TestDatabase = request.getfixturevalue("db")
    return StateLocation.parse(empty.url, tmp_path)


@pytest.fixture
def fresh(location: StateLocation) -> Iterator[StateStore]:
    """A store of its own, for tests that change its tables."""
    with StateStore.open(location) as opened:
        yield opened


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    location = StateLocation.parse(None, tmp_path_factory.mktemp("state"))
    StateStore.open(location).close()
    assert location.path is not None
    return location.path


@pytest.fixture(scope="session")
def migrated_url(pg: TestServer) -> Iterator[str]:
    with database(pg) as shared:
        yield shared.url


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateStore]:
    """A store without a row. Its tables were made once for the session, which is most of the time."""
    if request.param == "sqlite":
        location = StateLocation.parse(None, tmp_path)
        assert location.path is not None
        shutil.copy(request.getfixturevalue("migrated_file"), location.path)
    else:
        location = StateLocation.parse(request.getfixturevalue("migrated_url"), tmp_path)
    with StateStore.open(location) as opened:
        yield opened
        if request.param == "postgresql":
            with opened._db.transaction() as connection:
                connection.execute(f"TRUNCATE {', '.join(metadata.tables)} RESTART IDENTITY")
