"""Four hosts share an export: one is killed, one loses the state, one hangs past its time and wakes again.

RIVET_HOSTS_SEED replays a printed seed; RIVET_HOSTS_ROUNDS says how often the random ordeal is run.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from rivet_dagster.demo.server import free_port
from tests.crash.kit import ON_STORES, RANGE, Child, Mode, Project, Reader
from tests.crash.mirror import Mirror
from tests.services.hosts import Host, hosts
from tests.services.postgres import TestDatabase, TestServer, database

TTL_S: Final = 2.0
COUNT: Final = 4
_SEED: Final = "RIVET_HOSTS_SEED"
_ROUNDS: Final = "RIVET_HOSTS_ROUNDS"

#: About half a second a unit, 21 units.
SHARED: Final = Mode(
    "shared",
    {
        **RANGE.export,
        "chunk_size": 5,
        "parallel": 1,
        "tuning": {"batch_size": 30, "throttle_ms": 70},
        "dagster": {"workers": COUNT},
    },
)


#: Some 30 seconds a unit.
SLOW: Final = Mode("slow", {**SHARED.export, "tuning": {"batch_size": 30, "throttle_ms": 5000}})

#: In which a process that has lost the state for good is gone.
BOUND_S: Final = 6 * TTL_S


@dataclass
class Ordeal:
    """hosts and their processes, the first of which leads. state_port: of the state, on each host."""

    project: Project
    state_port: int
    hosts: list[Host]
    children: list[Child]

    def start(self, number: int, *, lead: bool = False, **environment: str) -> Child:
        """The lead on host 0, guests on the others unless they are to ``lead``."""
        leads = lead or number == 0
        verb, options = ("run", ()) if leads else ("work", ("--wait", "30"))
        settings = {
            **self.hosts[number].environment,
            "RIVET_LEASE_TTL_S": str(TTL_S),
            "RIVET_STATE_URL": f"{self.project.state_url}".replace(
                f":{self.project.db.server.port}/", f":{self.state_port}/"
            ),
            **environment,
        }
        child = Child(self.project, options, settings, verb=verb)
        self.children.append(child)
        return child

    def part(self, number: int, how: str) -> None:
        """Host ``number`` loses the state: by a reset (cut), or without a word (drop)."""
        getattr(self.hosts[number], how)(self.state_port)

    def check(self, orders: pa.Table) -> None:
        """Every unit once in the state, every row once for a reader."""
        Reader(self.project.prefix).check_exact(orders, union=False)
        ask = self.project.query
        assert ask("SELECT count(*) FROM chunk_run WHERE status != 'completed'") == [(0,)]
        assert ask("SELECT count(*) FROM chunk_run") == [(1,)]
        assert ask("SELECT count(*) FROM chunk_task WHERE status != 'completed'") == [(0,)]
        twice = "SELECT chunk_index FROM file_log GROUP BY chunk_index HAVING count(DISTINCT attempt) > 1"
        assert ask(twice) == []


@pytest.fixture
def ordeal(
    pg: TestServer, shop: TestDatabase, tmp_path: Path, mirror: Mirror | None
) -> Callable[[str], contextlib.AbstractContextManager[Ordeal]]:
    @contextlib.contextmanager
    def make(name: str) -> Iterator[Ordeal]:
        folder = tmp_path / name
        folder.mkdir()
        port = free_port()
        routes = {shop.server.port: shop.server.port, port: pg.port}
        bucket = mirror
        if mirror is not None:
            routes[mirror.server.port] = mirror.server.port
            bucket = Mirror(mirror.server, mirror.client, f"{mirror.prefix}/{name}", folder / "mirror")
        with database(pg) as state, contextlib.ExitStack() as stack:
            try:
                made = stack.enter_context(hosts(COUNT, routes))
            except PermissionError:
                pytest.skip("NOT TESTED: network namespaces need root")
            project = Project(folder, shop, SHARED, bucket=bucket, state_url=state.url)
            this = Ordeal(project, port, made, [])
            try:
                yield this
            finally:
                for child in this.children:
                    child.kill()

    return make


@pytest.mark.parametrize(
    ("where", "how"), [("local", "cut"), ("local", "drop"), ("s3", "drop")], indirect=["where"]
)
def test_one_is_killed_one_is_cut_off_and_one_hangs_past_its_time(
    ordeal: Callable[[str], contextlib.AbstractContextManager[Ordeal]], orders: pa.Table, how: str
) -> None:
    with ordeal("once") as this:
        killed = this.start(1, RIVET_TEST_CRASH_AT="after_file_write:2")
        cut = this.start(2)
        stalled = this.start(3, RIVET_TEST_PAUSE_AT="after_file_write:1")
        lead = this.start(0)
        stalled.await_stopped()
        this.part(2, how)
        assert lead.wait() == 0, lead.log
        assert killed.wait() == -signal.SIGKILL, killed.log
        assert cut.wait() == 2, cut.log
        this.check(orders)
        before = Reader(this.project.prefix).picture()
        stalled.resume()
        assert stalled.wait() == 0, stalled.log
        assert "has passed from" in stalled.log
        assert Reader(this.project.prefix).picture() == before


@ON_STORES
def test_whoever_it_hits_and_whenever(
    ordeal: Callable[[str], contextlib.AbstractContextManager[Ordeal]], orders: pa.Table
) -> None:
    """Three of four at random, the lead among them as likely as any; the fourth ends the export."""
    first = int(os.environ.get(_SEED) or secrets.randbelow(1 << 32))
    rounds = int(os.environ.get(_ROUNDS) or 1)
    print(f"{_SEED}={first}")
    for number in range(rounds):
        chance = random.Random(first + number)
        with ordeal(f"round{number}") as this:
            for host in (1, 2, 3, 0):
                this.start(host)
            this.children[3].await_text(" units")
            time.sleep(1.5)  # the guests join
            killed, cut, stalled = chance.sample(range(COUNT), 3)
            how = chance.choice(("cut", "drop"))
            acts = [
                (chance.uniform(0, 2), partial(_of(this, killed).kill)),
                (chance.uniform(0, 2), partial(this.part, cut, how)),
                (chance.uniform(0, 2), partial(os.kill, _of(this, stalled).pid, signal.SIGSTOP)),
            ]
            asleep = chance.uniform(1, 3) * TTL_S
            told = (
                f"seed {first + number}: killed {killed}, {how} {cut}, stalled {stalled} for {asleep:.1f} s"
            )
            print(told)
            began = time.monotonic()
            for at, act in sorted(acts, key=lambda entry: entry[0]):
                time.sleep(max(0.0, began + at - time.monotonic()))
                act()
            time.sleep(asleep)
            with contextlib.suppress(ProcessLookupError):
                _of(this, stalled).resume()
            (healthy,) = set(range(COUNT)) - {killed, cut, stalled}
            assert _of(this, healthy).wait() == 0, f"{told}\n{_of(this, healthy).log}"
            for host in (cut, stalled):
                assert _of(this, host).wait() in {0, 2}, f"{told}\n{_of(this, host).log}"
            this.check(orders)


@pytest.mark.parametrize("at", ["after_source_read:1", "after_part_staged:1", "after_file_write:1"])
def test_a_guest_whose_packets_vanish_stops_and_others_do_its_units(
    ordeal: Callable[[str], contextlib.AbstractContextManager[Ordeal]], orders: pa.Table, at: str
) -> None:
    with ordeal("silent") as this:
        parted = this.start(1, RIVET_TEST_PAUSE_AT=at)
        lead = this.start(0)
        parted.await_stopped()
        this.part(1, "drop")
        began = time.monotonic()
        parted.resume()
        assert parted.wait() == 2, parted.log
        assert time.monotonic() - began < BOUND_S
        assert lead.wait() == 0, lead.log
        this.check(orders)


@pytest.mark.parametrize("at", ["after_plan", "after_file_write:2", "before_finalize", "after_manifest_copy"])
def test_a_lead_whose_packets_vanish_stops_and_a_guest_ends_the_run(
    ordeal: Callable[[str], contextlib.AbstractContextManager[Ordeal]], orders: pa.Table, at: str
) -> None:
    with ordeal("silent") as this:
        guest = this.start(1)
        lead = this.start(0, RIVET_TEST_PAUSE_AT=at)
        lead.await_stopped()
        this.part(0, "drop")
        began = time.monotonic()
        lead.resume()
        assert lead.wait() == 2, lead.log
        assert time.monotonic() - began < BOUND_S
        if at == "after_plan":  # nobody was invited: the next attempt is the one that goes on
            lead = this.start(2, lead=True)
            assert lead.wait() == 0, lead.log
        assert guest.wait() == 0, guest.log
        this.check(orders)


def test_a_read_that_lasts_ends_with_the_lease(
    ordeal: Callable[[str], contextlib.AbstractContextManager[Ordeal]], orders: pa.Table
) -> None:
    """Half a minute a unit: nobody waits for its end to find out that it will not count."""
    with ordeal("silent") as this:
        this.project.mode = SLOW
        this.project.write()
        lead = this.start(0)
        lead.await_text(" units")
        time.sleep(1.5)
        this.part(0, "drop")
        began = time.monotonic()
        assert lead.wait() == 2, lead.log
        assert time.monotonic() - began < BOUND_S
        this.project.mode = SHARED
        this.project.write()
        again = this.start(1, lead=True)
        assert again.wait() == 0, again.log
        Reader(this.project).check_exact(orders, union=False)


def test_packets_that_come_through_again_in_time_cost_a_pause(
    ordeal: Callable[[str], contextlib.AbstractContextManager[Ordeal]], orders: pa.Table
) -> None:
    with ordeal("silent") as this:
        lead = this.start(0, RIVET_LEASE_TTL_S="20")
        guest = this.start(1, RIVET_LEASE_TTL_S="20")
        lead.await_text(" units")
        for host in (0, 1):
            time.sleep(1)
            this.part(host, "drop")
            time.sleep(2.5)
            this.hosts[host].heal(this.state_port)
        assert lead.wait() == 0, lead.log
        assert guest.wait() == 0, guest.log
        this.check(orders)


def test_a_source_whose_packets_vanish_is_left_for_another_host(
    ordeal: Callable[[str], contextlib.AbstractContextManager[Ordeal]], orders: pa.Table
) -> None:
    with ordeal("silent") as this:
        this.project.source_options = "keepalives_idle=1&keepalives_interval=1&tcp_user_timeout=2000"
        this.project.write()
        parted = this.start(1, RIVET_TEST_PAUSE_AT="after_source_read:1")
        lead = this.start(0)
        parted.await_stopped()
        this.hosts[1].drop(this.project.db.server.port)
        parted.resume()
        assert lead.wait() == 0, lead.log
        assert parted.wait() in {0, 2}, parted.log
        this.check(orders)


def _of(this: Ordeal, host: int) -> Child:
    return this.children[(3, 0, 1, 2)[host]]
