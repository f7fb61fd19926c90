"""A hundred exports of mixed sizes from one server: ``export_all`` against the best that the machine
allows, and against ``rivet apply --pool``.

The best is no schedule but a bound: the CPU that the exports take when they run one after the other in one
process that has everything imported, client and server together, divided by the number of cores; or the
longest of them, where that is more. No packing can end sooner. Every tool runs twice on the set. The second
run counts, because both have a history then, and it is left alone; memory is looked at in the first.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.compare import files
from benchmarks.figures import put_between
from benchmarks.load import Table, ensure
from benchmarks.many_tables import mixed_tables
from benchmarks.meter import Cost, Server, measure
from benchmarks.overhead import REPOSITORY
from rivet_dagster.config import load_config
from rivet_dagster.engine.run.engine import Engine

DOCUMENT = REPOSITORY / "docs" / "performance.md"
MARKERS = ("<!-- many: begin -->", "<!-- many: end -->")
MANY, MANY_ROWS = 100, 20_000_000
IDEAL_TARGET = 1.3
RIVET_TARGET = 1.0
#: slots of ``rivet apply --pool`` that are tried; the fastest counts
POOLS = (2, 4)

SOURCE = """\
source:
  type: postgres
  url: "{dsn}"
  tls: {{ mode: disable }}
{tuning}
exports:
"""
EXPORT = """\
  - name: {name}
    table: public.{name}
    mode: full
    format: parquet
    compression: zstd
    compression_level: {level}
    parallel_safe: true
    destination: {{ type: local, path: "{out}/{name}" }}
"""


@dataclass(frozen=True)
class Ideal:
    """Seconds. client and server: CPU of all exports; longest: wall of the longest one alone."""

    client: float
    server: float
    longest: float

    @property
    def seconds(self) -> float:
        return max(self.longest, (self.client + self.server) / (os.cpu_count() or 1))


def many_exports(work: Path, dsn: str, level: int, count: int, rows: int, *, document: bool) -> int:
    """Prints the figures; returns 1 when a target is missed or a tool leaves other rows."""
    tables = mixed_tables(count, rows)
    ensure(dsn, tables)
    server = Server(dsn)
    ideal = _ideal(_folder(work, "ideal", dsn, tables, level, ours=True), tables, server)
    folder = _folder(work, "ours", dsn, tables, level, ours=True)
    home = folder / "home"
    home.mkdir()
    shutil.copy(REPOSITORY / "dagster_home" / "dagster.yaml", home)
    env = _env(folder, home)
    ours = _twice(folder, _dagster(), server, tables, env)
    nothing = _twice(folder, _dagster("benchmarks.peers.empty_job", "empty"), server, [], env)
    rivet = _rivet(_folder(work, "rivet", dsn, tables, level, ours=False), server, tables)
    server.close()
    pool = min(rivet, key=lambda n: rivet[n].wall_s)
    lines = _lines(tables, ideal, ours, nothing, rivet[pool], pool)
    print("\n".join(lines))
    if document:
        put_between(DOCUMENT, MARKERS, "\n".join(lines))
    return int(ours.wall_s > IDEAL_TARGET * ideal.seconds or ours.wall_s > RIVET_TARGET * rivet[pool].wall_s)


def _folder(work: Path, name: str, dsn: str, tables: list[Table], level: int, *, ours: bool) -> Path:
    folder = work / "many" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tuning = "  environment: local" if ours else "  tuning: { profile: fast }"
    text = SOURCE.format(dsn=dsn, tuning=tuning)
    text += "".join(EXPORT.format(name=t.name, level=level, out=folder / "out") for t in tables)
    (folder / "rivet.yaml").write_text(text)
    return folder


def _dagster(module: str = "rivet_dagster.definitions", job: str = "export_all") -> list[str]:
    return [str(Path(sys.executable).with_name("dagster")), "job", "execute", "-m", module, "-j", job]


def _env(folder: Path, home: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": str(REPOSITORY),
        "DAGSTER_HOME": str(home),
        "RIVET_CONFIG": str(folder / "rivet.yaml"),
    }


def _rivet(folder: Path, server: Server, tables: list[Table]) -> dict[int, Cost]:
    """By slots of the pool."""
    command = [str(Path(sys.executable).with_name("rivet")), "apply", str(folder / "rivet.yaml")]
    return {pool: _twice(folder, [*command, "--pool", str(pool)], server, tables, {}) for pool in POOLS}


def _twice(
    folder: Path, command: list[str], server: Server, tables: list[Table], env: dict[str, str]
) -> Cost:
    """The second run's cost, with the memory of the first."""
    peak = _once(folder, command, server, tables, env, watched=True).peak_mb
    return replace(_once(folder, command, server, tables, env, watched=False), peak_mb=peak)


