"""The runbook has an entry for each error code, and for nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from rivet_dagster.engine.errors import REGISTRY, Kind
from rivet_dagster.engine.verify.report import KINDS

PAGE: Final = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text(encoding="utf-8")
#: Kind of the registry -> the chapter of the page.
CHAPTERS: Final[dict[Kind, str]] = {
    "usage": "Config and calls",
    "environment": "Surroundings",
    "refusal": "Refusals",
    "integrity": "Data",
    "busy": "Another run",
    "transient": "Passing failures",
    "internal": "Defects",
}
PARTS: Final = ("What happened", "Look at", "Do")


def chapters() -> dict[str, dict[str, str]]:
    """Chapter -> code -> entry."""
    found = {}
    for chapter in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        title, _, text = chapter.partition("\n")
        entries = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
        found[title] = {code: body for code, _, body in (entry.partition("\n") for entry in entries)}
    return found


def test_every_code_has_one_entry_in_its_chapter_and_none_is_stale() -> None:
    written = [(title, code) for title, entries in chapters().items() for code in entries]
    assert sorted(written) == sorted((CHAPTERS[entry.kind], code) for code, entry in REGISTRY.items())
    assert len(re.findall(r"^### ", PAGE, flags=re.MULTILINE)) == len(REGISTRY), "a code stands there twice"


@pytest.mark.parametrize("code", REGISTRY)
def test_an_entry_says_what_happened_what_to_look_at_and_what_to_do(code: str) -> None:
    body = chapters()[CHAPTERS[REGISTRY[code].kind]][code]
    parts = dict(re.findall(r"^- \*\*(.+?)\*\*: (.+?)(?=^- \*\*|\Z)", body, flags=re.MULTILINE | re.DOTALL))
    assert tuple(parts) == PARTS
    assert all(len(text.strip()) > 10 for text in parts.values())


def test_every_finding_of_validate_is_listed_with_its_verdict() -> None:
    rows = re.findall(r"^\| `(RIVET_VERIFY_\w+)` \| (\w+) \| .+ \|$", PAGE, flags=re.MULTILINE)
    assert sorted(rows) == sorted((kind.code, kind.weight) for kind in KINDS.values())
