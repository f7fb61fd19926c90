"""A run with a folder a day, killed at each point: every folder is an export of its own to a reader."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from tests.crash.kit import FOLDERS, Project, Reader, on_stores

#: What differs from other modes. The prefix's own manifest is written first, its marker last; between lie
#: those of 8 folders.
PLACES = (
    "after_plan",
    "after_marker_removed",
    "after_file_write:5",
    "after_unit_commit:3",
    "after_manifest_copy",
    "after_manifest_update",
    "after_manifest_copy_staged:5",
    "after_manifest_staged:2",
    "after_manifest_staged:9",
    "after_quarantine",
    "after_success_staged:4",
    "after_success_staged:9",
)


@on_stores(PLACES, PLACES)
def test_killed_at(
    project: Callable[..., Project], orders: pa.Table, orders_before: pa.Table, at: str
) -> None:
    this = project(FOLDERS, "orders_before")
    this.run_here()
    reader = Reader(this)
    reader.check_exact(orders_before, union=False)
    assert len(reader.folders) == 7

    this.table = "orders"
    this.write()
    this.crash(at)
    reader.check_instant(orders_before, orders)
    for folder in reader.folders:
        folder.check_instant(folder.day(orders_before), folder.day(orders))
    this.succeed()
    reader.check_exact(orders, union=False)
    assert len(reader.folders) == 8
    for folder in reader.folders:
        folder.check_exact(folder.day(orders), union=False)
