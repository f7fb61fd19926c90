"""The state's server is away for a while, or for too long, whatever a run is doing at that time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pytest

from tests.crash.kit import INCREMENTAL, ON_STORES, RANGE, Mode, Project, Reader, stopped
from tests.services.postgres import TestServer, database, postgres_server

SLOW: Final = Mode("slow", {**RANGE.export, "chunk_size": 5, "tuning": {"batch_size": 60, "throttle_ms": 70}})
AWAY_S: Final = 1.5

#: Between two steps of the state: before the plan, before the first unit, at and after each step of the end.
MOMENTS: Final = (
    "after_lease",
    "after_plan",
    "before_finalize",
    "after_manifest_copy_staged",
    "after_manifest_copy",
    "after_manifest_update",
    "after_quarantine",
    "after_success",
    "after_cursor_commit",
)


@dataclass
class Site:
    """A project whose state has a server of its own."""

    project: Project
    server: TestServer


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with postgres_server(17) as started:
        yield started


@pytest.fixture
def site(project: Callable[..., Project], server: TestServer) -> Iterator[Callable[[Mode], Site]]:
    with database(server) as state:

        def make(mode: Mode) -> Site:
            this = project(mode)
            this.state_url = state.url
            return Site(this, server)

        yield make


@ON_STORES
def test_a_restart_of_the_state_in_mid_run(site: Callable[[Mode], Site], orders: pa.Table) -> None:
    this = site(SLOW)
    child = this.project.start()
    child.await_text(" units")
    done = "SELECT count(*) FROM chunk_task WHERE status = 'completed'"
    while this.project.query(done)[0][0] < 3:
        time.sleep(0.05)
    this.server.restart("immediate")
    assert child.wait() == 0, child.log
    check(this.project, orders)


def test_a_state_that_is_away_at_the_start_is_waited_for(
    site: Callable[[Mode], Site], orders: pa.Table
) -> None:
    """Its tables are made when it comes back."""
    this = site(RANGE)
    this.server.stop("immediate")
    try:
        child = this.project.start()
        time.sleep(AWAY_S)
        assert child.code is None, child.log
    finally:
        this.server.start()
    assert child.wait() == 0, child.log
    check(this.project, orders)


@pytest.mark.parametrize(
    ("mode", "at"),
    [*((RANGE, at) for at in MOMENTS), *((INCREMENTAL, at) for at in ("after_lease", "after_success"))],
    ids=lambda case: case if isinstance(case, str) else case.name,
)
def test_an_outage_of_the_state_is_waited_for_at(
    site: Callable[[Mode], Site], orders: pa.Table, mode: Mode, at: str
) -> None:
    this = site(mode)
    with stopped(this.project, at) as child:
        this.server.stop("immediate")
        try:
            child.resume()
            time.sleep(AWAY_S)
        finally:
            this.server.start()
        assert child.wait() == 0, child.log
    check(this.project, orders)


@pytest.mark.parametrize("at", ["after_lease", "before_finalize", "after_manifest_update"])
def test_an_outage_that_outlives_the_lease_ends_the_run_as_retryable(
    site: Callable[[Mode], Site], orders: pa.Table, at: str
) -> None:
    this = site(RANGE)
    with stopped(this.project, at, RIVET_LEASE_TTL_S="2") as child:
        this.server.stop("immediate")
        try:
            began = time.monotonic()
            child.resume()
            assert child.wait() == 2, child.log
            assert time.monotonic() - began < 10
        finally:
            this.server.start()
    reader = Reader(this.project)
    reader.check_instant(orders)
    this.project.succeed()
    reader.check_exact(orders, union=False)
    assert this.project.query("SELECT count(*) FROM chunk_run WHERE status != 'completed'") == [(0,)]


def test_a_state_that_stays_away_at_the_start_ends_the_run_as_retryable(site: Callable[[Mode], Site]) -> None:
    this = site(RANGE)
    this.server.stop("immediate")
    try:
        began = time.monotonic()
        child = this.project.run(RIVET_LEASE_TTL_S="2")
        took = time.monotonic() - began
    finally:
        this.server.start()
    assert child.code == 2, child.log
    assert "RIVET_STATE_UNAVAILABLE" in child.log
    assert 2 <= took < 10


def check(project: Project, orders: pa.Table) -> None:
    Reader(project).check_exact(orders, union=project.mode.incremental)
    assert project.query("SELECT status, count(*) FROM chunk_run GROUP BY status") == [("completed", 1)]
