"""A rig for each test; a connection that outlives it is a failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.postgres.rig import Rig
from tests.services.postgres import TestDatabase


@pytest.fixture
def rig(db: TestDatabase, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(db, tmp_path)
    yield made
    made.close()
    made.assert_no_connections()
