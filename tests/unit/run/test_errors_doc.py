"""The page of error codes is the registry."""

from __future__ import annotations

from pathlib import Path

from rivet_dagster.engine import errors_doc
from rivet_dagster.engine.errors import REGISTRY

ROOT = Path(__file__).parents[3]


def test_page_is_current() -> None:
    assert (ROOT / errors_doc.PAGE).read_text() == errors_doc.render()


def test_every_code_is_listed_once() -> None:
    assert sorted(r.code for r in errors_doc.rows()) == sorted(REGISTRY)
