"""The store fails while a run writes to it, and a reader polls the prefix all the while."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from tests.crash.kit import RANGE, Child, Mode, Project, Reader, stopped
from tests.crash.mirror import AWKWARD, Mirror
from tests.crash.watcher import Watcher, watching
from tests.services.fault_proxy import FaultProxy, fault_proxy
from tests.services.postgres import TestDatabase
from tests.services.seaweed import BUCKET, S3Server

IMPATIENT = {"RIVET_DEST_PATIENCE_S": "1"}
#: In order, so that faults hit where a test means them to.
ALONE = Mode("range", {**RANGE.export, "parallel": 1})


@dataclass(slots=True)
class Rig:
    """A project that reaches its store through the proxy; the reader does not."""

    project: Project
    proxy: FaultProxy
    mirror: Mirror
    watcher: Watcher

    def await_part(self, child: Child) -> None:
        deadline = time.monotonic() + 60
        while not any(e.key.endswith(".parquet") for e in self.mirror.client.list(f"{self.mirror.prefix}/")):
            assert child.code is None, child.log
            assert time.monotonic() < deadline, child.log
            time.sleep(0.02)

    def ends_well(self, orders: pa.Table) -> None:
        """Another run, with the store well again."""
        self.proxy.mode = "pass"
        self.project.succeed()
        Reader(self.project).check_exact(orders, union=False)
        assert list(self.mirror.client.uploads(self.mirror.prefix)) == []


@pytest.fixture
def rig(tmp_path: Path, shop: TestDatabase, s3: S3Server) -> Iterator[Callable[..., Rig]]:
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(fault_proxy(s3.port))
        client = stack.enter_context(contextlib.closing(s3.bucket(BUCKET)))
        other = stack.enter_context(contextlib.closing(s3.bucket(BUCKET)))

        def make(**keys: object) -> Rig:
            prefix = f"{AWKWARD}/{secrets.token_hex(4)}"
            mirror = Mirror(s3, client, prefix, tmp_path / "mirror", {"endpoint": proxy.url, **keys})
            this = Project(tmp_path, shop, ALONE, "orders_before", bucket=mirror)
            this.run_here()
            this.table = "orders"
            this.extra = {"tuning": {"retry_backoff_ms": 100, "max_retries": 2}}
            this.write()
            return Rig(this, proxy, mirror, stack.enter_context(watching(other, prefix)))

        yield make


def test_a_store_that_refuses_connections(rig: Callable[..., Rig], orders: pa.Table) -> None:
    this = rig()
    this.proxy.mode = "refuse"
    refused = this.project.run(**IMPATIENT)
    assert refused.code == 2, refused.log
    assert "RIVET_DEST_UNAVAILABLE" in refused.log
    this.ends_well(orders)
    assert len(this.watcher.finished) >= 1


@pytest.mark.parametrize("mode", ["refuse", "slow_down", "broken", "silent"])
def test_a_store_that_fails_for_a_while(rig: Callable[..., Rig], orders: pa.Table, mode: str) -> None:
    """For less than a run's patience: it waits, and nobody notices."""
    this = rig()
    with stopped(this.project, "after_unit_commit:2", RIVET_DEST_TIMEOUT_S="1") as child:
        this.proxy.mode = mode  # type: ignore[assignment]
        child.resume()
        time.sleep(2.5)
        assert child.code is None, child.log
        this.proxy.mode = "pass"
        assert child.wait() == 0, child.log
    if mode == "slow_down":
        assert 1 <= this.proxy.answered <= 12, "pauses grow"
    Reader(this.project).check_exact(orders, union=False)


@pytest.mark.parametrize("at", ["after_unit_commit:2", "before_finalize", "after_manifest_copy"])
@pytest.mark.parametrize("mode", ["slow_down", "broken", "full"])
def test_a_store_that_stays_busy_or_full(
    rig: Callable[..., Rig], orders: pa.Table, mode: str, at: str
) -> None:
    this = rig()
    with stopped(this.project, at, **IMPATIENT) as child:
        this.proxy.mode = mode  # type: ignore[assignment]
        child.resume()
        code, said = (1, "RIVET_DEST_FULL") if mode == "full" else (2, "RIVET_DEST_UNAVAILABLE")
        assert child.wait() == code, child.log
        assert said in child.log
    assert not Reader(this.project).marked
    this.ends_well(orders)


@pytest.mark.parametrize("budget", [64, 0], ids=["one request", "pieces"])
def test_connections_that_are_cut_after_some_bytes(
    rig: Callable[..., Rig], orders: pa.Table, budget: int
) -> None:
    """In the middle of parts, and of their answers."""
    this = rig(oneshot_budget_mb=budget)
    this.proxy.cut_after, this.proxy.cuts = 20_000, 6
    done = this.project.run()
    assert done.code == 0, done.log
    assert this.proxy.cuts == 0
    Reader(this.project).check_exact(orders, union=False)
    assert list(this.mirror.client.uploads(this.mirror.prefix)) == []


def test_a_run_killed_in_an_upload_leaves_it_to_the_next(rig: Callable[..., Rig], orders: pa.Table) -> None:
    this = rig(oneshot_budget_mb=0)
    with stopped(this.project, "after_part_staged:3") as child:
        key = f"{this.mirror.prefix}/"
        before = sum(1 for _ in this.mirror.client.list(key))
        this.proxy.cut_after, this.proxy.cuts = 20_000, 1 << 30
        child.resume()
        deadline = time.monotonic() + 30
        while not list(this.mirror.client.uploads(key)):
            assert time.monotonic() < deadline, child.log
            time.sleep(0.02)
        child.kill()
        assert sum(1 for _ in this.mirror.client.list(key)) == before
    assert len(list(this.mirror.client.uploads(key))) == 1
    this.proxy.cuts = 0
    this.ends_well(orders)
