"""Two runs of one export: one waits, one died, one stalled past its lease and wakes up again."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from rivet_dagster.engine.run.faults import POINTS
from tests.crash.kit import (
    FULL,
    INCREMENTAL,
    ON_STORES,
    RANGE,
    Child,
    Mode,
    Project,
    Reader,
    on_stores,
    process_state,
    stopped,
)

TTL_S = 3.0

#: A stalled run is ended by what it does next at each of these; after the last point it had finished.
STALLS = [point for point in POINTS if point != "after_cursor_commit"]


def alone(mode: Mode) -> Mode:
    """With one worker: a second may be inside a transaction when the first one stops the process."""
    return Mode(mode.name, {**mode.export, "parallel": 1})


@contextlib.contextmanager
def stalled(project: Project, at: str) -> Iterator[Child]:
    """A run that hangs at ``at``, its lease running out.

    One that hangs inside a transaction of SQLite keeps everybody out of the state, which is not what
    these tests are about: it is started again.
    """
    for _ in range(3):
        with stopped(project, at, RIVET_LEASE_TTL_S=str(TTL_S)) as child:
            if state_is_free(project):
                yield child
                return
    raise AssertionError("stopped inside a transaction three times")


def state_is_free(project: Project) -> bool:
    with contextlib.closing(sqlite3.connect(project.folder / "rivet_state.db", timeout=0.5)) as lite:
        try:
            lite.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        lite.execute("ROLLBACK")
        return True


ALL = (FULL, RANGE, INCREMENTAL)


@pytest.mark.parametrize("at", STALLS)
@on_stores(ALL, ALL)
def test_a_stalled_run_changes_nothing_after_its_successor(
    project: Callable[..., Project], orders: pa.Table, mode: Mode, at: str
) -> None:
    this = project(alone(mode))
    reader = Reader(this)
    with stalled(this, at) as first:
        second = this.run("--lock-wait", "60")
        assert second.code == 0, second.log
        reader.check_exact(orders, union=mode.incremental)
        before = reader.picture()
        first.resume()
        assert first.wait() == 2, first.log
        assert "RIVET_STATE_LEASE_LOST" in first.log
    assert reader.picture() == before
    assert this.query("SELECT count(*) FROM chunk_run WHERE status = 'in_progress'") == [(0,)]
    this.succeed()
    reader.check_exact(orders, union=mode.incremental)


@ON_STORES
@pytest.mark.parametrize("at", ["after_manifest_staged", "after_success_staged"])
def test_a_stalled_run_replaces_nothing_of_its_successor(
    project: Callable[..., Project], orders: pa.Table, at: str
) -> None:
    """What it would write over is there already, of the run before."""
    this = project(alone(FULL), "orders_before")
    this.run_here()
    this.table = "orders"
    this.write()
    reader = Reader(this)
    with stalled(this, at) as first:
        second = this.run("--lock-wait", "60")
        assert second.code == 0, second.log
        before = reader.picture()
        first.resume()
        assert first.wait() == 2, first.log
        assert "RIVET_STATE_LEASE_LOST" in first.log
    assert reader.picture() == before
    reader.check_exact(orders, union=False)


@ON_STORES
def test_a_stalled_run_wakes_while_its_successor_is_at_work(
    project: Callable[..., Project], orders: pa.Table
) -> None:
    """Both are in the folder at once, the first with a file that it has yet to rename."""
    this = project(alone(RANGE))
    reader = Reader(this)
    with (
        stalled(this, "after_part_staged:4") as first,
        stopped(this, "after_unit_commit:1", RIVET_LEASE_TTL_S="60") as second,
    ):
        before = reader.picture()
        first.resume()
        assert first.wait() == 2, first.log
        assert "RIVET_STATE_LEASE_LOST" in first.log
        assert reader.picture() == before
        reader.check_instant()
        second.resume()
        assert second.wait() == 0, second.log
    reader.check_exact(orders, union=False)


@ON_STORES
def test_a_run_that_had_finished_before_it_stalled_is_a_success(
    project: Callable[..., Project], orders: pa.Table
) -> None:
    this = project(alone(FULL))
    with stalled(this, "after_cursor_commit") as first:
        assert this.run("--lock-wait", "60").code == 0
        before = Reader(this).picture()
        first.resume()
        assert first.wait() == 0, first.log
    assert Reader(this).picture() == before
    Reader(this).check_exact(orders, union=False)


@pytest.mark.parametrize("at", ["after_lease", "after_file_write:4", "after_success"])
def test_a_waiting_run_takes_over_from_a_killed_one_at_once(
    project: Callable[..., Project], orders: pa.Table, at: str
) -> None:
    """Its lease would live for minutes; its process does not."""
    this = project(alone(RANGE))
    with stopped(this, at, RIVET_LEASE_TTL_S="600") as first:
        second = this.start("--lock-wait", "120")
        time.sleep(1.5)
        assert second.code is None, second.log
        assert process_state(first.pid) == "T"
        killed = time.monotonic()
        first.kill()
        assert first.code == -signal.SIGKILL
        assert second.wait(60) == 0, second.log
        assert time.monotonic() - killed < 60
    Reader(this).check_exact(orders, union=False)
    assert ("goes on" in second.log) == (at == "after_file_write:4")


def test_the_second_of_two_runs_waits_and_then_does_its_own(
    project: Callable[..., Project], orders: pa.Table
) -> None:
    this = project(alone(RANGE))
    with stopped(this, "after_unit_commit:2", RIVET_LEASE_TTL_S="600") as first:
        second = this.start()
        refused = this.run("--lock-wait", "0")
        assert refused.code == 2, refused.log
        assert "RIVET_STATE_RUN_IN_PROGRESS" in refused.log
        timed_out = this.run("--lock-wait", "1")
        assert timed_out.code == 2, timed_out.log
        assert "RIVET_STATE_LOCK_TIMEOUT" in timed_out.log
        assert second.code is None, second.log
        first.resume()
        assert first.wait() == 0, first.log
        assert second.wait() == 0, second.log
    Reader(this).check_exact(orders, union=False)
    runs = this.query("SELECT status FROM chunk_run ORDER BY created_at")
    assert runs == [("completed",), ("completed",)]


@pytest.mark.parametrize("ttl", ["0", "never", "1e9"])
def test_a_lease_time_that_makes_no_sense_is_refused(project: Callable[..., Project], ttl: str) -> None:
    refused = project(FULL).run(RIVET_LEASE_TTL_S=ttl)
    assert refused.code == 1, refused.log
    assert "RIVET_LEASE_TTL_S takes 1 to 86400 seconds" in refused.log
