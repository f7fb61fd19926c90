"""A run killed at each point between two durable steps, over an earlier complete run of other rows."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from rivet_dagster.engine.run.faults import POINTS
from tests.crash.kit import FULL, KEY, RANGE, RANGE_ANEW, Mode, Project, Reader, on_stores

PER_UNIT = {"after_source_read": 2, "after_part_staged": 5, "after_file_write": 5, "after_unit_commit": 3}
ALL = (FULL, RANGE, RANGE_ANEW, KEY)
PLACES = [*POINTS, *(f"{point}:{hit}" for point, hit in PER_UNIT.items())]


@pytest.mark.parametrize("at", PLACES)
@on_stores(ALL, ALL)
def test_killed_at(
    project: Callable[..., Project], orders: pa.Table, orders_before: pa.Table, mode: Mode, at: str
) -> None:
    this = project(mode, "orders_before")
    this.run_here()
    reader = Reader(this)
    reader.check_exact(orders_before, union=False)

    this.table = "orders"
    this.write()
    this.crash(at)
    reader.check_instant(orders_before, orders)
    log = this.succeed().log
    reader.check_exact(orders, union=False)

    states = {status for (status,) in this.query("SELECT status FROM chunk_run")}
    assert states <= {"completed", "interrupted"}
    resumed = "goes on" in log
    begun = (
        PLACES.index("after_plan") <= POINTS.index(at.partition(":")[0]) < POINTS.index("after_manifest_copy")
    )
    assert resumed == (begun and "chunk_checkpoint" in mode.export)
