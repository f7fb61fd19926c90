"""Runs killed twice at random times, then left alone. RIVET_CRASH_SEED replays a printed seed."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.crash.kit import (
    EXPORT,
    FOLDERS,
    INCREMENTAL,
    MODES,
    ON_STORES,
    ROWS,
    Mode,
    Project,
    Reader,
    add_rows,
    create_table,
    real_command,
    table_rows,
)
from tests.crash.mirror import Mirror
from tests.services.postgres import TestDatabase

RUNS_A_MODE = {"local": 10, "s3": 3}
_ENV = "RIVET_CRASH_SEED"


def seed() -> int:
    return int(os.environ.get(_ENV) or secrets.randbelow(1 << 32))


def kill_after(project: Project, chance: random.Random, usual_s: float) -> bool:
    """Kill a run at a random time of its life. False: it had ended by itself before.

    One time in five counts from the start of the process, which then also opens the state; the others
    from the moment when the plan is printed.
    """
    child = project.start()
    if chance.random() < 0.8:
        with contextlib.suppress(AssertionError):  # it may end before we have looked
            child.await_text(f"{EXPORT}: ")
    time.sleep(chance.uniform(0.0, usual_s))
    killed = child.process.is_alive()
    child.kill()
    assert killed or child.code == 0, child.log
    return killed


def usual_seconds(project: Project) -> float:
    """From the plan to the end of an undisturbed run."""
    child = project.start()
    child.await_text(f"{EXPORT}: ")
    started = time.monotonic()
    assert child.wait() == 0, child.log
    return time.monotonic() - started


@pytest.mark.parametrize(
    "mode", [*(m for m in MODES if not m.incremental), FOLDERS], ids=lambda mode: mode.name
)
@ON_STORES
def test_killed_twice(
    tmp_path: Path,
    shop: TestDatabase,
    orders: pa.Table,
    orders_before: pa.Table,
    mode: Mode,
    where: str,
    mirror: Mirror | None,
) -> None:
    first = seed()
    print(f"{_ENV}={first}")
    chance = random.Random(first)
    usual = 0.0
    for number in range(RUNS_A_MODE[where]):
        folder = tmp_path / str(number)
        folder.mkdir()
        this = Project(folder, shop, mode, "orders_before", bucket=mirror and mirror.beside(number))
        reader = Reader(this)
        usual = usual or usual_seconds(this)
        if number % 2:  # every other one over an earlier complete run
            this.run_here()
        this.table = "orders"
        this.write()
        for _ in range(2):
            kill_after(this, chance, usual)
            reader.check_instant(orders_before, orders)
        this.succeed()
        reader.check_exact(orders, union=False)


@ON_STORES
def test_incremental_killed_twice(
    tmp_path: Path, shop: TestDatabase, where: str, mirror: Mirror | None
) -> None:
    first = seed()
    print(f"{_ENV}={first}")
    chance = random.Random(first)
    usual = 0.0
    for number in range(RUNS_A_MODE[where]):
        folder = tmp_path / str(number)
        folder.mkdir()
        table = f"random_{secrets.token_hex(4)}"
        create_table(shop, table)
        this = Project(folder, shop, INCREMENTAL, table, bucket=mirror and mirror.beside(number))
        reader = Reader(this)
        seen = [table_rows(shop, table)]
        usual = usual or usual_seconds(this)
        for n in range(2):
            kill_after(this, chance, usual)
            reader.check_instant(*seen)
            add_rows(shop, table, ROWS + 700 * n, 700)
            seen.append(table_rows(shop, table))
        this.succeed()
        reader.check_exact(seen[-1], union=True)
        shop.execute(f"DROP TABLE {table}")


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@ON_STORES
def test_the_program_as_a_person_starts_it(
    project: Callable[..., Project], orders: pa.Table, mode: Mode
) -> None:
    """The other tests fork their runs from one process; this one starts Python anew."""
    this = project(mode)
    dead = real_command(this, RIVET_TEST_CRASH_AT="after_unit_commit:2")
    assert dead.returncode == -9, dead.stderr
    Reader(this).check_instant(orders)
    alive = real_command(this)
    assert alive.returncode == 0, alive.stderr
    Reader(this).check_exact(orders, union=mode.incremental)
