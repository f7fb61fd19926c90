"""What an export costs as a Dagster job: peak memory, and what we add to Dagster's own start."""

from __future__ import annotations

import shutil
import statistics
import sys
from pathlib import Path

from benchmarks.load import TABLES, ensure
from benchmarks.meter import Cost, Server, measure
from benchmarks.overhead import REPOSITORY, one_row, verdict

PEAK_MB = 450.0
ADDED_S = 1.0

CONFIG = """\
source: {{ type: postgres, url: "{dsn}", environment: local, tls: {{ mode: disable }} }}
exports:
"""
EXPORT = """\
  - name: {name}
    table: public.{name}
    mode: full
    parallel: 2
    format: parquet
    compression_level: {level}
    destination: {{ type: local, path: "{out}" }}
"""


def dagster_runs(work: Path, dsn: str, level: int, runs: int) -> int:
    """``dagster job execute`` on each table; 1 when memory or start-up is past its target."""
    names = [table.name for table in TABLES.values()]
    ensure(dsn, list(TABLES.values()))
    names.append(one_row(dsn).name)
    folder = work / "dagster"
    shutil.rmtree(folder, ignore_errors=True)
    home = folder / "home"
    home.mkdir(parents=True)
    shutil.copy(REPOSITORY / "dagster_home" / "dagster.yaml", home)
    exports = "".join(EXPORT.format(name=name, level=level, out=folder / "out" / name) for name in names)
    (folder / "rivet.yaml").write_text(CONFIG.format(dsn=dsn) + exports)
    server = Server(dsn)
    costs: dict[str, list[Cost]] = {}
    for number in range(runs + 1):
        for name in (*names, "empty"):
            cost = _execute(folder, home, name, server)
            shutil.rmtree(folder / "out", ignore_errors=True)
            if number:
                costs.setdefault(name, []).append(cost)
    server.close()
    for name, found in costs.items():
        print(f"{name:16s} wall {_median(found, 'wall_s'):6.2f} s  peak {_median(found, 'peak_mb'):5.0f} MB")
    peak = max(_median(costs[name], "peak_mb") for name in names)
    print(f"peak memory under Dagster: {peak:.0f} MB  <= {PEAK_MB:.0f}  {verdict(peak <= PEAK_MB)}")
    added = _median(costs[names[-1]], "wall_s") - _median(costs["empty"], "wall_s")
    print(
        f"a whole export of one row, past a Dagster job that does nothing: {added:+.2f} s  <= {ADDED_S:.1f}  "
        f"{verdict(added <= ADDED_S)}"
    )
    return int(peak > PEAK_MB or added > ADDED_S)


def _execute(folder: Path, home: Path, name: str, server: Server) -> Cost:
    module, job = ("benchmarks.peers.empty_job", name) if name == "empty" else (None, f"export_{name}")
    command = [str(Path(sys.executable).with_name("dagster")), "job", "execute"]
    command += ["-m", module or "rivet_dagster.definitions", "-j", job]
    env = {
        "PYTHONPATH": str(REPOSITORY),
        "DAGSTER_HOME": str(home),
        "RIVET_CONFIG": str(folder / "rivet.yaml"),
    }
    cost = measure(command, server, folder=folder, env=env)
    if cost.exit_code:
        raise SystemExit(f"{name}: exit code {cost.exit_code}\n{cost.output}")
    return cost


def _median(costs: list[Cost], key: str) -> float:
    return statistics.median(float(getattr(cost, key)) for cost in costs)
