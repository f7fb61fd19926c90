"""What one command costs: wall and CPU of its whole process tree, peak memory, and what the server felt."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from benchmarks.server import postmaster

#: The meter runs on the same cores: what it asks often is cheap, what costs more it asks seldom.
SAMPLE_S = 0.05
ACTIVITY_S = 0.2
_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024
SAMPLER_NAME = "bench-sampler"
_TICK = os.sysconf("SC_CLK_TCK")

#: what other sessions do now: longest statement, longest transaction, age of the oldest snapshot
ACTIVITY = """
select coalesce(max(statement) filter (where state = 'active'), 0)::float8,
  coalesce(max(transaction), 0)::float8,
  coalesce(max(transaction) filter (where backend_xmin is not null), 0)::float8,
  count(*)
from pg_stat_activity, lateral (select
  extract(epoch from clock_timestamp() - query_start) as statement,
  extract(epoch from clock_timestamp() - xact_start) as transaction) age
where backend_type = 'client backend' and datname = current_database() and pid <> pg_backend_pid()
  and backend_start >= %s
"""


@dataclass(frozen=True)
class Cost:
    """One run of one command. Seconds and MiB; ``server_cpu_s`` is None for a server on another machine."""

    wall_s: float
    client_cpu_s: float
    peak_mb: float
    processes: int
    server_cpu_s: float | None
    longest_statement_s: float
    longest_transaction_s: float
    oldest_snapshot_s: float
    connections: int
    load_before: float
    exit_code: int
    output: str


def tree(root: int) -> list[int]:
    """``root`` and everything below it that lives now."""
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        try:
            tasks = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for task in tasks:
            with contextlib.suppress(OSError):
                children = Path(f"/proc/{pid}/task/{task}/children").read_text()
                waiting.extend(int(child) for child in children.split())
    return found


def rss_kib(pid: int) -> int:
    """Resident set size, read from a counter."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_KIB
    except OSError:
        return 0


def pss_kib(pid: int) -> int:
    """Proportional set size: shared pages are shared out, so the sum over a tree counts each page once.

    The kernel walks all pages for it, and the process cannot map memory meanwhile.
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            for line in lines:
                if line.startswith("Pss:"):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0


def cpu_ticks(pid: int, *, with_children: bool) -> int:
    """User and system time of a process, with that of its ended children when asked."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    return sum(int(field) for field in fields[11 : 15 if with_children else 13])


class Server:
    """A connection that watches the server while a command runs; its own CPU is left out."""

    def __init__(self, dsn: str) -> None:
        self._conn = psycopg.connect(dsn, autocommit=True, application_name=SAMPLER_NAME)
        self._postmaster = postmaster(self._conn)
        self._own = self._conn.info.backend_pid
        self._since: object = None

    def close(self) -> None:
        self._conn.close()

    def begin(self) -> None:
        """Only sessions that start from now on count."""
        row = self._conn.execute("select clock_timestamp()").fetchone()
        self._since = row[0] if row else None

    def cpu_s(self) -> float | None:
        """CPU of every server process so far, ended backends included."""
        if self._postmaster is None:
            return None
        total = cpu_ticks(self._postmaster, with_children=True)
        for pid in tree(self._postmaster)[1:]:
            if pid != self._own:
                total += cpu_ticks(pid, with_children=False)
        return total / _TICK

    def activity(self) -> tuple[float, float, float, int]:
        row = self._conn.execute(ACTIVITY, (self._since,)).fetchone()
        assert row is not None
        statement, transaction, snapshot, count = row
        return float(str(statement)), float(str(transaction)), float(str(snapshot)), int(str(count))


class Sampler(threading.Thread):
    """Peaks of memory, every 50 ms, and of the server's activity, every 200 ms, until ``stop``."""

    def __init__(self, pid: int, server: Server) -> None:
        super().__init__(daemon=True)
        self._pid, self._server, self._end = pid, server, threading.Event()
        self.peak_kib = self.processes = self.connections = 0
        self.statement = self.transaction = self.snapshot = 0.0

    def run(self) -> None:
        highest, asked = 0, 0.0
        while not self._end.is_set():
            began = time.monotonic()
            pids = tree(self._pid)
            self.processes = max(self.processes, len(pids))
            if (resident := sum(rss_kib(pid) for pid in pids)) > highest:
                highest = resident
                self.peak_kib = max(self.peak_kib, sum(pss_kib(pid) for pid in pids))
            if began - asked >= ACTIVITY_S:
                asked = began
                self._look_at_server()
            self._end.wait(max(0.0, SAMPLE_S - (time.monotonic() - began)))

    def _look_at_server(self) -> None:
        statement, transaction, snapshot, connections = self._server.activity()
        self.statement = max(self.statement, statement)
        self.transaction = max(self.transaction, transaction)
        self.snapshot = max(self.snapshot, snapshot)
        self.connections = max(self.connections, connections)

    def stop(self) -> None:
        self._end.set()
        self.join()


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """The caller's, but bytecode is kept as in any installed package and no proxy or PG variable leaks in."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PG") and k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **(extra or {})}


def measure(
    command: Sequence[str],
    server: Server,
    *,
    folder: Path,
    env: dict[str, str] | None = None,
    watched: bool = True,
) -> Cost:
    """Run ``command`` in ``folder`` to its end and say what it cost. Never raises for its exit code.

    watched: look at memory and sessions too. That takes a twentieth of two cores, so a run that is timed
    against a floor is not watched; its figures for these are 0.
    """
    server.begin()
    before = server.cpu_s()
    log = folder / "command.log"
    load = os.getloadavg()[0]
    with log.open("wb") as sink:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=environment(env), stdout=sink, stderr=subprocess.STDOUT
        )
        sampler = Sampler(process.pid, server)
        if watched:
            sampler.start()
        # wait4 counts children that the command waited for; its threads are its own
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if watched:
        sampler.stop()
    time.sleep(0.2)  # a backend's CPU is in the postmaster's sum only once it was reaped
    after = server.cpu_s()
    return Cost(
        wall_s=wall,
        client_cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mb=sampler.peak_kib / 1024,
        processes=sampler.processes,
        server_cpu_s=None if before is None or after is None else after - before,
        longest_statement_s=sampler.statement,
        longest_transaction_s=sampler.transaction,
        oldest_snapshot_s=sampler.snapshot,
        connections=sampler.connections,
        load_before=load,
        exit_code=process.returncode,
        output=log.read_text(errors="replace")[-4000:],
    )
