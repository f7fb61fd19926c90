"""The governor's rule, look by look."""

from __future__ import annotations

import pytest

from rivet_dagster.engine.run.pacing import Governor


@pytest.mark.parametrize(
    ("loads", "limits"),
    [
        ([0, 0, 0, 0], [4, 4, 4, 4]),
        ([9, 0, 9, 0], [4, 4, 4, 4]),  # what lasts for one look only is nothing
        ([9, 9], [4, 1]),  # all at once
        ([2, 2, 2], [4, 2, 2]),  # as many as are left
        ([9, 9, 0, 0, 0, 0, 0], [4, 1, 1, 1, 2, 3, 4]),  # by one, when the last three allow it
        ([9, 9, 0, 0, 9, 0, 0, 0], [4, 1, 1, 1, 1, 1, 1, 2]),  # a spike holds it down
        ([3, 1, 2, 1, 2], [4, 3, 3, 3, 3]),  # it does not swing
    ],
)
def test_workers_follow_the_load(loads: list[int], limits: list[int]) -> None:
    governor = Governor(1, 4)
    assert [governor.observe(load) for load in loads] == limits


def test_never_below_the_lowest() -> None:
    governor = Governor(3, 4)
    assert [governor.observe(50) for _ in range(3)] == [4, 3, 3]


def test_a_source_that_is_not_seen_is_not_held_to_be_busy() -> None:
    governor = Governor(1, 4)
    for _ in range(2):
        governor.observe(9)
    assert [governor.blind() for _ in range(4)] == [2, 3, 4, 4]
