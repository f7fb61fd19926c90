"""Tables that all crash tests read, and projects over them."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.crash.kit import Mode, Project, create_table, table_rows
from tests.crash.mirror import AWKWARD, Mirror
from tests.services.postgres import TestDatabase, TestServer, database
from tests.services.seaweed import BUCKET, S3Server


@pytest.fixture(scope="session")
def shop(pg: TestServer) -> Iterator[TestDatabase]:
    """``orders``, and ``orders_before``: other values and fewer rows."""
    with database(pg) as db:
        create_table(db, "orders")
        create_table(db, "orders_before", seed=1, rows=4000)
        yield db


@pytest.fixture(scope="session")
def orders(shop: TestDatabase) -> pa.Table:
    return table_rows(shop, "orders")


@pytest.fixture(scope="session")
def orders_before(shop: TestDatabase) -> pa.Table:
    return table_rows(shop, "orders_before")


@pytest.fixture
def where(request: pytest.FixtureRequest) -> str:
    """The kind of destination; tests that run on several have it as a parameter."""
    return str(getattr(request, "param", "local"))


@pytest.fixture
def mirror(where: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mirror | None]:
    """A prefix of an S3 bucket; None: the project writes to a folder."""
    if where == "local":
        yield None
        return
    server: S3Server = request.getfixturevalue("s3")
    with contextlib.closing(server.bucket(BUCKET)) as client:
        yield Mirror(server, client, f"{AWKWARD}/{secrets.token_hex(4)}", tmp_path / "mirror")


@pytest.fixture
def project(tmp_path: Path, shop: TestDatabase, mirror: Mirror | None) -> Callable[..., Project]:
    """A project of a mode in the test's own folder."""

    def make(mode: Mode, table: str = "orders") -> Project:
        return Project(tmp_path, shop, mode, table, bucket=mirror)

    return make


class Volume:
    """A file system of its own at a project's prefix."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", self.path], check=True, timeout=20)

    @property
    def used(self) -> int:
        stat = os.statvfs(self.path)
        return (stat.f_blocks - stat.f_bfree) * stat.f_frsize


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    """8 MB at the folder that a project of the test writes to."""
    path = tmp_path / "out"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "none", path], capture_output=True, check=False, timeout=20
    )
    if mounted.returncode != 0:
        pytest.skip("NOT TESTED: a full and a read-only destination, as mounting needs root")
    try:
        yield Volume(path)
    finally:
        subprocess.run(["umount", "-l", path], check=True, timeout=20)
