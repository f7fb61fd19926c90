"""How large a statement of a throttled read is, and a time limit that leaves pauses out."""

from __future__ import annotations

import threading
import time
from typing import Final

import pytest

from rivet_dagster.engine.plan import sizing
from rivet_dagster.engine.sources.postgres.connect import SessionLimits
from rivet_dagster.engine.sources.postgres.order import STATEMENT_PAUSE_S, ReadOptions
from rivet_dagster.engine.sources.postgres.pace import Deadline
from rivet_dagster.engine.sources.postgres.predicate import page_tiles

PAGES: Final = 20_000
STEP: Final = sizing.page_step(PAGES, PAGES * 8192, sizing.STATEMENT_BYTES)
SAFE: Final = ReadOptions(131_072, 16 << 20, 1 << 20, throttle_ms=500, throttle_rows=2_000)
BALANCED: Final = ReadOptions(131_072, 16 << 20, 1 << 20, throttle_ms=50, throttle_rows=10_000)


@pytest.mark.parametrize("rows_a_page", [1, 10, 80, 226])
@pytest.mark.parametrize("options", [SAFE, BALANCED], ids=["safe", "balanced"])
def test_no_statement_reads_more_than_a_second_of_pauses(options: ReadOptions, rows_a_page: int) -> None:
    spec = {"first": 0, "last": None, "pages": PAGES, "step": STEP}
    tiles = list(page_tiles(spec, lambda read: options.pages(STEP, read * rows_a_page, read)))
    sizes = [(PAGES if last is None else last) - first for first, last in tiles]
    pauses = [options.pause_s(size * rows_a_page) for size in sizes]
    assert sum(sizes) == PAGES
    assert max(pauses) <= STATEMENT_PAUSE_S
    assert max(sizes) <= STEP
    # nor are they smaller than that asks for, the first and the last aside
    assert all(
        size == STEP or pause > STATEMENT_PAUSE_S / 2
        for size, pause in zip(sizes[1:-1], pauses[1:-1], strict=True)
    )


def test_without_a_throttle_statements_are_as_planned() -> None:
    assert ReadOptions(1, 1, 1).pages(STEP, 0, 0) == STEP


def test_a_row_that_costs_more_than_a_second_is_read_page_by_page() -> None:
    assert ReadOptions(1, 1, 1, throttle_ms=5_000, throttle_rows=1).pages(STEP, 10, 10) == 1


def test_limits_leave_room_for_the_pauses() -> None:
    limits = SAFE.limits(SessionLimits(120_000, 10_000, 600_000), paused=True)
    assert (limits.statement_timeout_ms, limits.lock_timeout_ms) == (0, 10_000)  # a Deadline is there instead
    assert limits.idle_timeout_ms == 600_000 + 250_000
    assert SAFE.limits(SessionLimits(7, 7, 0), paused=False) == SessionLimits(7, 7, 0)


def test_a_deadline_does_not_count_pauses() -> None:
    ended = threading.Event()
    with Deadline(0.2, ended.set) as deadline:
        with deadline.paused():
            assert not ended.wait(0.4)
        began = time.monotonic()
        assert ended.wait(5)
        assert time.monotonic() - began > 0.1


@pytest.mark.parametrize("seconds", [0, 0.1])
def test_a_deadline_of_what_is_over_ends_nothing(seconds: float) -> None:
    ended = threading.Event()
    with Deadline(seconds, ended.set):
        pass
    assert not ended.wait(0.2)
