"""The pages of the docs as what they are made of: fenced blocks, and who runs each.

A block of ``bash`` or ``sql`` is run as it stands. One that cannot be is preceded by a comment with the
reason, ``<!-- not run: ... -->``. A block of ``yaml`` is a whole config (it begins with the block
``source:``), a list of exports (``- name:``), or a piece that no rule looks at. A first line ``# name.yaml``
makes a config the file ``name.yaml`` of the reader's folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Final

ROOT: Final = Path(__file__).parents[3]
PAGES: Final = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
#: Languages of blocks that hold no command. ``text`` is output or a picture.
SILENT: Final = ("yaml", "python", "text", "json", "ini", "toml")

_FENCE: Final = re.compile(
    r"(?:^[ ]*<!-- not run:(?P<reason>[^>]*)-->\n)?^[ ]*```(?P<language>\w*)\n(?P<text>.*?)^[ ]*```$",
    flags=re.DOTALL | re.MULTILINE,
)
_FILE: Final = re.compile(r"# ([\w.-]+\.yaml)\n")


@dataclass(frozen=True, slots=True)
class Block:
    """line: of the page, 1-based, where the text begins. reason: why it is not run; None: it is."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that a ``yaml`` block is to be written to."""
        named = _FILE.match(self.text)
        return named[1] if named and self.is_config else None

    @property
    def is_config(self) -> bool:
        body = re.sub(r"\A(?:[ ]*#.*\n|\n)+", "", self.text)
        return self.language == "yaml" and re.match(r"source:\s*[\n{]", body) is not None

    @property
    def is_exports(self) -> bool:
        body = re.sub(r"\A(?:[ ]*#.*\n|\n)+", "", self.text)
        return self.language == "yaml" and body.startswith("- name:")


def blocks(page: str) -> list[Block]:
    """All fenced blocks of ``page``, a path from the root of the tree, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        reason = match["reason"]
        line = text.count("\n", 0, match.start("text")) + 1
        found.append(
            Block(
                page,
                line,
                match["language"],
                dedent(match["text"]),
                None if reason is None else reason.strip(),
            )
        )
    return found
