"""Folders for parts on their way: one a process, and none left of processes that are gone."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

CODE = """
import sys, time
from rivet_dagster.engine.destinations.staging import FOLDER, staging_path
staging_path("a/b/part.parquet").write_bytes(b"1")
print(FOLDER.path(), flush=True)
if sys.argv[1:]:
    time.sleep(60)
"""


def start(base: Path, *args: str) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, *args],
        env={"RIVET_STAGING_DIR": str(base), "PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_one_that_ends_leaves_nothing(tmp_path: Path) -> None:
    process, folder = start(tmp_path / "new")
    process.communicate(timeout=30)
    assert folder.parent == tmp_path / "new"
    assert list(folder.parent.iterdir()) == []


def test_what_a_killed_one_left_is_swept_and_what_a_living_one_uses_is_not(tmp_path: Path) -> None:
    alive, in_use = start(tmp_path, "stay")
    killed, left = start(tmp_path, "stay")
    killed.kill()
    killed.communicate()
    assert [p.name.startswith("part.parquet.") for p in left.iterdir() if p.name != "lock"] == [True]
    try:
        start(tmp_path)[0].communicate(timeout=30)
        assert sorted(tmp_path.iterdir()) == [in_use]
    finally:
        alive.kill()
        alive.communicate()


def test_patience_is_for_what_may_pass() -> None:
    from rivet_dagster.engine.destinations.base import ConflictError
    from rivet_dagster.engine.destinations.bucket import retried
    from rivet_dagster.engine.errors import EnvironmentFault, RivetError, TransientError

    def asked(errors: list[RivetError], patience: float = 60) -> int:
        """How often it was asked until it answered or gave up."""
        count = 0

        def ask() -> None:
            nonlocal count
            count += 1
            if count <= len(errors):
                raise errors[count - 1]

        with contextlib.suppress(RivetError):
            retried(ask, patience)
        return count

    began = time.monotonic()
    assert asked([TransientError("x", retry_after_s=0.3), TransientError("x")]) == 3
    assert time.monotonic() - began >= 0.5
    assert asked([ConflictError("x"), ConflictError("x")]) == 1
    assert asked([EnvironmentFault("x")]) == 1
    assert asked([TransientError("x", retry_after_s=5)], patience=1) == 1


def test_times_that_make_no_sense_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from rivet_dagster.engine.destinations.bucket import patience_s
    from rivet_dagster.engine.errors import UsageError

    for text in ("never", "-1", "1e9", "nan"):
        monkeypatch.setenv("RIVET_DEST_PATIENCE_S", text)
        with pytest.raises(UsageError):
            patience_s()
