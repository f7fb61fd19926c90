"""Figures of parts and the longest values of an export, in both backends."""

from __future__ import annotations

from msgspec.structs import replace

from rivet_dagster.engine.plan.units import PartStats
from rivet_dagster.engine.state.models import RunFinish
from rivet_dagster.engine.state.store import StateStore
from tests.live.state.helpers import begin, claim, commit_all, header, make_part, make_units

STATS = PartStats({"id": 0, "wörd": 2**40}, {"wörd": 7}, {"n": 3})


def test_figures_of_a_part_come_back_and_are_carried(store: StateStore) -> None:
    lease = begin(store, 2)
    first, second = claim(store, lease), claim(store, lease)
    store.commit_unit(first, [replace(make_part(first), stats=STATS)], lease, seconds=0.1)
    store.commit_unit(second, [make_part(second)], lease, seconds=0.1)
    rows = store.parts("r1")
    assert [row.as_part().stats for row in rows] == [STATS, None]
    store.finish_run("r1", lease, RunFinish("completed"))
    store.begin_run(header("r2"), make_units(2), lease, completed={0: rows[:1], 1: rows[1:]})
    assert [row.stats for row in store.parts("r2")] == [STATS, None]


def test_longest_values_are_those_of_complete_runs(store: StateStore) -> None:
    assert store.widths("orders") is None
    lease = begin(store, 1)
    commit_all(store, lease)
    store.finish_run("r1", lease, RunFinish("completed", widths={"wörd": 7}))
    assert store.widths("orders") == {"wörd": 7}
    store.begin_run(header("r2"), make_units(1), lease)
    commit_all(store, lease, "r2")
    store.finish_run("r2", lease, RunFinish("completed", widths={"wörd": 9, "b": 1}))
    assert store.widths("orders") == {"wörd": 9, "b": 1}


def test_figures_of_two_parts_join() -> None:
    other = PartStats({"id": 4}, {"wörd": 5, "b": 1}, {"n": 1, "m": 1})
    assert STATS.joined(other) == PartStats({"id": 4, "wörd": 2**40}, {"wörd": 7, "b": 1}, {"n": 4, "m": 1})
    assert PartStats.of_json(STATS.as_json()) == STATS
