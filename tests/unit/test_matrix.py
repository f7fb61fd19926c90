"""docs/matrix.yaml and the tests agree, and no mode and no type is left out of it."""

from __future__ import annotations

from typing import get_args

from rivet_dagster.config.export import Mode
from rivet_dagster.config.features import FEATURES
from rivet_dagster.engine.sources.postgres.types import PSEUDO
from rivet_dagster.engine.sources.postgres.types_doc import decisions
from tests import matrix
from tests.golden.postgres_values import SCALARS
from tests.live.modes.walk import MODES


def test_every_cell_names_tests_that_exist_or_says_why_not() -> None:
    assert matrix.problems() == []


def test_every_mode_has_a_row() -> None:
    """The walk's modes are the rows; each mode of the language that is built is among them."""
    modes, *_ = matrix.tables()
    assert list(modes.rows) == list(MODES)
    built = next(f.built for f in FEATURES if (f.section, f.key) == ("export", "mode"))
    assert set(built) == {way.keys["mode"] for way in MODES.values()} <= set(get_args(Mode))


def test_every_type_has_a_row() -> None:
    _, types, _ = matrix.tables()
    known = [name for name, _ in decisions()]
    assert list(types.rows) == [*known, "a domain", *PSEUDO]


def test_the_page_is_current() -> None:
    assert matrix.PAGE.read_text(encoding="utf-8") == matrix.render(), "run python -m tests.matrix"


def test_every_drawn_type_has_a_sample() -> None:
    """The random rows run mode by mode, so their parameters do not name the types."""
    _, types, _ = matrix.tables()
    node = "tests/golden/test_random_rows.py::test_files_hold_what_the_server_says"
    drawn = {row for (row, _), cell in types.cells.items() if node in cell.get("tests", ())}
    samples = {sample.type for sample in SCALARS}
    assert len(drawn) > 50
    assert [row for row in types.rows if row in drawn and not types.ids[row] & samples] == []


def test_a_test_covers_the_rows_that_its_parameters_name() -> None:
    modes, types, _ = matrix.tables()
    lock = "tests/live/postgres/test_bad_input_moving.py::test_a_lock_that_is_not_given"
    assert matrix.misses(modes, "query", lock) is None
    assert matrix.misses(modes, "keyset", lock) is None  # as "keys"
    assert matrix.misses(modes, "partition_full", lock) == f"{lock} does not run it"
    cursor = "tests/golden/test_postgres_keys.py::test_every_type_as_a_cursor"
    assert matrix.misses(types, "numeric(p,-s)", cursor) is None
    assert matrix.misses(types, "lseg", cursor) == f"{cursor} does not run it"
    # parameters that are no rows
    assert matrix.misses(modes, "days", "tests/live/modes/test_cuts.py::test_days") is None
    for wrong in ("tests/live/modes/test_cuts.py::test_no_such", "tests/live/modes/no_such.py::test_days"):
        assert matrix.misses(modes, "days", wrong) == f"there is no {wrong}"