def _once(
    folder: Path,
    command: list[str],
    server: Server,
    tables: list[Table],
    env: dict[str, str],
    *,
    watched: bool,
) -> Cost:
    """The cost of one run; the rows of its files are counted, then they are removed."""
    cost = measure(command, server, folder=folder, env=env, watched=watched)
    if cost.exit_code:
        raise SystemExit(f"{command}: exit code {cost.exit_code}\n{cost.output}")
    print(f"{Path(command[0]).name}: {cost.wall_s:.1f} s", flush=True)
    found = sum(pq.read_metadata(part).num_rows for part in files(folder / "out"))
    if found != sum(table.rows for table in tables):
        raise SystemExit(f"{command}: {found} rows")
    shutil.rmtree(folder / "out", ignore_errors=True)
    return cost


def _ideal(folder: Path, tables: list[Table], server: Server) -> Ideal:
    """One pass in this process, after a small one that loads the modules."""
    config = load_config(folder / "rivet.yaml")
    with Engine(config) as engine:
        _export(engine, min(tables, key=lambda t: (t.rows == 0, t.rows)).name)
        client, before, walls = _cpu(), server.cpu_s(), [0.0]
        for table in tables:
            began = time.perf_counter()
            _export(engine, table.name)
            walls.append(time.perf_counter() - began)
        client = _cpu() - client
        time.sleep(0.3)  # a backend's CPU is in the sum only once it was reaped
        after = server.cpu_s()
    shutil.rmtree(folder / "out")
    if before is None or after is None:
        raise SystemExit("the server has to run on this machine")
    return Ideal(client, after - before, max(walls))


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _export(engine: Engine, name: str) -> None:
    with engine.session(name, holder="benchmark") as session:
        session.plan()
        for _ in session.execute():
            pass
        session.finalize()


def _lines(tables: list[Table], ideal: Ideal, ours: Cost, nothing: Cost, rivet: Cost, pool: int) -> list[str]:
    rows = sum(table.rows for table in tables)
    largest, empty = max(table.rows for table in tables), sum(not table.rows for table in tables)
    work = ours.wall_s - nothing.wall_s
    table = [
        ("no packing can be faster: CPU of all exports / cores", ideal.seconds, ""),
        ("`dagster job execute -j export_all`, start-up included", ours.wall_s, f"{ours.peak_mb:.0f}"),
        ("a Dagster job that does nothing", nothing.wall_s, f"{nothing.peak_mb:.0f}"),
        (f"`rivet apply --pool {pool}`", rivet.wall_s, f"{rivet.peak_mb:.0f}"),
    ]
    ratios = [
        ("wall / ideal, start-up included", ours.wall_s / ideal.seconds, IDEAL_TARGET),
        ("wall without the start-up of an empty job / ideal", work / ideal.seconds, IDEAL_TARGET),
        ("wall / `rivet apply --pool`", ours.wall_s / rivet.wall_s, RIVET_TARGET),
    ]
    return [
        f"{len(tables)} tables of three shapes, {rows:,} rows together, the largest {largest:,}, {empty} "
        f"empty; zstd alike; {os.cpu_count()} cores shared with the server, load {ours.load_before:.1f}.",
        "",
        "| | wall s | peak MB |",
        "|---|---|---|",
        *(f"| {name} | {seconds:.1f} | {peak} |" for name, seconds, peak in table),
        "",
        "| measure | measured | target | |",
        "|---|---|---|---|",
        *(
            f"| {name} | {value:.2f} | {target:.1f} | {'met' if value <= target else 'missed'} |"
            for name, value, target in ratios
        ),
        "",
        f"CPU of all exports one after the other: client {ideal.client:.1f} s, server {ideal.server:.1f} s; "
        f"the longest takes {ideal.longest:.1f} s alone.",
    ]
