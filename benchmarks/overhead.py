"""Measurements of ours alone: cost against rows, what the engine adds to reading and writing, start-up."""

from __future__ import annotations

import itertools
import queue
import shutil
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import psycopg

from benchmarks.load import TABLES, Table, ensure, narrow
from benchmarks.meter import Cost, Server, measure
from benchmarks.tools import OURS, TOOLS, Job
from rivet_dagster.config import load_config
from rivet_dagster.engine.plan.units import WorkUnit
from rivet_dagster.engine.run import order as runner
from rivet_dagster.engine.run.engine import Engine
from rivet_dagster.engine.run.session import Session
from rivet_dagster.engine.run.workers import WorkOrder

REPOSITORY = Path(__file__).resolve().parent.parent
LINEAR_WITHIN = 0.10
SHARE_TARGET = 0.05
FIRST_ROW_S = 1.0

CONFIG = """\
source: {{ type: postgres, url: "{dsn}", environment: local, tls: {{ mode: disable }} }}
exports:
  - name: overhead
    table: public.bench_narrow
    mode: chunked
    chunk_column: id
    chunk_size: 1000000
    parallel: 2
    format: parquet
    compression_level: {level}
    destination: {{ type: local, path: "{out}" }}
"""


def linearity(work: Path, dsn: str, level: int, runs: int) -> int:
    """1, 5 and 20 million rows: marginal cost of a million rows, peak memory. 1 when a target is missed."""
    tables = [narrow(1_000_000), TABLES["narrow"], narrow(20_000_000)]
    ensure(dsn, tables)
    server = Server(dsn)
    costs: dict[int, list[Cost]] = {table.rows: [] for table in tables}
    for number in range(runs + 1):
        for table in tables:
            cost = _export(work, dsn, table, level, server)
            if number:
                costs[table.rows].append(cost)
    server.close()
    print(
        f"{'rows':>12s} {'wall s':>8s} {'client cpu':>11s} {'server cpu':>11s} {'peak MB':>8s} {'stmt s':>7s}"
    )
    for rows, found in costs.items():
        print(
            f"{rows:12,d} {_median(found, 'wall_s'):8.2f} {_median(found, 'client_cpu_s'):11.2f} "
            f"{_median(found, 'server_cpu_s'):11.2f} {_median(found, 'peak_mb'):8.0f} "
            f"{_median(found, 'longest_statement_s'):7.2f}"
        )
    met = [_linear(costs, key) for key in ("wall_s", "client_cpu_s")]
    return int(not all([*met, _flat(costs)]))


def _export(work: Path, dsn: str, table: Table, level: int, server: Server) -> Cost:
    """One metered run of ours; its output is removed, its state kept as in daily use."""
    folder = work / "linearity" / table.name
    out = folder / "out"
    out.mkdir(parents=True, exist_ok=True)
    job = Job(dsn, table, folder, out, level)
    cost = measure(TOOLS[OURS].command(job), server, folder=folder, env={"PYTHONPATH": str(REPOSITORY)})
    shutil.rmtree(out)
    if cost.exit_code:
        raise SystemExit(f"{table.name}: exit code {cost.exit_code}\n{cost.output}")
    return cost


def _median(costs: list[Cost], key: str) -> float:
    return statistics.median(float(getattr(cost, key) or 0) for cost in costs)


def _linear(costs: dict[int, list[Cost]], key: str) -> bool:
    """The cost of one more million rows, once start-up is paid, is the same early and late."""
    points = [(rows / 1e6, _median(found, key)) for rows, found in costs.items()]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(points)]
    spread = max(slopes) / min(slopes) - 1
    met = spread <= LINEAR_WITHIN
    text = ", ".join(f"{slope:.3f}" for slope in slopes)
    print(f"{key}: {text} s per million rows, {spread:+.1%}  <= {LINEAR_WITHIN:.0%}  {verdict(met)}")
    return met


def _flat(costs: dict[int, list[Cost]]) -> bool:
    peaks = [_median(found, "peak_mb") for found in costs.values()]
    growth = peaks[-1] / peaks[1] - 1
    met = growth <= LINEAR_WITHIN
    print(f"peak memory from 5 to 20 million rows: {growth:+.1%}  <= {LINEAR_WITHIN:.0%}  {verdict(met)}")
    return met


