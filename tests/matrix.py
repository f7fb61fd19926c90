"""docs/matrix.yaml: which test shows what, cell by cell; ``python -m tests.matrix`` writes docs/matrix.md."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "docs" / "matrix.yaml"
PAGE: Final = ROOT / "docs" / "matrix.md"
_STATES: Final = ("tests", "open", "none")


@dataclass(frozen=True, slots=True)
class Table:
    """rows and columns: name -> what it is. cells: (row, column) -> state -> tests or reasons.

    ids: row -> what it is called in the parameters of tests.
    """

    title: str
    rows: Mapping[str, str]
    columns: Mapping[str, str]
    ids: Mapping[str, frozenset[str]]
    cells: dict[tuple[str, str], dict[str, list[str]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def tables() -> tuple[Table, ...]:
    """Every table of the file; what is wrong with it stands in ``problems``."""
    body = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    return tuple(_table(title, entry) for title, entry in body.items())


def _table(title: str, entry: Mapping[str, Any]) -> Table:
    columns = {name: cell["what"] for name, cell in entry["columns"].items()}
    other = entry.get("ids", {})
    ids = {row: frozenset({row, *other.get(row, ())}) for row in entry["rows"]}
    made = Table(title, entry["rows"], columns, ids)
    made.problems.extend(f"ids: no row {row}" for row in other.keys() - ids.keys())
    groups = {**entry.get("groups", {}), "all": list(made.rows)}
    for column, cell in entry["columns"].items():
        made.problems.extend(f"{column}: no key {key}" for key in cell.keys() - {"what", *_STATES})
        for state in _STATES:
            for what, names in cell.get(state, {}).items():
                for row in _rows(made, groups, column, names):
                    made.cells.setdefault((row, column), {}).setdefault(state, []).append(what)
    return made


def _rows(table: Table, groups: Mapping[str, list[str]], column: str, names: Any) -> Iterator[str]:
    """Names of rows; a group may hold groups."""
    for name in [names] if isinstance(names, str) else names:
        if name in groups:
            yield from _rows(table, groups, column, groups[name])
        elif name in table.rows:
            yield name
        else:
            table.problems.append(f"{column}: no row {name}")


def problems() -> list[str]:
    """Everything that keeps the file from being true."""
    found = []
    for table in tables():
        found += [f"{table.title}: {text}" for text in table.problems]
        for row in table.rows:
            for column in table.columns:
                cell = table.cells.get((row, column), {})
                at = f"{table.title}: {row} x {column}"
                if not cell:
                    found.append(f"{at} is missing")
                if "none" in cell and len(cell) > 1:
                    found.append(f"{at} does not apply, and has tests or is open")
                found += [
                    f"{at}: {why}" for test in cell.get("tests", ()) if (why := misses(table, row, test))
                ]
                reasons = [*cell.get("open", ()), *cell.get("none", ())]
                found += [f"{at} has no reason" for reason in reasons if len(str(reason).split()) < 3]
    return sorted(set(found))


def misses(table: Table, row: str, node: str) -> str | None:
    """Why the test ``tests/...py::test_name`` does not cover the row; None when it does.

    A test whose parameters name rows covers those; any other test is taken at its word.
    """
    words = collected().get(node)
    if words is None:
        return f"there is no {node}"
    if words & table.ids[row] or not any(words & ids for ids in table.ids.values()):
        return None
    return f"{node} does not run it"


@cache
def collected() -> dict[str, frozenset[str]]:
    """Test -> its parameter ids, whole and word by word, of every file that the matrix names."""
    columns = [
        c
        for entry in yaml.safe_load(SOURCE.read_text(encoding="utf-8")).values()
        for c in entry["columns"].values()
    ]
    files = {node.partition("::")[0] for column in columns for node in column.get("tests", {})}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += sorted(file for file in files if (ROOT / file).is_file())
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, set[str]] = {}
    for line in done.stdout.splitlines():
        node, _, rest = line.partition("[")
        if "::" in node:
            whole = rest.removesuffix("]")
            found.setdefault(node, set()).update((whole, *whole.split("-")) if rest else ())
    return {node: frozenset(words) for node, words in found.items()}


def render() -> str:
    """docs/matrix.md as it must be: a mark for each cell, and why a cell is open or empty."""
    out = [
        "# What is tested",
        "",
        "Generated from [matrix.yaml](matrix.yaml), which names the tests, by `python -m tests.matrix`.",
        "**+** a test shows it, **o** open, **-** does not apply.",
    ]
    for table in tables():
        out += ["", f"## {table.title}", "", f"| | {' | '.join(table.columns)} |"]
        out.append("|---" * (len(table.columns) + 1) + "|")
        for row, what in table.rows.items():
            marks = [_mark(table.cells.get((row, column), {})) for column in table.columns]
            out.append(f"| {row}{f' ({what})' if what else ''} | {' | '.join(marks)} |")
        out += ["", *(f"- **{name}**: {what}" for name, what in table.columns.items())]
        out += ["", *_reasons(table)]
    return "\n".join(out).rstrip() + "\n"


def _mark(cell: Mapping[str, list[str]]) -> str:
    return "".join(mark for state, mark in (("tests", "+"), ("open", "o"), ("none", "-")) if state in cell)


def _reasons(table: Table) -> Iterator[str]:
    for state, word in (("open", "Open"), ("none", "Does not apply")):
        found: dict[tuple[str, str], list[str]] = {}
        for (row, column), cell in table.cells.items():
            for reason in cell.get(state, ()):
                found.setdefault((column, reason), []).append(row)
        for (column, reason), rows in found.items():
            listed = "every row" if len(rows) == len(table.rows) else ", ".join(rows)
            yield f"- {word}: *{column}* of {listed}: {reason}"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
