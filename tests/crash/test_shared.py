"""Several processes work on one run: whichever of them dies, hangs or is cut off, the export is exact."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pytest

from tests.crash.kit import FOLDERS, FULL, KEY, RANGE, Child, Mode, Project, Reader
from tests.services.postgres import TestServer, database

TTL_S = 2.0
#: About a quarter of a second a unit, so that guests are there before all is done.
SLOW: Final = {"batch_size": 60, "throttle_ms": 70}


def shared(mode: Mode) -> Mode:
    cut = {"chunk_size": 5} if mode is RANGE else {}
    return Mode(mode.name, {**mode.export, **cut, "parallel": 1, "tuning": SLOW, "dagster": {"workers": 3}})


@pytest.fixture
def url(pg: TestServer) -> Iterator[str]:
    with database(pg) as state:
        yield state.url


@dataclass
class Crew:
    """One lead and its guests over a project; all end with the block."""

    project: Project
    children: list[Child]
    ttl_s: float = TTL_S

    def lead(self, **environment: str) -> Child:
        return self._add(self.project.start(**{**self._ttl, **environment}))

    def guest(self, **environment: str) -> Child:
        return self._add(Child(self.project, ("--wait", "30"), {**self._ttl, **environment}, verb="work"))

    @property
    def _ttl(self) -> dict[str, str]:
        return {"RIVET_LEASE_TTL_S": str(self.ttl_s)}

    def _add(self, child: Child) -> Child:
        self.children.append(child)
        return child

    def committed(self) -> list[tuple[int, str]]:
        """(unit, process) of each unit of the run."""
        found = self.project.query("SELECT chunk_index, claimed_by FROM chunk_task ORDER BY chunk_index")
        return [(int(i), str(worker).rpartition("/")[0]) for i, worker in found]


@pytest.fixture
def crew(project: Callable[..., Project], url: str) -> Iterator[Callable[[Mode], Crew]]:
    crews: list[Crew] = []

    def make(mode: Mode) -> Crew:
        this = project(shared(mode))
        this.state_url = url
        crews.append(Crew(this, []))
        return crews[-1]

    yield make
    for made in crews:
        for child in made.children:
            child.kill()


def check(crew: Crew, orders: pa.Table) -> None:
    """Every unit once in the state, every row once for a reader."""
    Reader(crew.project.prefix).check_exact(orders, union=False)
    assert crew.project.query("SELECT count(*) FROM chunk_run WHERE status != 'completed'") == [(0,)]
    twice = "SELECT chunk_index FROM file_log GROUP BY run_id, chunk_index HAVING count(DISTINCT attempt) > 1"
    assert crew.project.query(twice) == []


@pytest.mark.parametrize("mode", [FULL, RANGE, KEY, FOLDERS], ids=lambda mode: mode.name)
def test_guests_share_the_units_of_a_run(crew: Callable[[Mode], Crew], orders: pa.Table, mode: Mode) -> None:
    this = crew(mode)
    guests = [this.guest(), this.guest()]
    lead = this.lead()
    assert lead.wait() == 0, lead.log
    for guest in guests:
        assert guest.wait() == 0, guest.log
    assert len({worker for _, worker in this.committed()}) >= 2
    check(this, orders)


@pytest.mark.parametrize("at", ["after_source_read", "after_file_write", "after_unit_commit"])
def test_units_of_a_killed_guest_are_done_by_others(
    crew: Callable[[Mode], Crew], orders: pa.Table, at: str
) -> None:
    this = crew(RANGE)
    guest = this.guest(RIVET_TEST_CRASH_AT=f"{at}:1")
    lead = this.lead()
    assert guest.wait() == -signal.SIGKILL, guest.log
    assert lead.wait() == 0, lead.log
    check(this, orders)


@pytest.mark.parametrize("at", ["after_source_read:1", "after_part_staged:1", "after_file_write:1"])
def test_a_guest_that_stalled_past_its_claim_is_refused(
    crew: Callable[[Mode], Crew], orders: pa.Table, at: str
) -> None:
    this = crew(RANGE)
    stalled = this.guest(RIVET_TEST_PAUSE_AT=at)
    lead = this.lead()
    stalled.await_stopped()
    assert lead.wait() == 0, lead.log
    before = Reader(this.project.prefix).picture()
    stalled.resume()
    assert stalled.wait() == 0, stalled.log
    assert Reader(this.project.prefix).picture() == before
    assert this.project.query("SELECT max(claim_token) FROM chunk_task") == [(2,)]
    check(this, orders)


def test_a_stalled_guest_that_wakes_in_time_to_help_goes_on_with_other_units(
    crew: Callable[[Mode], Crew], orders: pa.Table
) -> None:
    this = crew(RANGE)
    this.ttl_s = 5
    stalled = this.guest(RIVET_TEST_PAUSE_AT="after_file_write:1")
    lead = this.lead(RIVET_TEST_PAUSE_AT="before_finalize")
    stalled.await_stopped()
    lead.await_stopped()  # every unit is complete, and the folder is not looked at yet
    stalled.resume()
    stalled.await_text("has passed from")
    before = {path.name for path in Reader(this.project.prefix).files}
    named = {name for (name,) in this.project.query("SELECT file_name FROM file_log")}
    assert before == named, "what the refused commit would have counted is still in the folder"
    lead.resume()
    assert lead.wait() == 0, lead.log
    assert stalled.wait() == 0, stalled.log
    check(this, orders)


@pytest.mark.parametrize(
    "at", ["after_unit_commit:2", "after_manifest_copy", "after_manifest_update", "after_success"]
)
@pytest.mark.parametrize("how", ["killed", "stalled"])
def test_a_guest_leads_when_the_lead_is_gone(
    crew: Callable[[Mode], Crew], orders: pa.Table, at: str, how: str
) -> None:
    """Once the lead has published its manifest, going on means to finish that very run."""
    this = crew(RANGE)
    variable = "RIVET_TEST_CRASH_AT" if how == "killed" else "RIVET_TEST_PAUSE_AT"
    guests = [this.guest(), this.guest()]
    lead = this.lead(**{variable: at})
    if how == "killed":
        assert lead.wait() == -signal.SIGKILL, lead.log
    else:
        lead.await_stopped()
    for guest in guests:
        assert guest.wait() == 0, guest.log
    assert sum("going on as the lead" in guest.log for guest in guests) == 1
    assert this.project.query("SELECT count(*) FROM chunk_run") == [(1,)]
    check(this, orders)
    before = Reader(this.project.prefix).picture()
    if how == "stalled":
        lead.resume()
        assert lead.wait() == 2, lead.log
        assert "RIVET_STATE_LEASE_LOST" in lead.log
    assert Reader(this.project.prefix).picture() == before


def test_a_successor_that_dies_before_it_invites_anybody_is_followed_too(
    crew: Callable[[Mode], Crew], orders: pa.Table
) -> None:
    this = crew(RANGE)
    first, second = this.guest(RIVET_TEST_CRASH_AT="after_plan"), this.guest()
    lead = this.lead(RIVET_TEST_PAUSE_AT="before_finalize")
    lead.await_stopped()  # so both guests have joined, or never will
    os.kill(second.pid, signal.SIGSTOP)
    assert first.wait() == -signal.SIGKILL, first.log
    second.resume()
    assert second.wait() == 0, second.log
    check(this, orders)


def test_page_ranges_are_not_gone_on_with_when_the_holder_of_their_snapshot_died(
    crew: Callable[[Mode], Crew], orders: pa.Table
) -> None:
    this = crew(FULL)
    guest = this.guest()
    lead = this.lead(RIVET_TEST_CRASH_AT="after_unit_commit:1")
    assert lead.wait() == -signal.SIGKILL, lead.log
    guest.wait()
    assert not Reader(this.project.prefix).marked
    again = this.lead()
    assert again.wait() == 0, again.log
    Reader(this.project.prefix).check_exact(orders, union=False)


def test_a_guest_with_another_config_is_refused(crew: Callable[[Mode], Crew], orders: pa.Table) -> None:
    this = crew(RANGE)
    lead = this.lead()
    lead.await_text(" units")
    this.project.extra["compression_level"] = 9
    this.project.write()
    guest = this.guest()
    assert guest.wait() == 5, guest.log
    assert "RIVET_PLAN_DRIFT" in guest.log
    assert lead.wait() == 0, lead.log
    check(this, orders)


def test_without_a_run_there_is_nothing_to_join(crew: Callable[[Mode], Crew]) -> None:
    this = crew(RANGE)
    guest = Child(this.project, ("--wait", "0"), {}, verb="work")
    assert guest.wait() == 0, guest.log
    assert "no run to join" in guest.log
