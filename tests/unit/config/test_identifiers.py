"""Names of tables and columns: exact, or in double quotes as in SQL."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivet_dagster.config.identifiers import column_key, column_name, table_parts
from rivet_dagster.engine.sources.postgres.quote import quote_ident
from tests.unit.config.cases import config, load, refused

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@given(NAMES, NAMES)
def test_whatever_is_quoted_comes_back(schema: str, name: str) -> None:
    assert table_parts(quote_ident(name)) == (name,)
    assert table_parts(f"{quote_ident(schema)}.{quote_ident(name)}") == (schema, name)
    assert column_name(quote_ident(name)) == name
    assert column_key(quote_ident(name)) == ((), name)
    assert column_key(f"{quote_ident(schema)}.{quote_ident(name)}") == ((schema,), name)


@given(NAMES)
def test_a_column_without_quotes_around_it_is_exact(name: str) -> None:
    if not (len(name) > 2 and name[0] == name[-1] == '"'):
        assert column_name(name) == name


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Orders", ("Orders",)),  # nothing is folded
        ("public.Orders", ("public", "Orders")),
        ('public."Odd.Name"', ("public", "Odd.Name")),
        ('"a.b"."c"', ("a.b", "c")),
        ('"we""ird 🚰"', ('we"ird 🚰',)),
        ("naïve.таблица", ("naïve", "таблица")),
        ("_x$1", ("_x$1",)),
    ],
)
def test_a_table_is_parts_between_dots(text: str, parts: tuple[str, ...]) -> None:
    assert table_parts(text) == parts
    *schema, table = parts
    (export,) = load(config(f"table: '{text}'", form="")).exports
    assert export.relation == (schema[0] if schema else None, table)


@pytest.mark.parametrize(
    "text", ["", ".", "a.", ".a", "a..b", "a b", "1a", '""', '"a', 'a"b"', '"a"b', "a.b.c"]
)
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="table"):
        table_parts(text)


def test_columns_of_every_key_may_be_quoted() -> None:
    lines = """
mode: chunked
chunk_by_key: ['"a.b"', c d]
columns: {'"a.b"': text, 't."x y"': json, 'x y': text}
value_policy: {'"a.b"': null}
quality: {unique_columns: ['"a.b"'], null_ratio_max: {'"c d"': 0.5}}
meta_columns: {row_hash: ['"a.b"']}
"""
    (export,) = load(config(lines)).exports
    assert export.key_columns == ("a.b", "c d")
    assert export.column_types == {"a.b": "text", "x y": "json"}
    assert export.value_policies == {"a.b": "null"}
    assert export.quality is not None
    assert export.quality.unique_columns == ("a.b",)
    assert export.quality.null_ratio_max == {"c d": 0.5}
    assert export.meta_columns.row_hash == ("a.b",)


def test_a_column_with_a_dot_is_not_taken_for_a_table() -> None:
    error = refused(config('columns: {"a.b": text}'))
    assert "does not read a table a" in str(error)
    assert "quoted" in str(error)
