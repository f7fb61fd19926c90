"""Measure the whole product against other tools on three tables, interleaved, and hold it to its targets.

``python -m benchmarks.run`` starts a private PostgreSQL (or takes ``BENCH_DSN``), builds the tables once,
and runs every tool in turn: one round to warm up, then ``--runs`` rounds. ``--linearity``,
``--overhead``, ``--dagster`` and ``--probe`` are measurements of ours alone; ``--many`` is that of many
exports.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks import figures, overhead, probe
from benchmarks.compare import compare, files
from benchmarks.dagster_runs import dagster_runs
from benchmarks.load import TABLES, Table, ensure
from benchmarks.many_exports import MANY, MANY_ROWS, many_exports
from benchmarks.meter import Cost, Server, measure
from benchmarks.report import Run, findings, markdown, table_lines
from benchmarks.server import server
from benchmarks.tools import CORE, MODES, OURS, TOOLS, Job, Tool

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "benchmarks" / "latest.json"
DOCUMENT = REPOSITORY / "docs" / "performance.md"
SETS = {"core": CORE, "modes": MODES}
MARKERS = ("<!-- figures: begin -->", "<!-- figures: end -->")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", default="narrow,wide,lineitem")
    parser.add_argument(
        "--tools",
        default="",
        help="names with commas; default: all; 'core': what targets need, 'modes': each mode of ours too",
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--level", type=int, default=3, help="zstd level of every tool that writes")
    parser.add_argument("--quick", action="store_true", help="the core tools, 1 run each after the warm-up")
    parser.add_argument("--no-compare", action="store_true", help="skip the comparison of the outputs")
    parser.add_argument("--linearity", action="store_true", help="cost against rows: 1, 5 and 20 million")
    parser.add_argument(
        "--overhead", action="store_true", help="what state, manifest and checks cost; start-up"
    )
    parser.add_argument("--dagster", action="store_true", help="memory and start-up as a Dagster job")
    parser.add_argument(
        "--probe", action="store_true", help="latency of short requests with and without us, under a minute"
    )
    parser.add_argument("--many", action="store_true", help="100 exports in one job, packed: 4 minutes")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "rivet-dagster-bench")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--document", action="store_true", help="put the figures into docs/performance.md")
    return parser.parse_args(argv)


def chosen(args: argparse.Namespace) -> list[Tool]:
    if args.quick or args.tools in SETS:
        return [TOOLS[name] for name in SETS[args.tools or "core"]]
    names = [name.strip() for name in args.tools.split(",") if name.strip()] or list(TOOLS)
    unknown = [name for name in names if name not in TOOLS]
    if unknown:
        raise SystemExit(f"no such tool: {', '.join(unknown)}; there are {', '.join(TOOLS)}")
    return [TOOLS[name] for name in names]


class Bench:
    """One series: a work folder, a server, and what has been measured so far."""

    def __init__(self, work: Path, dsn: str, level: int) -> None:
        self.work, self.dsn, self.level = work, dsn, level
        self.server = Server(dsn)
        self.runs: list[Run] = []
        self.failed = False

    def once(self, name: str, tool: Tool, table: Table, *, number: int) -> tuple[Cost, Path]:
        """Run one tool over one table into a folder of its own."""
        folder = self.work / "runs" / f"{tool.name}-{table.name}".replace(" ", "_")
        out = folder / f"out-{number}"
        out.mkdir(parents=True)
        job = Job(self.dsn, table, folder, out, self.level)
        env = {"PYTHONPATH": str(REPOSITORY)}
        cost = measure(tool.command(job), self.server, folder=folder, env=env, watched=number == 0)
        if cost.exit_code:
            self.failed = True
            print(f"{name} {tool.name}: exit code {cost.exit_code}\n{cost.output}", flush=True)
        return cost, out

    def series(self, name: str, table: Table, tools: list[Tool], rounds: int, *, check: bool) -> None:
        """Interleaved rounds. The first warms up and is watched, for memory and statements; the others are
        timed. The last outputs are compared, then all are removed."""
        shutil.rmtree(self.work / "runs", ignore_errors=True)
        last: dict[str, Path] = {}
        watched: dict[str, Cost] = {}
        for number in range(rounds + 1):
            for tool in tools:
                cost, out = self.once(name, tool, table, number=number)
                if not number:
                    watched[tool.name] = cost
                cost = seen_in(watched[tool.name], cost)
                if number and not cost.exit_code:
                    self.runs.append(record(name, tool, cost, out, number))
                if number:
                    print(
                        f"  {name} {number} {tool.name}: wall {cost.wall_s:.2f} cpu {cost.client_cpu_s:.2f} "
                        f"load {cost.load_before:.1f}",
                        flush=True,
                    )
                if tool.name in last:
                    shutil.rmtree(last.pop(tool.name))
                if tool.writes and not cost.exit_code:
                    last[tool.name] = out
        if check and OURS in last:
            for other, out in last.items():
                if other != OURS:
                    result = compare(last[OURS], out, table, other)
                    self.failed |= not result.equal
                    print(f"  {name}: {OURS} and {other}: {result}", flush=True)
        shutil.rmtree(self.work / "runs", ignore_errors=True)


def seen_in(watched: Cost, timed: Cost) -> Cost:
    """``timed`` with what only the watched run of the same command shows."""
    seen = ("peak_mb", "processes", "longest_statement_s", "longest_transaction_s", "oldest_snapshot_s")
    return replace(timed, **{key: getattr(watched, key) for key in (*seen, "connections")})


def record(name: str, tool: Tool, cost: Cost, out: Path, number: int) -> Run:
    """One run as ``latest.json`` keeps it; rows and bytes are those of the files."""
    parts = files(out) if tool.writes else []
    costs = {key: value for key, value in asdict(cost).items() if key not in {"output", "exit_code"}}
    return {
        "table": name,
        "tool": tool.name,
        "settings": tool.settings,
        "run": number,
        **costs,
        "rows": sum(pq.read_metadata(part).num_rows for part in parts),
        "bytes": sum(os.path.getsize(part) for part in parts),
        "files": len(parts),
    }


def prepare() -> None:
    """Bytecode of the package and of the peers, as an installation has it: no run shall compile it anew."""
    for folder in ("rivet_dagster", "benchmarks"):
        compileall.compile_dir(str(REPOSITORY / folder), quiet=2)


def main(argv: list[str] | None = None) -> int:
    """Returns 1 when a tool failed or its output differs, or a target is missed."""
    args = arguments(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    args.work.chmod(0o755)
    prepare()
    with server(args.work) as dsn:
        if args.linearity:
            return overhead.linearity(args.work, dsn, args.level, args.runs)
        if args.overhead:
            return overhead.shares(args.work, dsn, args.level, args.runs)
        if args.dagster:
            return dagster_runs(args.work, dsn, args.level, args.runs)
        if args.many:
            return many_exports(args.work, dsn, args.level, MANY, MANY_ROWS, document=args.document)
        if args.probe:
            return probe.run(args.work, dsn, args.level)
        return peers(args, dsn)


def document(runs: list[Run], level: int, load: float) -> None:
    """Replace the figures of the documentation by those of ``runs``."""
    rounds = max(int(run["run"] or 0) for run in runs)
    heading = (
        f"Median of {rounds} interleaved runs after a warm-up, every tool at zstd {level}, {os.cpu_count()} "
        f"cores shared with the server, load {load:.1f} at the start."
    )
    figures.put_between(DOCUMENT, MARKERS, markdown(runs, heading))


def peers(args: argparse.Namespace, dsn: str) -> int:
    """The comparison with the other tools; writes ``latest.json``."""
    wanted = [name.strip() for name in args.tables.split(",")]
    ensure(dsn, [TABLES[name] for name in wanted])
    bench = Bench(args.work, dsn, args.level)
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {load:.2f}; every tool zstd {args.level}")
    for name in wanted:
        bench.series(
            name, TABLES[name], chosen(args), 1 if args.quick else args.runs, check=not args.no_compare
        )
    bench.server.close()
    args.out.write_text(json.dumps(bench.runs, indent=1) + "\n")
    print("\n".join(["", *table_lines(bench.runs), ""]))
    if args.document:
        document(bench.runs, args.level, load)
    results = findings(bench.runs)
    for finding in results:
        print(finding.line())
    return int(bench.failed or not all(finding.met for finding in results))


if __name__ == "__main__":
    sys.exit(main())
