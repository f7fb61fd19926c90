"""An export to S3 against the same to local disk, with a server of each kind of its own.

    python -m benchmarks.stores [RUNS]

First the database is the limit: it hands out rows slower than one worker can take them, as a busy or
distant server does. Then nothing is, on a machine that the database, the store and the export share.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import yaml

from tests.services.postgres import TestDatabase, database, postgres_server
from tests.services.seaweed import BUCKET, S3Server, seaweed

ROWS: Final = 1_000_000
WITHIN: Final = 0.10
#: Of each thousand rows, in seconds.
_SLOW: Final = 0.012


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with postgres_server(17) as server, database(server) as db, seaweed() as s3:
        db.execute(
            "CREATE TABLE t AS SELECT n AS id, md5(n::text) AS a, md5((n * 7)::text) AS b, n * 0.5 AS amount"
            f" FROM generate_series(1, {ROWS}) n",
            "ALTER TABLE t ADD PRIMARY KEY (id)",
            "ANALYZE t",
            f"CREATE VIEW slow AS SELECT *, CASE WHEN id % 1000 = 0 THEN pg_sleep({_SLOW})::text END AS nap"
            " FROM t",
        )
        met = [_compare(db, s3, table, runs) for table in ("slow", "t")]
    return int(not met[0])


def _compare(db: TestDatabase, s3: S3Server, table: str, runs: int) -> bool:
    found: dict[str, list[float]] = {"local": [], "s3": []}
    for number in range(runs + 1):
        for kind, seconds in found.items():
            with tempfile.TemporaryDirectory() as folder:
                took = _export(db, s3, table, kind, Path(folder))
            if number:
                seconds.append(took)
    local, remote = (statistics.median(seconds) for seconds in found.values())
    limit = "the database" if table == "slow" else "nothing"
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"limited by {limit}: local {local:.2f} s, s3 {remote:.2f} s, {remote / local - 1:+.1%};"
        f" peak of any process so far {peak:.0f} MB",
        flush=True,
    )
    return remote / local - 1 <= WITHIN


def _export(db: TestDatabase, s3: S3Server, table: str, kind: str, folder: Path) -> float:
    local: dict[str, Any] = {"type": "local", "path": str(folder / "out")}
    export = {
        "name": "o",
        "query": f"SELECT * FROM {table}",
        "mode": "chunked",
        "chunk_column": "id",
        "chunk_size": 100_000,
        "allow_scan": True,
        "format": "parquet",
        "destination": s3.destination(BUCKET, folder.name) if kind == "s3" else local,
    }
    source = {"type": "postgres", "url": db.url, "tls": {"mode": "disable"}}
    config = folder / "rivet.yaml"
    config.write_text(yaml.safe_dump({"source": source, "exports": [export]}))
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "rivet_dagster.cli", "run", "-c", str(config)],
        env={**os.environ, **s3.environment},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
