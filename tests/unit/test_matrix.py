"""docs/matrix.yaml and the tests agree, and no mode and no type is left out of it."""

from __future__ import annotations

from typing import get_args

from rivet_dagster.config.export import Mode
from rivet_dagster.config.features import FEATURES
from rivet_dagster.engine.sources.postgres.types import PSEUDO
from rivet_dagster.engine.sources.postgres.types_doc import decisions
from tests import matrix
from tests.live.modes.walk import MODES


def test_every_cell_names_tests_that_exist_or_says_why_not() -> None:
    assert matrix.problems() == []


def test_every_mode_has_a_row() -> None:
    """The walk's modes are the rows; each mode of the language that is built is among them."""
    modes, _ = matrix.tables()
    assert list(modes.rows) == list(MODES)
    built = next(f.built for f in FEATURES if (f.section, f.key) == ("export", "mode"))
    assert set(built) == {way.keys["mode"] for way in MODES.values()} <= set(get_args(Mode))


def test_every_type_has_a_row() -> None:
    _, types = matrix.tables()
    known = [name for name, _ in decisions()]
    assert list(types.rows) == [*known, "a domain", *PSEUDO]


def test_the_page_is_current() -> None:
    assert matrix.PAGE.read_text(encoding="utf-8") == matrix.render(), "run python -m tests.matrix"


def test_what_does_not_exist_is_no_test() -> None:
    assert matrix.exists("tests/unit/test_matrix.py::test_every_type_has_a_row")
    for wrong in (
        "tests/unit/test_matrix.py::test_no_such",
        "tests/unit/no_such.py::test_every_type_has_a_row",
        "tests/matrix.py::render",
        "tests/unit/test_matrix.py",
    ):
        assert not matrix.exists(wrong)
