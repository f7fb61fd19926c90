"""docs/cli.md is what the commands say, and the shell completes them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from rivet_dagster.cli import VERBS, cli
from rivet_dagster.cli.docs import PAGE, render
from rivet_dagster.cli.shared import Verb
from rivet_dagster.engine.errors import EXIT_CODE

ROOT = Path(__file__).parents[2]


def commands() -> list[tuple[str, click.Command]]:
    context = click.Context(cli)
    found: list[tuple[str, click.Command]] = []
    for name in VERBS:
        command = cli.get_command(context, name)
        assert command is not None
        inner = command.commands.items() if isinstance(command, click.Group) else [("", command)]
        found += [(f"{name} {sub}".strip(), one) for sub, one in inner]
    return found


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == render()


@pytest.mark.parametrize(("name", "command"), commands(), ids=[name for name, _ in commands()])
def test_every_command_and_option_says_what_it_does(name: str, command: click.Command) -> None:
    assert isinstance(command, Verb), "it would not take --json-errors behind its name"
    assert f"\n### {name}\n\n{command.help}\n" in PAGE.read_text(encoding="utf-8")
    assert command.help
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, option.name
            assert option.help.endswith("."), option.name


def test_the_table_of_exit_codes_is_that_of_the_error_tree() -> None:
    rows = re.findall(r"^\| (\d) \| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert {kind: int(code) for code, kind in rows} == {k: c for k, c in EXIT_CODE.items() if c is not None}


@pytest.mark.parametrize("page", sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md"]), ids=lambda p: p.name)
def test_commands_in_the_docs_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    verbs = re.findall(r"(?:^|`|&& )\s*rivet-dagster ([a-z][a-z-]*)", text, flags=re.MULTILINE)
    assert set(verbs) - set(VERBS) == set()


def complete(words: str, folder: Path) -> list[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "_RIVET_DAGSTER_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    command = [sys.executable, "-m", "rivet_dagster.cli"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_the_shell_completes_verbs_options_and_exports(tmp_path: Path) -> None:
    (tmp_path / "rivet.yaml").write_text(
        "source: {type: postgres, url_env: U}\nexports:\n"
        + "".join(
            f"  - {{name: {name}, table: t, format: csv, destination: {{type: local, path: ./{name}}}}}\n"
            for name in ("orders", "other", "things")
        )
    )
    assert complete("rivet-dagster re", tmp_path) == ["reconcile", "repair", "reap"]
    assert complete("rivet-dagster plan --o", tmp_path) == ["--output"]
    assert complete("rivet-dagster run -e o", tmp_path) == ["orders", "other"]
