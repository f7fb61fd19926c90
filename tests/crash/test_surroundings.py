"""The run lives, its surroundings fail: the source's server dies, the destination is full or read-only."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from rivet_dagster.demo.install import ServerNotInstalledError
from tests.conftest import without
from tests.crash.conftest import Volume
from tests.crash.kit import (
    FULL,
    INCREMENTAL,
    RANGE,
    Child,
    Mode,
    Project,
    Reader,
    create_table,
    stopped,
    table_rows,
)
from tests.services.postgres import database, postgres_server

MODES = [FULL, RANGE, INCREMENTAL]


def await_part(project: Project, child: Child) -> None:
    deadline = time.monotonic() + 60
    while not Reader(project).files:
        assert child.code is None, child.log
        assert time.monotonic() < deadline, child.log
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("version", "mode"), [(17, FULL), (15, FULL), (17, RANGE)], ids=["17", "15", "range"]
)
def test_the_server_dies_while_it_is_read(tmp_path: Path, version: int, mode: Mode) -> None:
    """A range is read again. A snapshot died with the server, so the run asks to be planned anew."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(postgres_server(version))
        except ServerNotInstalledError:
            without(f"postgresql-{version}")
        db = stack.enter_context(database(server))
        create_table(db, "orders", pad=40)  # more than the buffers between server and client hold
        this = Project(tmp_path, db, Mode(mode.name, {**mode.export, "parallel": 1}))
        this.extra = {"tuning": {"throttle_ms": 100, "batch_size": 250}}
        this.write()
        reader = Reader(this)

        child = this.start()
        await_part(this, child)
        server.restart("immediate")
        assert child.wait() == (2 if mode is FULL else 0), child.log
        assert "RIVET_SOURCE_UNAVAILABLE, next attempt in" in child.log
        assert ("RIVET_SOURCE_SNAPSHOT_LOST" in child.log) == (mode is FULL), child.log
        rows = table_rows(db, "orders")
        reader.check_instant(rows)

        this.extra = {}
        this.write()
        this.succeed()
        reader.check_exact(rows, union=False)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_the_destination_is_full(
    project: Callable[..., Project], volume: Volume, orders: pa.Table, mode: Mode
) -> None:
    this = project(mode)
    reader = Reader(this)
    volume.remount("size=256k")
    full = this.run()
    assert full.code == 1, full.log
    assert "RIVET_DEST_FULL" in full.log
    reader.check_instant()
    assert not [p for p in this.prefix.iterdir() if p.name.startswith(".")], "staged files keep it full"
    volume.remount("size=8m")
    this.succeed()
    reader.check_exact(orders, union=mode.incremental)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_the_destination_is_full_when_the_manifest_is_due(
    project: Callable[..., Project], volume: Volume, orders: pa.Table, mode: Mode
) -> None:
    this = project(mode)
    reader = Reader(this)
    with stopped(this, "before_finalize") as child:
        filler = this.prefix / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        child.resume()
        assert child.wait() == 1, child.log
        assert "RIVET_DEST_FULL" in child.log
    reader.check_instant()
    assert not reader.marked
    filler.unlink()
    this.succeed()
    reader.check_exact(orders, union=mode.incremental)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_the_destination_is_read_only(
    project: Callable[..., Project],
    volume: Volume,
    orders: pa.Table,
    orders_before: pa.Table,
    mode: Mode,
) -> None:
    this = project(mode, "orders" if mode.incremental else "orders_before")
    reader = Reader(this)
    if not mode.incremental:
        this.run_here()
        this.table = "orders"
        this.write()
    before = reader.picture()
    volume.remount("ro")
    refused = this.run()
    assert refused.code == 1, refused.log
    assert "RIVET_DEST_NOT_WRITABLE" in refused.log
    assert reader.picture() == before
    reader.check_instant(orders_before)
    volume.remount("rw")
    this.succeed()
    reader.check_exact(orders, union=mode.incremental)
