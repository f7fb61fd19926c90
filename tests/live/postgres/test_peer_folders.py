"""``partition_by`` as the reference does it: the same folders, the same rows, each accepted as an export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rivet_dagster.engine.destinations.local import LocalStore
from rivet_dagster.engine.verify.validate import validate_prefix
from tests.live.postgres.test_peer_rivet import run_ours
from tests.services import rivet_cli
from tests.services.postgres import TestServer, database

TABLE = (
    "CREATE TABLE t (n int PRIMARY KEY, d date, u timestamp, z timestamptz)",
    "INSERT INTO t SELECT n, at, at, at AT TIME ZONE 'UTC' FROM (SELECT n,"
    " timestamp '2024-02-27 20:00' + n * interval '5 h' AS at FROM generate_series(0, 29) n) s",
    "INSERT INTO t VALUES (100, NULL, NULL, NULL),"
    " (101, '2024-02-29', '2024-02-29 23:59:59.999999', '2024-02-28 23:30-05'),"
    " (102, '2024-03-01', '2024-03-01', '2024-02-29 19:00-05')",
    "ANALYZE t",
)
COLUMNS = {"day": "d", "month": "u", "year": "z"}


def export(root: Path, granularity: str, column: str) -> dict[str, Any]:
    return {
        "name": f"by_{granularity}",
        "table": "t",
        "mode": "full",
        "format": "parquet",
        "partition_by": column,
        "partition_granularity": granularity,
        "destination": {"type": "local", "path": str(root / f"by_{granularity}" / "{partition}")},
    }


def rows(folder: Path) -> dict[str, list[int]]:
    """Rows by folder, by its own manifest; folders without rows left out."""
    found = {}
    for path in sorted(folder.glob("*=*/manifest.json")):
        parts = json.loads(path.read_bytes())["parts"]
        numbers = [
            n
            for part in parts
            for n in pq.ParquetFile(path.parent / part["path"]).read(["n"])["n"].to_pylist()
        ]
        if numbers:
            found[path.parent.name] = sorted(numbers)
    return found


def test_both_write_the_same_folders_and_each_accepts_the_other_s(pg: TestServer, tmp_path: Path) -> None:
    with database(pg) as db:
        db.execute(*TABLE)
        config = {}
        for who in ("ours", "theirs"):
            (tmp_path / who).mkdir()
            listed = [export(tmp_path / who, *pair) for pair in COLUMNS.items()]
            config[who] = rivet_cli.write_config(tmp_path / who / "rivet.yaml", db.url, listed)
        run_ours(config["ours"], tmp_path / "ours", [f"by_{granularity}" for granularity in COLUMNS])
        rivet_cli.run(config["theirs"])
        for granularity, column in COLUMNS.items():
            ours = rows(tmp_path / "ours" / f"by_{granularity}")
            assert ours == rows(tmp_path / "theirs" / f"by_{granularity}")
            assert f"{column}=__HIVE_DEFAULT_PARTITION__" in ours
            assert len(ours) == {"day": 8, "month": 3, "year": 2}[granularity]
            accept(tmp_path, db.url, granularity, list(ours))


def accept(root: Path, url: str, granularity: str, folders: list[str]) -> None:
    name = f"by_{granularity}"
    entries = [
        {
            "name": name,
            "table": "t",
            "format": "parquet",
            "destination": {"type": "local", "path": str(root / "ours" / name / folder)},
        }
        for folder in folders
    ]
    for entry, folder in zip(entries, folders, strict=True):
        judged = rivet_cli.write_config(root / "judge.yaml", url, [entry])
        verdict = rivet_cli.validate(judged, name, "full")
        assert verdict.passed, verdict
        assert verdict.codes == []
        theirs = root / "theirs" / name / folder
        report = validate_prefix(LocalStore(theirs), str(theirs), depth="full")
        assert report.passed, report.findings
