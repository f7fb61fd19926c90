from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.modes.kit import Project
from tests.services.postgres import TestDatabase


@pytest.fixture
def project(db: TestDatabase, tmp_path: Path) -> Project:
    return Project(tmp_path, db)
