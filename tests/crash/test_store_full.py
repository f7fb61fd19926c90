"""A store that has no room left: a server of a few megabytes, which says no more than that it failed."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from rivet_dagster.config.destination import DestinationConfig
from rivet_dagster.engine.destinations.bucket import Upload
from rivet_dagster.engine.destinations.gcs import GcsBucket
from rivet_dagster.engine.destinations.s3 import S3Bucket
from tests.crash.conftest import Volume
from tests.crash.kit import RANGE, Child, Mode, Project, Reader, stopped, table_rows
from tests.crash.mirror import AWKWARD, Mirror
from tests.crash.watcher import watching
from tests.services.fake_gcs import fake_gcs
from tests.services.postgres import TestDatabase
from tests.services.seaweed import BUCKET, SMALL, S3Server, seaweed

IMPATIENT = {"RIVET_DEST_PATIENCE_S": "1"}
ALONE = Mode("range", {**RANGE.export, "parallel": 1})


@pytest.fixture(scope="module")
def small() -> Iterator[S3Server]:
    with seaweed(options=SMALL) as server, server.named():
        yield server


@dataclass(slots=True)
class Rig:
    project: Project
    server: S3Server
    client: S3Bucket
    mirror: Mirror

    def uploads(self) -> list[Upload]:
        return list(self.client.uploads(f"{self.mirror.prefix}/"))

    def check_refused(self, child: Child) -> None:
        """As by a full disk: said once, not tried again; nothing lies about, and nothing is promised."""
        assert child.code == 1, child.log
        assert "RIVET_DEST_FULL" in child.log
        assert "next attempt" not in child.log
        assert self.uploads() == []
        assert not Reader(self.project).marked
        assert not list(self.client.list(f"{self.mirror.prefix}/.")), "the probe is left"

    def ends_well(self) -> None:
        """Another run, once there is room."""
        self.server.free(self.client)
        self.project.succeed()
        this = self.project
        Reader(this).check_exact(table_rows(this.db, this.table), union=False)
        assert self.uploads() == []


@pytest.fixture
def rig(tmp_path: Path, shop: TestDatabase, small: S3Server) -> Iterator[Callable[..., Rig]]:
    """A project whose prefix holds what an earlier run wrote; a reader polls it all the while."""
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(contextlib.closing(small.bucket(BUCKET)))
        other = stack.enter_context(contextlib.closing(small.bucket(BUCKET)))

        def make(table: str, **keys: object) -> Rig:
            prefix = f"{AWKWARD}/{secrets.token_hex(4)}"
            stack.callback(_clear, small, client, prefix)
            mirror = Mirror(small, client, prefix, tmp_path / "mirror", keys)
            this = Project(tmp_path, shop, ALONE, "orders_before", bucket=mirror)
            this.run_here()
            this.table = table
            this.extra = {"tuning": {"retry_backoff_ms": 100, "max_retries": 2}}
            this.write()
            stack.enter_context(watching(other, prefix))
            return Rig(this, small, client, mirror)

        yield make


def _clear(server: S3Server, client: S3Bucket, prefix: str) -> None:
    for entry in client.list(f"{prefix}/"):
        client.delete(entry.key)
    server.free(client)


@pytest.mark.parametrize("at", ["after_unit_commit:2", "before_finalize", "after_manifest_copy"])
@pytest.mark.parametrize("budget", [64, 0], ids=["one request", "pieces"])
def test_no_room_left_in_the_middle_of_a_run(rig: Callable[..., Rig], at: str, budget: int) -> None:
    this = rig("orders", oneshot_budget_mb=budget)
    with stopped(this.project, at, **IMPATIENT) as child:
        this.server.fill(this.client)
        child.resume()
        child.wait()
        this.check_refused(child)
    this.ends_well()


def test_no_room_left_in_the_middle_of_an_upload(rig: Callable[..., Rig]) -> None:
    """Some pieces of its one part have arrived when it fills up.

    The run stands still meanwhile: this store tells some seconds late that it is full."""
    this = rig("ample")
    _create_ample(this.project.db)
    tuning = this.project.extra["tuning"]
    this.project.extra["max_file_size"] = "1GB"
    this.project.extra["tuning"] = {**tuning, "throttle_ms": 400, "batch_size": 100}
    this.project.write()
    child = this.project.start(**IMPATIENT)
    try:
        while not any(_pieces(this.client, upload) for upload in this.uploads()):
            assert child.code is None, child.log
            time.sleep(0.02)
        os.kill(child.pid, signal.SIGSTOP)
        this.server.fill(this.client)
        child.resume()
        child.wait()
        this.check_refused(child)
    finally:
        child.kill()
    this.project.extra["tuning"] = tuning
    this.project.write()
    this.ends_well()


def test_no_room_left_below_cloud_storage(
    tmp_path: Path, shop: TestDatabase, volume: Volume, orders: pa.Table
) -> None:
    """A server whose disk is full, but for what a small file needs."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(fake_gcs(volume.path / "objects"))
        there = DestinationConfig(**server.destination(BUCKET))
        client, other = (stack.enter_context(contextlib.closing(GcsBucket(there))) for _ in range(2))
        mirror = Mirror(server, client, "p", tmp_path / "mirror")
        this = Project(tmp_path, shop, ALONE, "orders_before", bucket=mirror)
        this.run_here()
        this.table = "orders"
        this.write()
        stack.enter_context(watching(other, "p"))
        with stopped(this, "after_unit_commit:2", **IMPATIENT) as child:
            volume.remount(f"size={volume.used // 1024 + 16}k")
            child.resume()
            assert child.wait() == 1, child.log
        assert "RIVET_DEST_FULL" in child.log
        assert "next attempt" not in child.log
        assert not Reader(this).marked
        volume.remount("size=64m")
        this.succeed()
        Reader(this).check_exact(orders, union=False)


def _create_ample(db: TestDatabase) -> None:
    """A hundred and forty megabytes that do not compress, in rows of 64 KB."""
    db.execute(
        "CREATE TABLE ample (LIKE orders INCLUDING ALL)",
        "INSERT INTO ample SELECT n, 0, 0.5, '2024-01-01', true,"
        " (SELECT string_agg(encode(sha512(convert_to(n || '-' || i, 'utf8')), 'base64'), '')"
        " FROM generate_series(1, 700) i) FROM generate_series(1, 3000) n",
        "ANALYZE ample",
    )


def _pieces(client: S3Bucket, upload: Upload) -> int:
    with contextlib.suppress(Exception):
        found = client._call("list_parts", Key=upload.key, UploadId=upload.id)
        return len(found.get("Parts", ()))
    return 0
