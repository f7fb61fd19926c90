"""Every type of PostgreSQL, read through COPY and the kernel, against the server's own text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from rivet_dagster.engine.errors import RefusalError
from rivet_dagster.engine.sources.postgres.catalog import describe_query
from rivet_dagster.engine.types.decision import Fidelity
from tests.golden.postgres_values import ARRAYS, EXTENSIONS, SCALARS, SETUP, WHOLE_ARRAYS, Sample
from tests.golden.read_back import Connection, pin, read_table, same, shown
from tests.services.postgres import database


@pytest.fixture(scope="module", params=["pg15", "pg17", "pg18"])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    with database(request.getfixturevalue(request.param)) as db, db.connect() as conn:
        for extension in EXTENSIONS:
            conn.execute(f"CREATE EXTENSION {extension}".encode())
        for statement in SETUP:
            conn.execute(statement.encode())
        # what the product pins must not depend on what the role or the server prefers
        for setting in (
            "TimeZone = 'Asia/Kolkata'",
            "DateStyle = 'SQL, DMY'",
            "IntervalStyle = 'sql_standard'",
            "extra_float_digits = -5",
            "bytea_output = 'escape'",
        ):
            conn.execute(f"ALTER DATABASE {db.name} SET {setting}".encode())
        with db.connect() as fresh:
            yield fresh


def _skip_before(connection: Connection, sample: Sample) -> None:
    if connection.info.server_version < sample.since * 10000:
        pytest.skip(f"{sample.type}: these values exist since PostgreSQL {sample.since}")
    if sample.type == "xml" and not _has_xml(connection):
        pytest.skip("this server was built without libxml, so it has no xml values")


def _has_xml(connection: Connection) -> bool:
    try:
        connection.execute("SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        return False
    return True


def _fill(connection: Connection, sample: Sample) -> None:
    connection.execute(
        f"DROP TABLE IF EXISTS sample; CREATE TABLE sample (id serial, c {sample.type})".encode()
    )
    with connection.transaction():
        pin(connection)
        connection.execute("SET LOCAL search_path = public, pg_catalog")
        with connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO sample (c) VALUES (%s::text::{sample.type})".encode(),
                [(v,) for v in (*sample.values, None)],
            )


def _expected(connection: Connection, query: str) -> list[Any]:
    with connection.transaction():
        pin(connection)
        connection.execute("SET LOCAL search_path = public, pg_catalog")
        return [row[0] for row in connection.execute(query.encode())]


def _check(connection: Connection, sample: Sample, query: str) -> None:
    columns, table = read_table(connection, "public", "sample")
    column = columns[1]
    assert str(column.arrow) == sample.arrow
    assert str(column.fidelity) == sample.fidelity
    assert (column.text_form is not None) == (sample.fidelity == "text")
    want, got = _expected(connection, query), shown(table.column("c"))
    assert len(got) == len(want) == len(sample.values) + 1
    wrong = [(w, g) for w, g in zip(want, got, strict=True) if not same(column.arrow, g, w)]
    assert not wrong


@pytest.mark.parametrize("sample", SCALARS, ids=lambda s: s.id)
def test_scalar(connection: Connection, sample: Sample) -> None:
    _skip_before(connection, sample)
    _fill(connection, sample)
    oracle = f"SELECT CASE WHEN v IS NOT DISTINCT FROM NULL THEN NULL ELSE {sample.oracle} END"
    if sample.type == "pair":  # (,) IS NULL holds for a row of NULLs
        oracle = f"SELECT CASE WHEN pg_column_size(v) IS NULL THEN NULL ELSE {sample.oracle} END"
    _check(connection, sample, f"{oracle} FROM (SELECT id, c AS v FROM sample) x ORDER BY id")


@pytest.mark.parametrize("sample", ARRAYS, ids=lambda s: s.id)
def test_array_is_a_list(connection: Connection, sample: Sample) -> None:
    _fill(connection, sample)
    element = f"CASE WHEN v IS NULL THEN NULL ELSE {sample.oracle} END"
    query = (
        f"SELECT CASE WHEN c IS NOT NULL THEN coalesce((SELECT array_agg({element} ORDER BY o) "
        "FROM (SELECT c[o] AS v, o FROM generate_subscripts(c, 1) AS o) e), '{}') END FROM sample ORDER BY id"
    )
    _check(connection, sample, query)


@pytest.mark.parametrize("sample", WHOLE_ARRAYS, ids=lambda s: s.id)
def test_array_of_several_dimensions_is_text(connection: Connection, sample: Sample) -> None:
    _fill(connection, sample)
    _check(
        connection,
        sample,
        f"SELECT CASE WHEN v IS NOT NULL THEN {sample.oracle} END "
        "FROM (SELECT id, c AS v FROM sample) x ORDER BY id",
    )


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("numeric(10,2)", "NaN"),
        ("numeric(10,2)[]", "{1,NaN}"),
        ("date", "infinity"),
        ("date", "-infinity"),
        ("timestamp", "infinity"),
        ("timestamptz", "-infinity"),
        ("timestamp", "294276-12-31 23:59:59"),
        ("time", "24:00:00"),
        ("int[]", "{{1,2},{3,4}}"),
        ("int[]", "[0:1]={1,2}"),
    ],
)
def test_value_without_a_form_is_refused_by_name(connection: Connection, kind: str, value: str) -> None:
    _fill(connection, Sample(kind, "", (value,)))
    other = psycopg.connect(connection.info.dsn, password=connection.info.password, autocommit=True)
    with contextlib.closing(other), pytest.raises(RefusalError) as caught:  # it stays inside its COPY
        read_table(other, "public", "sample")
    assert caught.value.code == "RIVET_SOURCE_VALUE_UNREPRESENTABLE"
    assert caught.value.field == "c"
    assert "'c'" in caught.value.message


def test_every_type_of_the_server_can_be_selected(connection: Connection) -> None:
    """pg_type of a real server: each type that a column can have gets a decision that COPY accepts."""
    names = [
        row[0]
        for row in connection.execute(
            "SELECT format_type(t.oid, NULL) FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem"
            " WHERE t.typtype IN ('b', 'e', 'd', 'r', 'm', 'c') AND t.typisdefined"
            " AND e.typtype IS DISTINCT FROM 'p' ORDER BY t.oid"
        )
    ]
    assert len(names) > 400
    failed = []
    for name in names:
        (column,) = describe_query(connection, f"SELECT NULL::{name} AS x")
        copy = f"COPY (SELECT {column.select} FROM (SELECT NULL::{name} AS x) q) TO STDOUT (FORMAT BINARY)"
        try:
            with connection.cursor().copy(copy.encode()) as stream:
                b"".join(bytes(block) for block in stream)
        except psycopg.Error as error:
            failed.append((name, str(error)))
        if column.fidelity is Fidelity.UNSUPPORTED:
            failed.append((name, "unsupported"))
    assert not failed