def shares(work: Path, dsn: str, level: int, runs: int) -> int:
    """State, lease, manifest and fingerprints against bare reading and writing of the same units.

    The value checksum is a check of the data, so it is shown apart.
    """
    ensure(dsn, [TABLES["narrow"]])
    folder = work / "overhead"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = folder / "rivet.yaml"
    config.write_text(CONFIG.format(dsn=dsn, level=level, out=folder / "out"))
    variants = (("whole", _whole), ("unchecked", _unchecked), ("bare", _bare))
    walls: dict[str, list[float]] = {name: [] for name, _ in variants}
    cpus: dict[str, list[float]] = {name: [] for name, _ in variants}
    with Engine(load_config(config)) as engine:
        for number in range(runs + 1):
            for name, run in variants:
                wall, cpu = run(engine)
                shutil.rmtree(folder / "out", ignore_errors=True)
                if number:
                    walls[name].append(wall)
                    cpus[name].append(cpu)
    met = [_share("wall", walls), _first_row(work, dsn, level, runs)]
    _share("client CPU", cpus)
    shutil.rmtree(folder)
    return int(not all(met))


def _share(what: str, found: dict[str, list[float]]) -> bool:
    whole, unchecked, bare = (statistics.median(found[name]) for name in ("whole", "unchecked", "bare"))
    share = 1 - bare / unchecked
    met = share <= SHARE_TARGET
    print(
        f"engine overhead at 1 million rows a unit, {what}: bare {bare:.2f} s, engine {unchecked:.2f} s, "
        f"with the value checksum {whole:.2f} s; engine's share {share:.1%}  <= {SHARE_TARGET:.0%}  "
        f"{verdict(met)}"
    )
    return met


def _whole(engine: Engine) -> tuple[float, float]:
    """A run as the product does it: lease, plan, units, commits, manifest, checks."""
    began, cpu = time.perf_counter(), time.process_time()
    with engine.session("overhead", holder="bench") as session:
        session.plan(fresh=True)
        for _ in session.execute():
            pass
        session.finalize()
    return time.perf_counter() - began, time.process_time() - cpu


def _unchecked(engine: Engine) -> tuple[float, float]:
    """The same run without the value checksum of every cell."""
    with mock.patch.object(runner, "checksums", return_value=None):
        return _whole(engine)


def _bare(engine: Engine) -> tuple[float, float]:
    """The same statements, decoder and Parquet writer, two workers; nothing is recorded or checked."""
    with engine.session("overhead", holder="bench") as session:
        plan = session.plan(fresh=True)
        order = _order(session, plan)
        folder = Path(engine.prefix(engine.export("overhead")))
        folder.mkdir(parents=True, exist_ok=True)
        units: queue.SimpleQueue[WorkUnit] = queue.SimpleQueue()
        for unit in plan.units:
            units.put(unit)
        began, cpu = time.perf_counter(), time.process_time()
        _threads(2, lambda: _read_and_write(order, units, folder))
        return time.perf_counter() - began, time.process_time() - cpu


def _order(session: Session, plan: object) -> WorkOrder:
    # the benchmark has to take the runner apart, so it reaches inside
    order: WorkOrder = session._work_order(plan)  # type: ignore[arg-type]
    return order


def _read_and_write(order: WorkOrder, units: queue.SimpleQueue[WorkUnit], folder: Path) -> None:
    reader = order.new_reader()
    try:
        while True:
            try:
                unit = units.get_nowait()
            except queue.Empty:
                return
            writer = order.new_writer(folder / f"{unit.index}.parquet")
            waiting: queue.Queue[object] = queue.Queue(1)

            def encode(writer: object = writer, waiting: queue.Queue[object] = waiting) -> None:
                while (batch := waiting.get()) is not None:
                    writer.write(batch)  # type: ignore[attr-defined]
                    del batch

            thread = threading.Thread(target=encode)
            thread.start()
            for batch in reader.batches(unit):
                waiting.put(batch)
                del batch
            waiting.put(None)
            thread.join()
            writer.close()
    finally:
        reader.close()


def _threads(count: int, target: Callable[[], None]) -> None:
    threads = [threading.Thread(target=target) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _first_row(work: Path, dsn: str, level: int, runs: int) -> bool:
    """From the start of a process to the end of an export of one row: more than the time to its first row."""
    table = one_row(dsn)
    server = Server(dsn)
    costs = [_export(work, dsn, table, level, server) for _ in range(runs + 1)][1:]
    server.close()
    wall, cpu = _median(costs, "wall_s"), _median(costs, "client_cpu_s")
    met = wall <= FIRST_ROW_S
    print(
        f"a whole run over one row, imports included: wall {wall:.2f} s, "
        f"client CPU {cpu:.2f} s  <= {FIRST_ROW_S:.1f} s  {verdict(met)}"
    )
    return met


def one_row(dsn: str) -> Table:
    """A table of one row of ``narrow``; makes it."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("create table if not exists bench_row as select * from bench_narrow limit 1")
        conn.execute("analyze bench_row")
    return Table("bench_row", "", "", 1, "id", "id")


def verdict(met: bool) -> str:
    return "PASS" if met else "FAIL"
