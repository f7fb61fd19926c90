"""Files in the folder that no manifest names: moved aside, counted, and left alone when they are not ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.live.modes.kit import Project

MODES: dict[str, dict[str, Any]] = {
    "full": {"mode": "full"},
    "chunked": {"mode": "chunked", "chunk_column": "n", "chunk_size": 10},
    "incremental": {"mode": "incremental", "cursor_column": "n"},
    "window": {"mode": "time_window", "time_column": "at", "days_window": 1},
}


@pytest.fixture
def filled(project: Project) -> Project:
    project.db.execute(
        "CREATE TABLE t (n int PRIMARY KEY, at timestamptz)",
        "INSERT INTO t SELECT g, now() FROM generate_series(1, 25) g",
    )
    return project


def aside(project: Project) -> list[Path]:
    return sorted(p for p in (project.prefix / "_quarantine").rglob("*") if p.is_file())


def folder(superseded: int = 0, orphaned: int = 0, untracked: int = 0) -> dict[str, int]:
    return {"superseded": superseded, "orphaned": orphaned, "untracked": untracked}


@pytest.mark.parametrize("mode", MODES)
def test_what_a_killed_run_left_is_moved_aside_and_counted(filled: Project, mode: str) -> None:
    filled.keys = MODES[mode]
    filled.killed_run("after_unit_commit")
    left = [p.name for p in filled.prefix.glob("*.parquet")]
    assert left
    ran = filled.run()
    assert ran.outcome.details["folder"] == folder(orphaned=len(left))
    assert [p.name for p in aside(filled)] == sorted(left)
    assert filled.rows("n") == dict.fromkeys(range(1, 26), 1)
    report = filled.validate()
    assert report.findings == ()
    assert report.quarantined_files == len(left)
    assert report.quarantined_bytes == sum(p.stat().st_size for p in aside(filled))
    assert report.as_json()["quarantine"] == {"files": len(left), "bytes": report.quarantined_bytes}
    filled.run()
    assert len(filled.validate().findings) == 0


@pytest.mark.parametrize("mode", ["full", "chunked", "window"])
def test_parts_of_the_run_before_are_superseded_and_not_orphans(filled: Project, mode: str) -> None:
    first = filled.run(**MODES[mode])
    assert first.outcome.details["folder"] == folder()
    assert filled.run().outcome.details["folder"] == folder(superseded=first.outcome.files)
    assert filled.validate().quarantined_files == first.outcome.files


def test_windows_that_add_up_supersede_nothing(filled: Project) -> None:
    filled.run(**MODES["incremental"])
    filled.db.execute("INSERT INTO t VALUES (26, now())")
    assert filled.run().outcome.details["folder"] == folder()
    assert not aside(filled)


def test_somebodys_files_are_counted_and_left_alone(filled: Project) -> None:
    filled.run(**MODES["full"])
    stray = ["notes.txt", "sub/other_20260101T000000.000_abcdef-u00000-a1-p000.parquet"]
    for name in stray:
        (filled.prefix / name).parent.mkdir(exist_ok=True)
        (filled.prefix / name).write_text("theirs")
    ran = filled.run()
    assert ran.outcome.details["folder"]["untracked"] == 2
    assert all((filled.prefix / name).read_text() == "theirs" for name in stray)
    report = filled.validate()
    assert report.passed
    assert [f.kind for f in report.findings] == ["untracked_object"] * 2
    assert sorted(f.path or "" for f in report.findings) == sorted(stray)
    assert report.count("untracked_object") == 2
