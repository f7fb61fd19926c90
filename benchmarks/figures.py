"""Figures go into a document between two marker lines."""

from __future__ import annotations

from pathlib import Path


def put_between(document: Path, markers: tuple[str, str], text: str) -> None:
    """Replace what stands between two marker lines of ``document``."""
    before, rest = document.read_text().split(markers[0], 1)
    after = rest.split(markers[1], 1)[1]
    document.write_text(f"{before}{markers[0]}\n{text}\n{markers[1]}{after}")
