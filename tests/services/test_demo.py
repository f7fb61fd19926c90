"""The README's main command: the whole demo, killed half-way and run again."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from rivet_dagster.config import load_config
from rivet_dagster.demo import shop
from rivet_dagster.demo.check import check
from rivet_dagster.demo.progress import Progress
from rivet_dagster.demo.report import report
from rivet_dagster.demo.server import read_status
from rivet_dagster.demo.shop import DemoFiles, statements
from rivet_dagster.demo.watch import Left
from tests.services.test_postgres import ROOT, alive, eventually_dead, state

UNITS = 21  # of order_items: a million rows in ranges of 50,000 from the first id, and the NULL range


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[DemoFiles]:
    """A folder with what the demo reads of a checkout and three of its exports; goes with its server."""
    files = DemoFiles(tmp_path / "checkout")
    files.dagster_home.mkdir(parents=True)
    files.config.parent.mkdir(parents=True)
    shutil.copy(ROOT / "dagster_home" / "dagster.yaml", files.dagster_home)
    config = yaml.safe_load(DemoFiles(ROOT).config.read_text(encoding="utf-8"))
    config["exports"] = [
        e for e in config["exports"] if e["name"] in ("categories", "order_items", "payments")
    ]
    files.config.write_text(yaml.safe_dump(config), encoding="utf-8")
    yield files
    server = files.home / "server"
    if server.is_symlink():
        shutil.rmtree(server.resolve())


def start(files: DemoFiles, command: str = "run", **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.Popen(
        [sys.executable, "-m", "rivet_dagster.demo", command],
        cwd=files.root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stopped_children(root: Path) -> list[int]:
    """Processes that work in the checkout ``root`` and stopped themselves."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").resolve() == root and state(int(entry.name)) == "T":
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_killed_half_way_it_leaves_no_process_and_resumes(checkout: DemoFiles) -> None:
    first = start(checkout, RIVET_TEST_PAUSE_AT="after_unit_commit:8")
    deadline = time.monotonic() + 300
    while not (paused := stopped_children(checkout.root)):
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    status = read_status(checkout.home / "server" / "pg")
    assert status is not None
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert all(eventually_dead(pid) for pid in [*paused, status.pid])

    second = start(checkout)
    output, errors = second.communicate()
    assert second.returncode == 0, errors
    assert f"of {UNITS} units were already done by the run that was killed" in output
    assert "1,240,120 rows" in output
    assert "WRONG" not in output
    assert not alive(status.pid)
    assert read_status(checkout.home / "server" / "pg") is None


def test_behind_a_private_folder_roots_data_lies_where_the_server_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(shop, "ROOT_CACHE", cache)
    private = [DemoFiles(tmp_path / name) for name in ("deleted", "kept")]
    for files in private:
        files.home.mkdir(parents=True)
        files.root.chmod(0o700)
        data = shop._server_folder(files)
        assert data.parent.parent == cache
        assert data == shop._server_folder(files)
    deleted, kept = ((files.home / "server").resolve() for files in private)
    shutil.rmtree(private[0].root)
    other = DemoFiles(tmp_path / "other")
    other.home.mkdir(parents=True)
    other.root.chmod(0o700)
    shop._server_folder(other)
    assert not deleted.exists()
    assert kept.exists()


def test_interrupted_it_stops_its_server_and_says_how_to_go_on(checkout: DemoFiles) -> None:
    process = start(checkout)
    while (status := read_status(checkout.home / "server" / "pg")) is None or not status.ready:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip().endswith("Stopped. Run it again to go on.")
    assert not alive(status.pid)


def test_the_check_sees_a_row_that_is_twice_and_one_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "rivet.yaml").write_text(
        "source: {type: postgres, url_env: NOT_READ}\n"
        "exports: [{name: t, table: t, format: parquet, destination: {type: local, path: out}}]\n"
    )
    (export,) = load_config(tmp_path / "rivet.yaml").exports
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "manifest.json").write_text(
        '{"started_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:00:02Z", "row_count": 4}'
    )
    now = datetime(2025, 1, 1, tzinfo=UTC)
    pq.write_table(pa.table({"id": [1, 2, 3]}), folder / "a.parquet")
    assert check(export, 3, now).ok
    assert check(export, 3, now).rows_per_second == 2
    assert not check(export, 3, datetime(2027, 1, 1, tzinfo=UTC)).fresh
    assert not check(export, 4, now).ok
    pq.write_table(pa.table({"id": [3]}), folder / "b.parquet")
    twice = check(export, 4, now)
    assert (twice.rows, twice.keys, twice.ok) == (4, 3, False)
    text = report([twice], {"t": Left("run", 2, 5)}, folder, 1.0)
    assert "WRONG: 3 keys, the table has 4" in text
    assert "t was resumed: 2 of 5 units" in text


def test_a_bar_is_redrawn_and_never_moves_back() -> None:
    stream = Terminal()
    with Progress(stream) as progress:
        progress.update(0.5, "exporting", "50 of 100 rows")
        progress.update(0.2, "exporting")
    drawn = stream.getvalue().split("\r\x1b[K")
    assert len(drawn) == 4  # nothing before the first, and the last clears the line
    assert all(" 50%  exporting" in line for line in drawn[1:3])
    assert "\n" not in stream.getvalue()


def test_without_a_terminal_each_step_is_one_line() -> None:
    stream = io.StringIO()
    with Progress(stream) as progress:
        progress.update(0.1, "loading")
        progress.update(0.2, "loading", "detail")
        progress.update(0.3, "exporting")
    assert [line.split("] ")[1] for line in stream.getvalue().splitlines()] == ["loading", "exporting"]


def test_a_script_is_cut_at_its_titles() -> None:
    assert statements("-- intro\n--- a\nSELECT 1;\n--- b c\nSELECT 2; -- not a title\n") == [
        ("a", "\nSELECT 1;\n"),
        ("b c", "\nSELECT 2; -- not a title\n"),
    ]
