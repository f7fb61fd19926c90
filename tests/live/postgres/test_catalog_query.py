"""Queries as the server's parser sees them, and quoting against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.pq import TransactionStatus

from rivet_dagster.engine.errors import UsageError
from rivet_dagster.engine.sources.postgres.catalog import describe_query
from rivet_dagster.engine.sources.postgres.quote import quote_ident, quote_literal
from rivet_dagster.engine.sources.postgres.statement import query_body
from rivet_dagster.engine.types.decision import Fidelity
from tests.services.postgres import TestDatabase, TestServer

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def conn(db: TestDatabase) -> Iterator[Connection]:
    with db.connect() as connection:
        connection.execute("CREATE TABLE t (id int, n numeric(10,2), c char(3), d numeric)")
        yield connection


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("SELECT * FROM t", {"id": "int32", "n": "decimal128(10, 2)", "c": "string", "d": "string"}),
        ("SELECT n + 1 AS n FROM t;", {"n": "string"}),
        ("SELECT 1 AS a; -- the end", {"a": "int32"}),
        ("/* ; */ SELECT 'x' AS \"a;b\" -- ; no", {"a;b": "string"}),
        ("WITH x AS (SELECT 1::int8 AS y) SELECT * FROM x ORDER BY y", {"y": "int64"}),
        ("VALUES (1, 'a')", {"column1": "int32", "column2": "string"}),
        ("TABLE t", {"id": "int32", "n": "decimal128(10, 2)", "c": "string", "d": "string"}),
        ("SELECT ROW(1, 2) AS r, NULL AS u, '100%s' AS p", {"r": "string", "u": "string", "p": "string"}),
        ("SELECT id FROM t FOR SHARE", {"id": "int32"}),
        ("SELECT 1 AS é", {"é": "int32"}),
    ],
)
def test_columns(conn: Connection, query: str, columns: dict[str, str]) -> None:
    found = describe_query(conn, query)
    assert {c.name: str(c.arrow) for c in found} == columns
    read = f"SELECT {', '.join(c.select for c in found)} FROM ({query_body(query)}) AS q"
    assert conn.execute(read.encode()).description is not None


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT id, n AS id FROM t", "several columns named id"),
        ("SELECT 1, 2", r"several columns named \?column\?"),
        ("DELETE FROM t RETURNING id", "not one SELECT"),
        ("WITH d AS (DELETE FROM t RETURNING id) SELECT id FROM d", "not one SELECT"),
        ("SELECT * INTO u FROM t", "not one SELECT"),
        ("SHOW TimeZone", "not one SELECT"),
        ("CREATE TABLE u (i int)", "not one SELECT"),
        ("SELECT $1::int AS a", "parameters"),
        ("", "not one SELECT"),
        ("SELECT FROM t", "no columns"),
    ],
)
def test_what_is_no_plain_select_is_refused(conn: Connection, query: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        describe_query(conn, query)
    assert conn.info.transaction_status is TransactionStatus.IDLE
    assert conn.execute("SELECT to_regclass('u')").fetchone() == (None,)


@pytest.mark.parametrize(
    "query", ["SELECT 1 AS a; SELECT 2", "SELEC 1", "SELECT 1 AS a) x; DROP TABLE t; --"]
)
def test_the_server_refuses_what_is_no_statement(conn: Connection, query: str) -> None:
    with pytest.raises(psycopg.errors.SyntaxError):
        describe_query(conn, query)
    assert conn.execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_nothing_is_executed(conn: Connection) -> None:
    conn.execute("CREATE SEQUENCE s")
    describe_query(conn, "SELECT nextval('s') AS n, 1 / 0 AS z, pg_sleep(100)::text AS p")
    assert conn.execute("SELECT is_called FROM s").fetchone() == (False,)


def test_inside_a_transaction_a_refusal_harms_nothing(conn: Connection) -> None:
    conn.execute("BEGIN")
    with pytest.raises(UsageError):
        describe_query(conn, "DELETE FROM t RETURNING id")
    assert conn.info.transaction_status is TransactionStatus.INTRANS
    assert len(describe_query(conn, "SELECT id FROM t")) == 1
    conn.execute("COMMIT")


def test_a_pseudo_type_has_no_form(conn: Connection) -> None:
    (column,) = describe_query(conn, "SELECT pg_sleep(0) AS nothing")
    assert column.fidelity is Fidelity.UNSUPPORTED


_STORABLE = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@pytest.fixture(scope="module")
def quoting(pg: TestServer) -> Iterator[Connection]:
    with pg.connect() as connection:
        yield connection


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=_STORABLE, conforming=st.booleans())
def test_every_text_comes_back_from_its_literal(quoting: Connection, text: str, conforming: bool) -> None:
    quoting.execute(f"SET standard_conforming_strings = {'on' if conforming else 'off'}".encode())
    query = f"SELECT{quote_literal(text)}, length({quote_literal(text)})"
    assert quoting.execute(query.encode()).fetchone() == (text, len(text))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=_STORABLE.map(lambda s: s.encode()[:63].decode(errors="ignore")).filter(bool))
def test_every_name_comes_back_from_its_identifier(quoting: Connection, text: str) -> None:
    cursor = quoting.execute(
        f"SELECT {quote_ident(text)} FROM (SELECT 1 AS {quote_ident(text)}) AS x".encode()
    )
    assert cursor.description is not None
    assert cursor.description[0].name == text
    server = quoting.execute("SELECT quote_ident(%s)", [text]).fetchone()
    assert server is not None
    assert server[0] in (quote_ident(text), text)  # the server leaves the quotes out where it can


def test_every_character_of_unicode_survives(quoting: Connection) -> None:
    every = [chr(i) for i in range(1, 0x110000) if not 0xD800 <= i <= 0xDFFF]
    text = "".join(every)
    quoting.execute("SET standard_conforming_strings = on")
    assert quoting.execute(f"SELECT {quote_literal(text)}".encode()).fetchone() == (text,)
    for start in range(0, len(every), 15 * 1000):
        names = ["".join(every[i : i + 15]) for i in range(start, min(start + 15 * 1000, len(every)), 15)]
        cursor = quoting.execute(f"SELECT {', '.join(f'1 AS {quote_ident(n)}' for n in names)}".encode())
        assert [c.name for c in cursor.description or ()] == names
