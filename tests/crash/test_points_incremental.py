"""Incremental runs killed at each point: the deltas of all completed runs hold each row once."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import pytest

from rivet_dagster.engine.run.faults import POINTS
from tests.crash.kit import (
    FOLDERS_INCREMENTAL,
    FULL,
    INCREMENTAL,
    ON_STORES,
    ROWS,
    Mode,
    Project,
    Reader,
    add_rows,
    create_table,
    on_stores,
    table_rows,
)
from tests.services.postgres import TestDatabase

FIRST = [*POINTS, "after_source_read:2", "after_part_staged:5", "after_file_write:5", "after_unit_commit:3"]
SECOND = [*POINTS, "after_part_staged:2", "after_file_write:2"]


INTO_FOLDERS = [
    "after_file_write:2",
    "after_unit_commit:2",
    "after_manifest_copy",
    "after_manifest_staged:3",
    "after_quarantine",
    "after_success_staged:2",
]


@pytest.fixture
def growing(shop: TestDatabase) -> Iterator[str]:
    """A table of the test's own."""
    name = f"growing_{secrets.token_hex(4)}"
    create_table(shop, name)
    yield name
    shop.execute(f"DROP TABLE {name}")


def completed(project: Project) -> set[str]:
    return {run for (run,) in project.query("SELECT run_id FROM chunk_run WHERE status = 'completed'")}


def check_runs(project: Project, last_id: int) -> None:
    """Manifests of completed runs only, and the cursor where the rows end."""
    manifests = {path.name for path in project.prefix.glob("manifest-*.json")}
    assert manifests == {f"manifest-{run}.json" for run in completed(project)}
    assert project.query("SELECT last_cursor_value FROM export_state") == [(str(last_id),)]
    assert project.query("SELECT count(*) FROM chunk_run WHERE status = 'in_progress'") == [(0,)]


@pytest.mark.parametrize("at", FIRST)
@ON_STORES
def test_first_run_killed_at(
    project: Callable[..., Project], growing: str, shop: TestDatabase, at: str
) -> None:
    this = project(INCREMENTAL, growing)
    reader = Reader(this)
    before = table_rows(shop, growing)
    this.crash(at)
    reader.check_instant(before)
    add_rows(shop, growing, ROWS, 300)
    this.succeed()
    reader.check_exact(table_rows(shop, growing), union=True)
    check_runs(this, ROWS + 299)


@on_stores(SECOND, SECOND)
def test_second_run_killed_at(
    project: Callable[..., Project], growing: str, shop: TestDatabase, at: str
) -> None:
    this = project(INCREMENTAL, growing)
    reader = Reader(this)
    first = table_rows(shop, growing)
    this.run_here()
    reader.check_exact(first, union=True)

    add_rows(shop, growing, ROWS, 1500)
    second = table_rows(shop, growing)
    this.crash(at)
    reader.check_instant(first, second)
    add_rows(shop, growing, ROWS + 1500, 300)
    this.succeed()
    reader.check_exact(table_rows(shop, growing), union=True)
    check_runs(this, ROWS + 1799)


@pytest.mark.parametrize("other", [FULL, INCREMENTAL], ids=lambda mode: mode.name)
def test_a_run_rolled_forward_under_another_config_ends_as_it_began(
    project: Callable[..., Project], growing: str, shop: TestDatabase, other: Mode
) -> None:
    """The cursor of the killed run stays that of its own table, whatever the config names by now."""
    this = project(INCREMENTAL, growing)
    this.crash("after_manifest_copy")
    this.table, this.mode = "orders_before", other
    this.write()
    after = this.run()
    if other is FULL:
        assert after.code == 0, after.log
        Reader(this).check_exact(table_rows(shop, "orders_before"), union=False)
    else:
        assert after.code == 5, after.log
        assert "RIVET_STATE_CURSOR_OWNER_MISMATCH" in after.log
    ((stream,),) = this.query("SELECT stream FROM export_state")
    assert str(stream).endswith(f"/public.{growing}")


def test_whole_passes_and_deltas_in_one_folder(
    project: Callable[..., Project], growing: str, shop: TestDatabase
) -> None:
    """A whole pass replaces deltas, and a first incremental run replaces a whole pass."""
    this = project(INCREMENTAL, growing)
    reader = Reader(this)
    for round_, mode in enumerate([FULL, INCREMENTAL, INCREMENTAL, FULL, INCREMENTAL, INCREMENTAL]):
        this.mode = mode
        this.write()
        this.run_here()
        rows = table_rows(shop, growing)
        reader.check_instant(rows)
        assert reader.marked, f"round {round_}"
        add_rows(shop, growing, ROWS + 100 * round_, 100)


@on_stores(INTO_FOLDERS, INTO_FOLDERS)
def test_second_run_into_folders_killed_at(
    project: Callable[..., Project], growing: str, shop: TestDatabase, at: str
) -> None:
    """The new rows lie in the last day of the first run and in days that it did not have."""
    this = project(FOLDERS_INCREMENTAL, growing)
    reader = Reader(this)
    first = table_rows(shop, growing)
    this.run_here()
    add_rows(shop, growing, ROWS, 1000)
    second = table_rows(shop, growing)
    this.crash(at)
    reader.check_instant(first, second)
    for folder in reader.folders:
        folder.check_instant(folder.day(first), folder.day(second))
    this.succeed()
    reader.check_exact(second, union=True)
    assert len(reader.folders) == 10
    for folder in reader.folders:
        folder.check_exact(folder.day(second), union=True)
    check_runs(this, ROWS + 999)
