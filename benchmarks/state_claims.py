"""Claims and commits per second of the state, against the number of workers and of units.

``python -m benchmarks.state_claims`` starts a private PostgreSQL with fsync as production has it, and puts a
SQLite file into a temporary folder. Each worker is a process; a unit is one claim and one commit, and
nothing is read or written between them. Prints a line a case: units per second, and what a unit takes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import secrets
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from rivet_dagster.engine.plan.units import Part, UnitKind, WorkUnit
from rivet_dagster.engine.state.location import StateLocation
from rivet_dagster.engine.state.models import Lease, RunHeader
from rivet_dagster.engine.state.store import StateStore


def _units(count: int) -> list[WorkUnit]:
    return [WorkUnit(i, UnitKind.RANGE, f"{i // 20:05d}", {"lo": i, "hi": i + 1}) for i in range(count)]


def _work(location: StateLocation, lease: Lease, run_id: str, name: str, results: Any, start: Any) -> None:
    times: list[float] = []
    with StateStore.open(location) as store:
        store.holder(lease.key)  # connected before the clock starts
        start.wait()
        while True:
            began = time.perf_counter()
            claim = store.claim(run_id, name, lease)
            if claim is None:
                break
            file = f"{run_id}-{claim.unit.index}-{claim.attempt}.parquet"
            part = Part(file, 1000, 7000, "xxh3:0123456789abcdef", "bWQ1", {"id": 1})
            store.commit_unit(claim, [part], lease, seconds=0.1)
            times.append(time.perf_counter() - began)
    results.put(times)


def case(location: StateLocation, workers: int, units: int) -> tuple[float, list[float]]:
    """(units per second, seconds of each unit)."""
    context = multiprocessing.get_context("spawn")
    with StateStore.open(location) as store:
        name = f"bench{secrets.token_hex(4)}"
        lease = store.acquire(f"chunk-run:{name}", "bench", wait_s=0, ttl_s=600)
        store.begin_run(RunHeader(name, name, "/tmp/x", "chunked"), _units(units), lease)
        results, start = context.Queue(), context.Barrier(workers + 1)
        found = [
            context.Process(target=_work, args=(location, lease, name, f"w{i}", results, start))
            for i in range(workers)
        ]
        for process in found:
            process.start()
        start.wait()
        began = time.perf_counter()
        times = [t for _ in found for t in results.get()]
        took = time.perf_counter() - began
        for process in found:
            process.join()
    return units / took, times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--units", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    asked = parser.parse_args()
    from tests.services.postgres import database, postgres_server

    durable = ("fsync=on", "full_page_writes=on", "synchronous_commit=on")
    with (
        tempfile.TemporaryDirectory() as folder,
        postgres_server(17, settings=durable) as server,
        database(server) as db,
    ):
        places = {
            "sqlite": StateLocation.parse(None, Path(folder)),
            "postgresql": StateLocation.parse(db.url, Path(folder)),
        }
        print("backend      workers  units  units/s   median ms   95 % ms")
        for backend, location in places.items():
            for units in asked.units:
                for workers in asked.workers:
                    rate, times = case(location, workers, units)
                    ms = sorted(1000 * t for t in times)
                    high = ms[int(0.95 * (len(ms) - 1))]
                    print(
                        f"{backend:<12} {workers:>7} {units:>6} {rate:>8.0f} {statistics.median(ms):>11.2f}"
                        f" {high:>9.2f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
