"""What CONTEXT.md and the README promise about the tree."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from rivet_dagster.cli import VERBS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "rivet_dagster"
LONGEST = 420  # lines of a module; a longer one is a design question


def modules(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("layer", ["engine", "config"])
def test_the_engine_never_imports_dagster(layer: str) -> None:
    above = ("dagster", "rivet_dagster.assets", "rivet_dagster.definitions", "rivet_dagster.cli")
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules(PACKAGE / layer)
        for name in imports(path)
        if name in above or name.startswith(tuple(f"{part}." for part in above))
    ]
    assert found == []


def test_the_engine_runs_without_dagster() -> None:
    code = (
        "import sys\n"
        "import rivet_dagster.engine.run.engine, rivet_dagster.config, rivet_dagster.cli\n"
        "sys.exit('dagster' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_clients_of_stores_are_loaded_for_stores_alone() -> None:
    """They take a second, which a run on local disk has no use for."""
    code = (
        "import sys\n"
        "import rivet_dagster.engine.run.engine, rivet_dagster.engine.run.finalize, rivet_dagster.cli.run\n"
        "import rivet_dagster.engine.destinations.place\n"
        "found = {'gcsfs', 'adlfs', 'fsspec', 'aiohttp', 'botocore'} & sys.modules.keys()\n"
        "sys.exit(str(found) if found else 0)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_frozen_records_of_the_engine_are_structs() -> None:
    """ADR 0041. A field that is hidden from the repr needs a dataclass."""
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules(PACKAGE / "engine")
        for name, body in re.findall(
            r"^@dataclass\(frozen=True.*\)\nclass (\w+)((?:.*\n(?!\S))*)",
            path.read_text("utf-8"),
            re.MULTILINE,
        )
        if "repr=False" not in body
    ]
    assert found == []


def test_assets_hold_no_extraction() -> None:
    below = ("psycopg", "pyarrow")
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules(PACKAGE / "assets")
        for name in imports(path)
        if name.split(".")[0] in below
    ]
    assert found == []


def test_modules_are_short() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules(PACKAGE)}
    assert {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > LONGEST} == {}


def test_the_readmes_commands_exist() -> None:
    readme = text_of("README.md")
    targets = set(re.findall(r"^([a-z-]+):.*## ", text_of("Makefile"), flags=re.MULTILINE))
    named = [word for line in re.findall(r"`?make ([a-z -]+?)[`,.;)\n#]", readme) for word in line.split()]
    assert {"demo", "test", "ui"} <= set(named)
    assert set(named) & {"demo", "test", "ui", "help", "clean", "lint", "types"} <= targets
    named = re.findall(r"^\s*(?:export .* )?rivet-dagster ([a-z]+)", readme, flags=re.MULTILINE)
    assert set(named) <= set(VERBS)


def test_help_lists_every_target() -> None:
    makefile = text_of("Makefile")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)
    assert phony is not None
    listed = set(re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.MULTILINE))
    assert listed == set(phony[1].split())


def test_the_map_of_the_tree_is_complete() -> None:
    context = text_of("CONTEXT.md")
    folders = [path.name for path in (PACKAGE / "engine").iterdir() if (path / "__init__.py").exists()]
    folders += [path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()]
    folders += [path.name for path in (ROOT / "tests").iterdir() if (path / "__init__.py").exists()]
    assert [name for name in folders if f"{name}/" not in context] == []


def test_the_instance_is_the_documented_one() -> None:
    instance = yaml.safe_load(text_of("dagster_home/dagster.yaml"))
    assert instance["telemetry"] == {"enabled": False}
    assert instance["concurrency"]["pools"] == {"granularity": "op"}
    assert "scheme: postgresql+psycopg2" in text_of("dagster_home/dagster.yaml")


def test_a_second_make_demo_installs_nothing_until_the_sources_change(tmp_path: Path) -> None:
    def installs() -> bool:
        command = ["make", "--dry-run", "demo", f"VENV={tmp_path}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert "rivet_dagster.demo run" in done.stdout
        return "scripts/setup python demo" in done.stdout

    assert installs()
    stamp = tmp_path / ".demo"
    stamp.touch()
    assert not installs()
    os.utime(stamp, (0, 0))
    assert installs()
