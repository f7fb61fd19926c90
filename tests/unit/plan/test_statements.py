"""The statements of a unit tile it: every page is read by exactly one."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivet_dagster.engine.errors import InternalError
from rivet_dagster.engine.plan import sizing
from rivet_dagster.engine.plan.units import UnitKind, WorkUnit
from rivet_dagster.engine.sources.postgres.predicate import (
    Origin,
    page_statement,
    page_tiles,
    relation_sql,
    statement_sql,
)

TABLE = Origin("public", "t")
_FROM = re.compile(r"ctid >= '\((\d+),0\)'::tid(?: AND ctid < '\((\d+),0\)'::tid)?$")


def read_ranges(unit: WorkUnit) -> list[tuple[int, int | None]]:
    found = []
    for first, last in page_tiles(unit.spec, lambda _: int(unit.spec["step"])):
        statement = page_statement(unit, "*", TABLE, first, last)
        match = _FROM.search(statement)
        assert match is not None, statement
        found.append((int(match[1]), None if match[2] is None else int(match[2])))
    return found


@given(st.integers(1, 20_000), st.integers(1, 2**36), st.integers(1, 2**30), st.integers(1, 2**28))
def test_pages_are_read_once(pages: int, size: int, unit_bytes: int, statement_bytes: int) -> None:
    unit_bytes = max(unit_bytes, size // 50 + 1)
    statement_bytes = max(statement_bytes, size // 200 + 1)
    step = sizing.page_step(pages, size, statement_bytes)
    ranges: list[tuple[int, int | None]] = []
    for index, (first, last) in enumerate(sizing.page_ranges(pages, size, unit_bytes)):
        spec = {"relation": ["public", "t"], "first": first, "last": last, "step": step, "pages": pages}
        ranges += read_ranges(WorkUnit(index, UnitKind.PAGES, "", spec))
    assert ranges[0][0] == 0
    assert ranges[-1][1] is None  # pages that are added while the run is planned
    for (_, end), (start, _) in itertools.pairwise(ranges):
        assert end == start
    assert all(end is None or start < end for start, end in ranges)
    assert all(end is None or end - start <= step for start, end in ranges)


HOSTILE = "x'; DROP TABLE t; --\\"


@pytest.mark.parametrize(
    ("kind", "spec", "condition"),
    [
        (UnitKind.WHOLE, {}, "TRUE"),
        (UnitKind.RANGE, {"column": 'a"b', "ge": "-5", "le": "7"}, '"a""b" BETWEEN -5 AND 7'),
        (UnitKind.NULLS, {"column": "a%b"}, '"a%b" IS NULL'),
        (UnitKind.KEY, {"column": "k", "gt": None, "le": None}, 'TRUE ORDER BY "k"'),
        (UnitKind.KEY, {"column": "k", "gt": "it's", "le": None}, "\"k\" > 'it''s' ORDER BY \"k\""),
        (
            UnitKind.KEY, {"column": "k", "gt": None, "le": HOSTILE},
            "\"k\" <=  E'x''; DROP TABLE t; --\\\\' ORDER BY \"k\"",
        ),
        (UnitKind.WINDOW, {"column": "k", "gt": "1", "le": "2"}, "\"k\" > '1' AND \"k\" <= '2'"),
    ],
)  # fmt: skip
def test_conditions(kind: UnitKind, spec: dict[str, object], condition: str) -> None:
    statement = statement_sql(WorkUnit(0, kind, "", spec), "a, b", TABLE)
    assert statement == f'SELECT a, b FROM "public"."t" WHERE {condition}'


def test_a_bound_that_is_no_integer_reaches_no_statement() -> None:
    unit = WorkUnit(0, UnitKind.RANGE, "", {"column": "k", "ge": "1; DROP TABLE t", "le": "2"})
    with pytest.raises((ValueError, InternalError)):
        statement_sql(unit, "*", TABLE)


def test_the_relation_of_a_unit() -> None:
    leaf = WorkUnit(0, UnitKind.PAGES, "", {"relation": ["s", 'p"1'], "first": 0, "last": None})
    whole = WorkUnit(0, UnitKind.WHOLE, "")
    assert relation_sql(leaf, TABLE) == '"s"."p""1"'
    assert relation_sql(whole, TABLE) == '"public"."t"'
    assert relation_sql(whole, Origin(query="SELECT 1")) == ""
