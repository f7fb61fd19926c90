"""Every test that asks for ``location`` or ``store`` runs on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rivet_dagster.engine.state.location import StateLocation
from rivet_dagster.engine.state.store import StateStore
from tests.services.postgres import TestDatabase


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> StateLocation:
    """An empty place for a state."""
    if request.param == "sqlite":
        return StateLocation.parse(None, tmp_path)
    database: TestDatabase = request.getfixturevalue("db")
    return StateLocation.parse(database.url, tmp_path)


@pytest.fixture
def store(location: StateLocation) -> Iterator[StateStore]:
    with StateStore.open(location) as opened:
        yield opened
