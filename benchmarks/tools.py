"""The tools that are compared: how each is called for a table, with the settings that suit it best."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import Table

OURS = "rivet_dagster"
RANGE, KEYSET, SNAPSHOT = f"{OURS} range", f"{OURS} keyset", f"{OURS} range, one snapshot"
EVERYTHING = f"{OURS} everything on"


@dataclass(frozen=True)
class Job:
    """One run to start: the table, where the tool may keep its state, and where its files go."""

    dsn: str
    table: Table
    folder: Path
    out: Path
    level: int


@dataclass(frozen=True)
class Tool:
    """``command`` prepares what it needs in ``job.folder`` and returns the argument list."""

    name: str
    settings: str
    command: Callable[[Job], list[str]]
    writes: bool = True


SOURCE = """\
source:
  type: postgres
  url: "{dsn}"
  tls: {{ mode: disable }}
"""
EXPORT = """\
exports:
  - name: {name}
    table: public.{table}
    mode: {mode}
    parallel: {parallel}
    format: parquet
    compression: zstd
    compression_level: {level}
{extra}    destination: {{ type: local, path: "{out}" }}
"""


def _config(job: Job, head: str, mode: str, parallel: int, extra: tuple[str, ...] = ()) -> Path:
    path = job.folder / "rivet.yaml"
    export = EXPORT.format(
        name=job.table.name,
        table=job.table.name,
        mode=mode,
        parallel=parallel,
        level=job.level,
        out=job.out,
        extra="".join(f"    {line}\n" for line in extra),
    )
    path.write_text(SOURCE.format(dsn=job.dsn) + head + export)
    return path


def _ours(mode: str, *extra: str, parallel: int = 2) -> Callable[[Job], list[str]]:
    def command(job: Job) -> list[str]:
        key, primary = job.table.key, job.table.primary_key
        names = {"key": key, "primary_key": primary, "unique": key if key == primary else ""}
        lines = tuple(line.format(**names) for line in extra)
        config = _config(job, "  environment: local\n", mode, parallel, lines)
        command = str(Path(sys.executable).with_name("rivet-dagster"))
        return [command, "run", "-c", str(config), "-e", job.table.name]

    return command


#: the fastest of every parallel setting that was tried, by table: (ranges, connections)
RIVET_BEST = {"bench_wide": (8, 4)}


def _rivet_parallel(job: Job) -> list[str]:
    count, parallel = RIVET_BEST.get(job.table.name, (2, 2))
    extra = (f"chunk_column: {job.table.key}", f"chunk_count: {count}")
    config = _config(job, "  tuning: { profile: fast }\n", "chunked", parallel, extra)
    return [str(Path(sys.executable).with_name("rivet")), "run", "-c", str(config)]


def _rivet_single(job: Job) -> list[str]:
    config = _config(job, "  tuning: { profile: fast }\n", "full", 1)
    return [str(Path(sys.executable).with_name("rivet")), "run", "-c", str(config)]


def _peer(module: str, *, key: bool = False) -> Callable[[Job], list[str]]:
    def command(job: Job) -> list[str]:
        call = [sys.executable, "-m", f"benchmarks.peers.{module}", job.dsn, job.table.name, str(job.out)]
        return [*call, str(job.level), *([job.table.key] if key else [])]

    return command


TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(OURS, "mode full, parallel 2, environment local", _ours("full")),
        Tool("rivet-cli chunked parallel", "profile fast, the best ranges and connections", _rivet_parallel),
        Tool("duckdb postgres_scanner", "2 threads", _peer("duckdb_reader")),
        Tool("copy to nowhere", "2 connections, nothing written", _peer("copy_nowhere"), writes=False),
        Tool(
            "copy to nowhere by key",
            "8 key ranges, 2 connections, nothing written",
            _peer("copy_nowhere", key=True),
            writes=False,
        ),
        Tool("adbc", "1 connection, numeric::text and cast", _peer("adbc")),
        Tool("connectorx", "arrow_stream, 2 partitions", _peer("connectorx_stream", key=True)),
        Tool("rivet-cli full", "profile fast, 1 connection", _rivet_single),
        Tool(
            RANGE,
            "8 key ranges, parallel 2",
            _ours("chunked", "chunk_column: {key}", "chunk_count: 8"),
        ),
        Tool(
            KEYSET,
            "ranges of the primary key in its own order, parallel 2",
            _ours("chunked", "chunk_by_key: [{primary_key}]"),
        ),
        Tool(
            SNAPSHOT,
            "8 key ranges under one snapshot, parallel 2",
            _ours("chunked", "chunk_column: {key}", "chunk_count: 8", "consistency: snapshot"),
        ),
        Tool(
            EVERYTHING,
            "mode full with value checksums, row hash and quality gates",
            _ours(
                "full",
                "meta_columns: {{ row_hash: true }}",
                "quality: {{ row_count_min: 1, unique_columns: [{unique}], "
                "null_ratio_max: {{ {key}: 0.5 }} }}",
            ),
        ),
        Tool(f"{OURS} single", "mode full, parallel 1", _ours("full", parallel=1)),
    )
}
#: what the table of targets needs
CORE = (OURS, "rivet-cli chunked parallel", "duckdb postgres_scanner", "copy to nowhere")
#: the same targets in other modes, and what every check together costs
MODES = (*CORE, "copy to nowhere by key", RANGE, KEYSET, SNAPSHOT, EVERYTHING)
