"""A part that went away after its run's manifest was written."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from tests.crash.kit import ON_STORES, RANGE, Mode, Project, Reader


@ON_STORES
def test_a_fresh_run_gets_past_a_run_that_cannot_be_completed(
    project: Callable[[Mode], Project], orders: pa.Table
) -> None:
    """Completing it is refused, each time, because the manifest would promise what is not there."""
    this = project(RANGE)
    this.crash("after_manifest_copy")
    reader = Reader(this)
    this.lose(reader.files[0])
    for _ in range(2):
        refused = this.run()
        assert refused.code == 3, refused.log
        assert not reader.marked
    fresh = this.run("--fresh")
    assert fresh.code == 0, fresh.log
    reader.check_exact(orders, union=False)
