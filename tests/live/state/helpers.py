"""Small makers of what the state holds, and entry points of processes that share it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from typing import Any

from rivet_dagster.engine.errors import RivetError, TransientError, error_object
from rivet_dagster.engine.plan.units import Part, UnitKind, WorkUnit
from rivet_dagster.engine.state.location import StateLocation
from rivet_dagster.engine.state.models import JournalEvent, Lease, RunHeader
from rivet_dagster.engine.state.store import Claim, StateStore

KEY = "chunk-run:orders"
PREFIX = "/data/orders"


def make_units(count: int) -> list[WorkUnit]:
    return [
        WorkUnit(i, UnitKind.RANGE, f"{i:05d}", {"lo": str(i), "hi": str(i + 1)}, str(i), str(i + 1), 10)
        for i in range(count)
    ]


def make_part(claim: Claim, rows: int = 10) -> Part:
    name = f"{claim.run_id}-u{claim.unit.index:05d}-a{claim.attempt}.parquet"
    return Part(name, rows, rows * 7, "xxh3:0123456789abcdef", "bWQ1", {"id": 2**64 - 1})


def header(run_id: str = "r1", export: str = "orders", **changes: Any) -> RunHeader:
    return RunHeader(run_id, export, PREFIX, "chunked", **changes)


def begin(store: StateStore, count: int = 3, *, run_id: str = "r1", **changes: Any) -> Lease:
    """A run of ``count`` units, under a lease of its own."""
    lease = store.acquire(KEY, "tester", wait_s=0)
    store.begin_run(header(run_id, **changes), make_units(count), lease)
    return lease


def claim(store: StateStore, lease: Lease, run_id: str = "r1", **how: Any) -> Claim:
    found = store.claim(run_id, "worker", lease, **how)
    assert found is not None
    return found


def commit(store: StateStore, claimed: Claim, lease: Lease, events: Sequence[JournalEvent] = ()) -> None:
    store.commit_unit(claimed, [make_part(claimed)], lease, seconds=0.5, events=events)


def commit_all(store: StateStore, lease: Lease, run_id: str = "r1") -> int:
    count = 0
    while (claimed := store.claim(run_id, "worker", lease)) is not None:
        commit(store, claimed, lease)
        count += 1
    return count


TRANSIENT = error_object(TransientError("the server went away"), with_message=False)


def spawn(target: Any, *arguments: Any) -> SpawnProcess:
    """Start ``target`` in a fresh interpreter."""
    process = get_context("spawn").Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def open_only(location: StateLocation) -> None:
    StateStore.open(location).close()


def work(location: StateLocation, lease: Lease, run_id: str, worker: str) -> None:
    """Claim and commit until nothing is left."""
    with StateStore.open(location) as store:
        while (claimed := store.claim(run_id, worker, lease)) is not None:
            commit(store, claimed, lease)


def hold(location: StateLocation, pipe: Any, ttl_s: float) -> None:
    """Take the lease, say so, and keep it until killed."""
    with StateStore.open(location) as store:
        lease = store.acquire(KEY, "holder", wait_s=0, ttl_s=ttl_s)
        pipe.send((os.getpid(), lease))
        time.sleep(600)


def stall(location: StateLocation, pipe: Any, ttl_s: float) -> None:
    """Begin a run, claim a unit, stop for as long as the parent wants, then try to commit."""
    with StateStore.open(location) as store:
        lease = store.acquire(KEY, "stalled", wait_s=0, ttl_s=ttl_s)
        store.begin_run(header(), make_units(1), lease)
        claimed = claim(store, lease)
        pipe.send((os.getpid(), lease))
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            commit(store, claimed, lease)
            pipe.send("committed")
        except RivetError as error:
            pipe.send(error.code)
