"""Progress: a bar on a terminal, plain lines where there is none."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from rivet_dagster.cli.progress import Progress
from tests.live.cli.conftest import Shell

EXPORT = (
    "  - {name: things, table: things, mode: chunked, chunk_column: id, chunk_size: 100, "
    'format: parquet, destination: {type: local, path: "./out/{export}"}}\n'
)


@pytest.fixture
def shop(sh: Shell) -> Shell:
    sh.db.execute(
        "CREATE TABLE things AS SELECT g AS id FROM generate_series(1, 350) g",
        "ALTER TABLE things ADD PRIMARY KEY (id)",
    )
    sh.write(EXPORT)
    return sh


def on_terminal(sh: Shell, *args: str) -> tuple[int, str]:
    """Exit code and stderr of a run whose stderr is a terminal."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "TERM": "xterm"}
    command = [sys.executable, "-m", "rivet_dagster.cli", *args]
    with subprocess.Popen(
        command, cwd=sh.root, env=environment, stdout=subprocess.DEVNULL, stderr=theirs
    ) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            seen += piece
    os.close(ours)
    return process.returncode, seen.decode()


def test_a_terminal_gets_a_bar(shop: Shell) -> None:
    code, text = on_terminal(shop, "run")
    assert code == 0
    assert "4/4" in text
    assert "350 rows" in text
    assert "\r" in text


def test_init_says_which_table_it_looks_at(shop: Shell) -> None:
    code, text = on_terminal(shop, "init", "-o", "other.yaml")
    assert (code, "looking at table 1 of 1" in text) == (0, True)
    assert text.endswith("\x1b[K")
    assert shop("init", "-o", "third.yaml").err == ""


def test_a_pipe_gets_no_control_characters(shop: Shell) -> None:
    done = shop("run")
    assert done.err == "things: 4 units, 4 ranges of id\n"
    assert "\r" not in done.out + done.err
    assert "\x1b" not in done.out + done.err


def test_json_is_quiet_on_a_terminal_too(shop: Shell) -> None:
    assert on_terminal(shop, "run", "--json") == (0, "")


def test_a_long_run_says_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with Progress("x", 100, clock=lambda: now) as progress:
        for second in range(0, 25):
            now = float(second)
            progress.unit(1000)
        progress.say("a note")
    assert capsys.readouterr().err.splitlines() == [
        "x: 11 of 100 units, 11,000 rows so far",
        "x: 21 of 100 units, 21,000 rows so far",
        "x: a note",
    ]
