"""Medians, the table of every tool, and the ratios of the performance targets."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.tools import EVERYTHING, KEYSET, OURS, RANGE, SNAPSHOT

RIVET = "rivet-cli chunked parallel"
DUCKDB = "duckdb postgres_scanner"
COPY, COPY_BY_KEY = "copy to nowhere", "copy to nowhere by key"
CORES = 2

Run = dict[str, float | int | str | None]

#: measure -> (peer, key, target by table)
RATIOS: tuple[tuple[str, str, str, dict[str, float]], ...] = (
    ("client CPU / rivet-cli", RIVET, "client_cpu_s", {"narrow": 0.27, "wide": 0.40, "lineitem": 0.27}),
    ("wall / rivet-cli", RIVET, "wall_s", {"narrow": 0.45, "wide": 0.60, "lineitem": 0.45}),
    ("client CPU / duckdb", DUCKDB, "client_cpu_s", {"narrow": 0.95, "wide": 1.0, "lineitem": 1.0}),
    ("output bytes / rivet-cli", RIVET, "bytes", {"narrow": 0.9, "wide": 1.0, "lineitem": 1.0}),
)
FLOOR_TARGET = 1.2
PEAK_MB = 300.0
STATEMENT_S = 5.0
EXTRA_TARGET = 1.15


@dataclass(frozen=True)
class Finding:
    """One target held against what was measured."""

    table: str
    measure: str
    value: float
    target: float

    @property
    def met(self) -> bool:
        return self.value <= self.target

    def line(self) -> str:
        verdict = "PASS" if self.met else "FAIL"
        return f"{self.table:9s} {self.measure:44s} {self.value:8.3f}  <= {self.target:6.2f}  {verdict}"


def median(runs: Sequence[Run], key: str) -> float | None:
    values = [float(run[key] or 0) for run in runs if run.get(key) is not None]
    return statistics.median(values) if values else None


def of(runs: Sequence[Run], table: str, tool: str) -> list[Run]:
    return [run for run in runs if run["table"] == table and run["tool"] == tool]


def findings(runs: Sequence[Run]) -> list[Finding]:
    """Every target for which both sides were measured; each mode of ours is held to the same ones."""
    found: list[Finding] = []
    for table in dict.fromkeys(str(run["table"]) for run in runs):
        for tool in (OURS, RANGE, KEYSET, SNAPSHOT):
            mode = tool.removeprefix(OURS).strip()
            found.extend(
                replace(one, measure=f"{mode}: {one.measure}" if mode else one.measure)
                for one in _of_mode(runs, table, of(runs, table, tool), by_key=tool != OURS)
            )
        default, everything = (median(of(runs, table, tool), "wall_s") for tool in (OURS, EVERYTHING))
        if default and everything:
            found.append(Finding(table, "everything on: wall / default", everything / default, EXTRA_TARGET))
    return found


def _of_mode(runs: Sequence[Run], table: str, ours: Sequence[Run], *, by_key: bool) -> list[Finding]:
    found: list[Finding] = []
    for measure, peer, key, targets in RATIOS:
        mine, theirs = median(ours, key), median(of(runs, table, peer), key)
        if mine is not None and theirs and table in targets:
            found.append(Finding(table, measure, mine / theirs, targets[table]))
    floor = "wall / floor of 2 cores"
    if by_key:
        found.extend(_against_floor(table, ours, of(runs, table, COPY_BY_KEY), floor))
        floor += ", COPY by pages"
    found.extend(_against_floor(table, ours, of(runs, table, COPY), floor))
    for measure, key, target in (
        ("peak memory, MB", "peak_mb", PEAK_MB),
        ("longest statement, s", "longest_statement_s", STATEMENT_S),
    ):
        value = median(ours, key)
        if value is not None:
            found.append(Finding(table, measure, value, target))
    return found


def _against_floor(table: str, ours: Sequence[Run], copies: Sequence[Run], measure: str) -> list[Finding]:
    """Wall against what two cores could do at best: the server's work for a bare COPY and our own."""
    wall, client = median(ours, "wall_s"), median(ours, "client_cpu_s")
    server = median(copies, "server_cpu_s")
    if wall is None or client is None or server is None:
        return []
    return [Finding(table, measure, wall / ((server + client) / CORES), FLOOR_TARGET)]


def table_lines(runs: Sequence[Run]) -> list[str]:
    """One line a table and tool: medians, with the range of wall and client CPU."""
    lines = [
        f"{'table':9s} {'tool':28s} {'wall s':>20s} {'client cpu s':>20s} {'server cpu s':>12s} "
        f"{'peak MB':>8s} {'stmt s':>7s} {'snap s':>7s} {'rows':>10s} {'MiB':>7s}"
    ]
    for table in dict.fromkeys(str(run["table"]) for run in runs):
        for tool in dict.fromkeys(str(run["tool"]) for run in runs if run["table"] == table):
            mine = of(runs, table, tool)
            lines.append(
                f"{table:9s} {tool:28s} {_spread(mine, 'wall_s'):>20s} "
                f"{_spread(mine, 'client_cpu_s'):>20s} {median(mine, 'server_cpu_s') or 0:12.2f} "
                f"{median(mine, 'peak_mb') or 0:8.0f} {median(mine, 'longest_statement_s') or 0:7.2f} "
                f"{median(mine, 'oldest_snapshot_s') or 0:7.2f} "
                f"{int(median(mine, 'rows') or 0):10d} {(median(mine, 'bytes') or 0) / 2**20:7.1f}"
            )
    return lines


def markdown(runs: Sequence[Run], heading: str) -> str:
    """The same for the documentation: one table of medians, one of targets."""
    lines = [
        heading,
        "",
        "| table | tool | wall s | client CPU s | server CPU s | peak MB | longest statement s | MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for table in dict.fromkeys(str(run["table"]) for run in runs):
        for tool in dict.fromkeys(str(run["tool"]) for run in runs if run["table"] == table):
            mine = of(runs, table, tool)
            cells = [
                f"{median(mine, 'wall_s') or 0:.2f}",
                f"{median(mine, 'client_cpu_s') or 0:.2f}",
                f"{median(mine, 'server_cpu_s') or 0:.2f}",
                f"{median(mine, 'peak_mb') or 0:.0f}",
                f"{median(mine, 'longest_statement_s') or 0:.2f}",
                f"{(median(mine, 'bytes') or 0) / 2**20:.1f}",
            ]
            lines.append(f"| {table} | {tool} | {' | '.join(cells)} |")
    lines += ["", "| table | measure | measured | target | |", "|---|---|---|---|---|"]
    for found in findings(runs):
        verdict = "met" if found.met else "missed"
        lines.append(
            f"| {found.table} | {found.measure} | {found.value:.2f} | {found.target:.2f} | {verdict} |"
        )
    return "\n".join(lines)


def _spread(runs: Sequence[Run], key: str) -> str:
    values = [float(run[key] or 0) for run in runs]
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})" if values else "-"
