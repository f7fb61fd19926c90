"""Throughput of one export against how many processes share it, and into how many units it is cut.

    python -m benchmarks.shared_runs [--rows N] [--workers 1 2 4] [--units 10 100 1000]

Source and state are a private PostgreSQL each, with fsync as production has it; the files go to a local
folder. A lead and its guests are processes that read one unit at a time, as hosts would. On a machine of two
cores, which the servers share, two are the most that can help. Prints a line a case: wall seconds from
the first process's start to the lead's end, and what each process did.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import yaml

from tests.services.postgres import TestDatabase, database, postgres_server

_DURABLE: Final = ("fsync=on", "full_page_writes=on", "synchronous_commit=on")
_DONE: Final = re.compile(r"(\d+) units, \d+ rows done here")


def case(
    source: TestDatabase, state: TestDatabase, rows: int, workers: int, units: int
) -> tuple[float, list[int]]:
    """(seconds, units that each guest did)."""
    with tempfile.TemporaryDirectory() as folder:
        name = f"t{workers}x{units}"
        export = {
            "name": name,
            "table": "public.t",
            "mode": "chunked",
            "chunk_column": "id",
            "chunk_size": -(-rows // units),
            "parallel": 1,
            "format": "parquet",
            "destination": {"type": "local", "path": f"{folder}/out"},
            "dagster": {"workers": workers},
        }
        config = {
            "source": {
                "type": "postgres",
                "url": source.url,
                "tls": {"mode": "disable"},
                "tuning": {"profile": "fast"},
            },
            "exports": [export],
        }
        Path(folder, "rivet.yaml").write_text(yaml.safe_dump(config))
        environment = {**os.environ, "RIVET_STATE_URL": state.url}
        program = [sys.executable, "-m", "rivet_dagster.cli"]
        began = time.monotonic()
        guests = [
            subprocess.Popen(
                [*program, "work", "-e", name, "-c", "rivet.yaml", "--wait", "5"],
                cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for _ in range(workers - 1)
        ]  # fmt: skip
        subprocess.run(
            [*program, "run", "-e", name, "-c", "rivet.yaml"],
            cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        took = time.monotonic() - began
        told = [guest.communicate(timeout=60)[0] for guest in guests]
        return took, [int(found[1]) if (found := _DONE.search(text)) else 0 for text in told]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--units", type=int, nargs="+", default=[10, 100, 1000])
    asked = parser.parse_args()
    with postgres_server(17, settings=_DURABLE) as server, database(server) as source:
        source.execute(
            "CREATE TABLE t AS SELECT n AS id, md5(n::text) AS a, n * 0.5 AS amount, now() AS at"
            f" FROM generate_series(1, {asked.rows}) n",
            "ALTER TABLE t ADD PRIMARY KEY (id)",
            "VACUUM ANALYZE t",
        )
        print(f"{asked.rows} rows\nworkers  units  seconds   rows/s  units of each guest")
        with database(server) as warm:
            case(source, warm, asked.rows, 1, 10)
        for units in asked.units:
            for workers in asked.workers:
                with database(server) as state:
                    took, done = case(source, state, asked.rows, workers, units)
                print(
                    f"{workers:>7} {units:>6} {took:>8.2f} {asked.rows / took:>8.0f}  {done or '-'}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
