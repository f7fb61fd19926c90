"""What an extraction costs the others: short reads and updates by key at a fixed rate, with and without us.

The latency of a request counts from the moment when it was due, so a server that stalls is not spared the
requests that waited meanwhile.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType

import psycopg

from benchmarks.load import ensure, narrow
from benchmarks.meter import Cost, Server, measure
from benchmarks.tools import OURS, TOOLS, Job, Tool

REPOSITORY = Path(__file__).resolve().parent.parent
ROWS = 100_000
RATE = 200  # requests a second, on one connection
WINDOW_S = 10.0
TABLE = narrow(1_000_000)
TOOLS_PROBED = (OURS, f"{OURS} range")

_SETUP = (
    "create table if not exists bench_probe (id int primary key, n int not null) with (fillfactor = 50)",
    f"insert into bench_probe select g, 0 from generate_series(1, {ROWS}) g on conflict do nothing",
    "analyze bench_probe",
)


@dataclass
class Probe(AbstractContextManager["Probe"]):
    """Asks as long as the block lasts. latencies: ms of each request."""

    dsn: str
    latencies: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        keys = random.Random(42)
        with psycopg.connect(self.dsn, autocommit=True, application_name="bench-probe") as connection:
            due, number = time.monotonic(), 0
            while not self._stop.is_set():
                key = keys.randint(1, ROWS)
                if number % 2:
                    connection.execute("update bench_probe set n = n + 1 where id = %s", (key,))
                else:
                    connection.execute("select n from bench_probe where id = %s", (key,)).fetchone()
                self.latencies.append((time.monotonic() - due) * 1000)
                number += 1
                due += 1 / RATE
                if (left := due - time.monotonic()) > 0:
                    time.sleep(left)

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def quantile(self, share: float) -> float:
        """ms that ``share`` of the requests took at most."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def run(work: Path, dsn: str, level: int) -> int:
    """Print one line without and one with each of ``TOOLS_PROBED``; 1 when an export failed."""
    ensure(dsn, [TABLE])
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in _SETUP:
            connection.execute(statement)
    server = Server(dsn)
    print(f"{RATE} requests a second, half of them updates, {WINDOW_S:.0f} s each; milliseconds")
    print(f"{'':24} {'p50':>7} {'p99':>7} {'max':>7}   longest statement, transaction, snapshot")
    with Probe(dsn) as probe:
        time.sleep(WINDOW_S)
    print(_line("without us", probe, []))
    failed = False
    for tool in [TOOLS[name] for name in TOOLS_PROBED]:
        with Probe(dsn) as probe:
            costs = _repeat(partial(_once, tool, work, dsn, level, server))
        print(_line(tool.name, probe, costs))
        failed |= any(cost.exit_code for cost in costs)
    server.close()
    return int(failed)


def _repeat(once: Callable[[int], Cost]) -> list[Cost]:
    """Export again and again until the window is full."""
    ends = time.monotonic() + WINDOW_S
    costs: list[Cost] = []
    while time.monotonic() < ends:
        costs.append(once(len(costs)))
    return costs


def _once(tool: Tool, work: Path, dsn: str, level: int, server: Server, number: int) -> Cost:
    folder = work / "runs" / "probe"
    shutil.rmtree(folder, ignore_errors=True)
    out = folder / f"out-{number}"
    out.mkdir(parents=True)
    job = Job(dsn, TABLE, folder, out, level)
    return measure(tool.command(job), server, folder=folder, env={"PYTHONPATH": str(REPOSITORY)})


def _line(name: str, probe: Probe, costs: list[Cost]) -> str:
    figures = " ".join(f"{probe.quantile(share):7.2f}" for share in (0.5, 0.99, 1.0))
    if not costs:
        return f"{name:24} {figures}"
    longest = (
        max(cost.longest_statement_s for cost in costs),
        max(cost.longest_transaction_s for cost in costs),
        max(cost.oldest_snapshot_s for cost in costs),
    )
    return f"{name:24} {figures}   " + ", ".join(f"{seconds:.2f} s" for seconds in longest)
