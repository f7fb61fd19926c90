"""``partition_by``: Hive folders of days, months and years; every row in exactly one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest

from rivet_dagster.engine.errors import ConfigError, RefusalError, UsageError
from rivet_dagster.engine.run.events import UnitCommitted
from tests.live.modes.kit import Project, Ran

NULL = "__HIVE_DEFAULT_PARTITION__"


@pytest.fixture
def project(project: Project) -> Project:
    project.keys = {
        "mode": "full",
        "partition_by": "d",
        "destination": {"type": "local", "path": str(project.prefix / "{partition}")},
    }
    return project


def fill(project: Project, kind: str, *values: str | None, index: bool = True) -> None:
    """Table ``t`` of numbered rows with a column ``d`` of type ``kind``."""
    project.db.execute(f"CREATE TABLE t (n int PRIMARY KEY, d {kind})")
    if index:
        project.db.execute("CREATE INDEX ON t (d)")
    add(project, 0, *values)


def add(project: Project, first: int, *values: str | None) -> None:
    with project.db.connect() as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO t VALUES (%s, %s)", list(enumerate(values, first)))


def hive(project: Project, folder: str = "*") -> dict[str, list[int]]:
    """Rows by the value of their folder, as DuckDB reads Hive folders; each row with its own manifest's."""
    found: dict[str, list[int]] = {}
    glob = str(project.prefix / folder / "*.parquet")
    query = "SELECT n, d FROM read_parquet($glob, hive_partitioning=true, hive_types_autocast=false) ORDER BY n"
    for number, value in duckdb.sql(query, params={"glob": glob}).fetchall():
        found.setdefault(str(value), []).append(number)
    return found


def assert_folders_are_whole(project: Project) -> None:
    """Each folder is an export of its own to a reader: manifest, copy, marker, parts, nothing else."""
    import xxhash

    rows = 0
    for folder in sorted(p for p in project.prefix.iterdir() if "=" in p.name):
        data = (folder / "manifest.json").read_bytes()
        manifest = json.loads(data)
        rows += manifest["row_count"]
        names = {part["path"] for part in manifest["parts"]}
        own = {"manifest.json", "_SUCCESS", f"manifest-{manifest['run_id']}.json"}
        assert {p.name for p in folder.iterdir()} == names | own
        assert (folder / "_SUCCESS").read_text() == f"xxh3:{xxhash.xxh3_64(data).hexdigest()}\n"
        with project.engine() as engine:
            from rivet_dagster.engine.verify.validate import validate_prefix

            report = validate_prefix(engine.store(folder), str(folder), depth="full", export_name="o")
            assert report.status == "pass", report.findings
    assert rows == project.manifest().row_count
    with project.engine() as engine:
        report = engine.validate("o")
    assert report.status == "pass", report.findings


def choose(project: Project, *keys: str) -> Ran:
    with project.engine() as engine, engine.session("o", holder="test", lock_wait=0) as session:
        plan = session.plan(only=keys)
        events = tuple(session.execute())
        return Ran(plan, events, session.finalize())


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize(
    ("granularity", "folders"),
    [
        ("day", {"2023-12-31": [0], "2024-01-01": [1, 2], "2024-02-29": [3], "2031-07-01": [4], "None": [5]}),
        ("month", {"2023-12": [0], "2024-01": [1, 2], "2024-02": [3], "2031-07": [4], "None": [5]}),
        ("year", {"2023": [0], "2024": [1, 2, 3], "2031": [4], "None": [5]}),
    ],
)
@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamptz"])
def test_rows_lie_in_the_folder_of_their_day(
    project: Project, kind: str, granularity: str, folders: dict[str, list[int]], index: bool
) -> None:
    last = "2024-01-01" if kind == "date" else "2024-01-01 23:59:59.999999"
    zone = "+00" if kind == "timestamptz" else ""
    values = ["2023-12-31", "2024-01-01", last, "2024-02-29", "2031-07-01"]
    fill(project, kind, *(v + (zone if " " in v else "") for v in values), None, index=index)
    ran = project.run(partition_granularity=granularity)
    assert len(ran.plan.units) == len(folders)  # no unit for a folder without rows
    assert hive(project) == folders
    assert (project.prefix / f"d={NULL}").is_dir()
    assert_folders_are_whole(project)
    assert project.reconcile() == "match"
