"""The quickstart, run as it is written: from a database to the first files and materializations."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import dagster as dg

from tests.live.cli.conftest import Shell
from tests.live.postgres.rig import read_parquet

ROOT: Final = Path(__file__).parents[3]
MINUTES: Final = 5
#: The programs of this tree and interpreter, under the names that a reader types.
PROGRAMS: Final = """set -euo pipefail
rivet-dagster() { "$PYTHON" -m rivet_dagster.cli "$@"; }
dagster() { "$PYTHON" -m dagster "$@"; }
"""


def blocks(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)


def test_three_commands_and_then_dagster(sh: Shell) -> None:
    sh.db.execute(
        "CREATE TABLE orders AS SELECT g AS id, now() AS updated_at, repeat('x', 99) AS note"
        " FROM generate_series(1, 20000) g",
        "ALTER TABLE orders ADD PRIMARY KEY (id)",
        "CREATE TABLE customers (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), name text)",
        "INSERT INTO customers (name) SELECT 'c' || g FROM generate_series(1, 100) g",
    )
    first, second = blocks("quickstart.md")
    assert len(first.splitlines()) == 3
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RIVET_", "DAGSTER_"))}
    environment |= {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "DAGSTER_DISABLE_TELEMETRY": "1"}
    started = time.monotonic()
    for script in (first, second):
        done = subprocess.run(
            ["bash", "-c", PROGRAMS + script],
            cwd=sh.root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=MINUTES * 60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if script is first:
            assert "rivet.yaml: 2 exports" in done.stdout
            assert "orders: 20000 rows" in done.stdout
            assert done.stdout.count("pass") == 2
    assert time.monotonic() - started < MINUTES * 60
    for name, rows in (("orders", 20_000), ("customers", 100)):
        parts = sorted((sh.root / "out" / name).glob("*.parquet"))
        assert read_parquet(parts, "count(*), count(DISTINCT id)") == [(rows, rows)]
    with dg.DagsterInstance.from_config(str(sh.root / "dagster_home")) as instance:
        for name in ("orders", "customers"):
            assert instance.get_latest_materialization_event(dg.AssetKey(["rivet", name])) is not None
