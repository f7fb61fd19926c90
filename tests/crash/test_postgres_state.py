"""The same promises when the state is in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from tests.crash.kit import FOLDERS, FULL, INCREMENTAL, KEY, RANGE, Mode, Project, Reader, on_stores, stopped
from tests.services.postgres import TestServer, database

PLACES = (
    "after_plan",
    "after_file_write:5",
    "after_unit_commit:3",
    "after_manifest_copy",
    "after_success",
    "after_cursor_commit",
)
STALLS = ("after_plan", "after_part_staged:5", "after_file_write:5", "after_manifest_copy")


@pytest.fixture
def url(pg: TestServer) -> Iterator[str]:
    with database(pg) as state:
        yield state.url


@pytest.mark.parametrize("at", PLACES)
@on_stores([FULL, RANGE, KEY, FOLDERS, INCREMENTAL], [RANGE])
def test_killed_at(project: Callable[..., Project], orders: pa.Table, url: str, mode: Mode, at: str) -> None:
    this = project(mode)
    this.state_url = url
    reader = Reader(this)
    this.crash(at)
    reader.check_instant(orders)
    this.succeed()
    reader.check_exact(orders, union=mode.incremental)
    assert this.query("SELECT count(*) FROM chunk_run WHERE status = 'in_progress'") == [(0,)]
    assert not (this.folder / "rivet_state.db").exists()


STALLED = (FULL, RANGE, FOLDERS, INCREMENTAL)


@pytest.mark.parametrize("at", STALLS)
@on_stores(STALLED, STALLED)
def test_a_stalled_run_changes_nothing_after_its_successor(
    project: Callable[..., Project], orders: pa.Table, url: str, mode: Mode, at: str
) -> None:
    this = project(mode)
    this.state_url = url
    reader = Reader(this)
    with stopped(this, at, RIVET_LEASE_TTL_S="2") as first:
        second = this.run("--lock-wait", "60")
        assert second.code == 0, second.log
        before = reader.picture()
        first.resume()
        assert first.wait() == 2, first.log
        assert "RIVET_STATE_LEASE_LOST" in first.log
    assert reader.picture() == before
    reader.check_exact(orders, union=mode.incremental)
