"""Where a user's query ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivet_dagster.engine.sources.postgres.statement import query_body


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("SELECT 1", "SELECT 1"),
        ("SELECT 1;", "SELECT 1"),
        ("SELECT 1 ; ;\n", "SELECT 1"),
        ("SELECT 1; -- done", "SELECT 1"),
        ("SELECT 1; /* a /* nested; */ ; */ ;", "SELECT 1"),
        ("SELECT 1 -- no end; here", "SELECT 1 -- no end; here"),
        ("SELECT ';'", "SELECT ';'"),
        ("SELECT ';';", "SELECT ';'"),
        ("SELECT 'it''s;' ;", "SELECT 'it''s;'"),
        (r"SELECT E'\';' ;", r"SELECT E'\';'"),
        (r"SELECT 'a\' ;", r"SELECT 'a\'"),
        ('SELECT 1 AS ";" ;', 'SELECT 1 AS ";"'),
        ("SELECT $$;$$ ;", "SELECT $$;$$"),
        ("SELECT $x$;$$;$x$ ;", "SELECT $x$;$$;$x$"),
        ("SELECT a$x$b, ';' FROM t;", "SELECT a$x$b, ';' FROM t"),
        ("SELECT 1; SELECT 2", "SELECT 1; SELECT 2"),
        ("SELECT 1; SELECT 2;", "SELECT 1; SELECT 2"),
        ("SELECT '--' ;", "SELECT '--'"),
        ("SELECT 'unclosed ;", "SELECT 'unclosed"),
        ("SELECT $1::int;", "SELECT $1::int"),
        ("", ""),
    ],
)
def test_body(query: str, body: str) -> None:
    assert query_body(query) == body + "\n"


_PIECES = ["SELECT", " ", ";", "'", "''", '"', "--", "\n", "/*", "*/", "$$", "$a$", "\\", "E", "a", "1", "é"]


@given(st.lists(st.sampled_from(_PIECES)).map("".join))
def test_body_is_a_beginning_of_the_query_and_stable(query: str) -> None:
    body = query_body(query)
    assert body.endswith("\n")
    assert query.startswith(body[:-1])
    assert query_body(body) == body
