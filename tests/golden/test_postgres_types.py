"""Every type of PostgreSQL, read through COPY and the kernel, against the server's own text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest

from rivet_dagster.engine.errors import RefusalError, UsageError
from rivet_dagster.engine.sources.postgres.catalog import describe_query
from rivet_dagster.engine.sources.postgres.types import require_supported
from rivet_dagster.engine.types.decision import Fidelity
from tests.conftest import without
from tests.golden.postgres_values import ARRAYS, MADE, SCALARS, SETUP, WHOLE_ARRAYS, Sample
from tests.golden.read_back import Connection, create_extensions, pin, read_table, same, shown
from tests.services.postgres import database


@pytest.fixture(scope="module", params=["pg15", "pg17", "pg18"])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    with database(request.getfixturevalue(request.param)) as db, db.connect() as conn:
        create_extensions(conn)
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
    version = connection.info.server_version // 10000
    if version < sample.since:
        pytest.skip(f"{sample.type}: these values exist since PostgreSQL {sample.since}")
    if sample.type == "xml" and not _has_xml(connection):
        pytest.skip("this server was built without libxml, so it has no xml values")
    if sample.extension and not _has_extension(connection, sample.extension):
        if sample.extension == "postgis" and version == 15:
            without("postgresql-15-postgis-3")
        pytest.skip(f"this server does not have the extension {sample.extension}")


def _has_xml(connection: Connection) -> bool:
    return _takes(connection, "'<a/>'::xml")


def _takes(connection: Connection, expression: str) -> bool:
    """Whether the server has this value. Index keys and a type that was not compiled in have none."""
    try:
        connection.execute(f"SELECT {expression}".encode())
    except (psycopg.errors.FeatureNotSupported, psycopg.errors.InternalError_):
        return False
    except psycopg.Error:
        return True
    return True


def _has_extension(connection: Connection, name: str) -> bool:
    return connection.execute("SELECT FROM pg_extension WHERE extname = %s", [name]).fetchone() is not None


def _fill(connection: Connection, sample: Sample) -> None:
    connection.execute(
        f"DROP TABLE IF EXISTS sample; CREATE TABLE sample (id serial, c {sample.type})".encode()
    )
    with connection.transaction():
        pin(connection)
        connection.execute("SET LOCAL search_path = public, pg_catalog")
        if sample.made:
            for value in (*sample.values, "NULL"):
                connection.execute(f"INSERT INTO sample (c) VALUES ({value})".encode())
            return
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


@pytest.mark.parametrize("sample", [*SCALARS, *MADE], ids=lambda s: s.id)
def test_scalar(connection: Connection, sample: Sample) -> None:
    _skip_before(connection, sample)
    _fill(connection, sample)
    oracle = f"SELECT {_OR_NULL.format(sample.oracle)}"
    _check(connection, sample, f"{oracle} FROM (SELECT id, c AS v FROM sample) x ORDER BY id")


#: ``v IS NULL`` also holds for a row of NULLs.
_OR_NULL: Final = "CASE WHEN num_nulls(v) = 0 THEN {} END"


def test_every_scalar_in_an_array(connection: Connection) -> None:
    """All values of a sample in one array, a NULL among them; then an empty array, and NULL."""
    version = connection.info.server_version // 10000
    samples = [
        s
        for s in SCALARS
        if s.since <= version
        and (s.type != "xml" or _has_xml(connection))
        and (s.extension is None or _has_extension(connection, s.extension))
    ]
    columns = ", ".join(f"c{i} {s.type}[]" for i, s in enumerate(samples))
    slots = ", ".join(f"%s::text[]::{s.type}[]" for s in samples)
    full: list[list[str | None] | None] = [[*s.values, None] for s in samples]
    rows: list[list[list[str | None] | None]] = [full, [[]] * len(samples), [None] * len(samples)]
    connection.execute(f"DROP TABLE IF EXISTS arrays; CREATE TABLE arrays (id serial, {columns})".encode())
    with connection.transaction():
        pin(connection)
        connection.execute("SET LOCAL search_path = public, pg_catalog")
        for row in rows:
            connection.execute(f"INSERT INTO arrays VALUES (DEFAULT, {slots})".encode(), row)
    found, table = read_table(connection, "public", "arrays")
    wrong = []
    for i, (sample, column) in enumerate(zip(samples, found[1:], strict=True)):
        assert str(column.arrow) == f"list<item: {sample.arrow}>"
        assert str(column.fidelity) == sample.fidelity
        query = (
            f"SELECT array_agg({_OR_NULL.format(sample.oracle)} ORDER BY o) FROM"
            f" (SELECT c{i}[o] AS v, o FROM arrays, generate_subscripts(c{i}, 1) AS o WHERE id = 1) e"
        )
        want, got = [*_expected(connection, query), [], None], shown(table.column(f"c{i}"))
        if not all(same(column.arrow, g, w) for g, w in zip(got, want, strict=True)):
            wrong.append((sample.type, want, got))
    assert not wrong


@pytest.mark.parametrize("sample", ARRAYS, ids=lambda s: s.id)
def test_array_is_a_list(connection: Connection, sample: Sample) -> None:
    _fill(connection, sample)
    element = _OR_NULL.format(sample.oracle)
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


#: A type that a column can have, and what is known of it.
_TYPES: Final = """
SELECT t.oid, format_type(t.oid, NULL), t.typtype::text, e.typtype::text FROM pg_type t
LEFT JOIN pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
WHERE t.typisdefined ORDER BY t.oid"""


def test_no_type_of_the_server_is_unaccounted_for(connection: Connection) -> None:
    """pg_type of a real server: each type has a decision that COPY accepts, or is refused by name.

    Each base type, domain, range and multirange also has a sample above, unless it has no values.
    """
    sampled = {
        row[0]
        for s in (*SCALARS, *MADE, *ARRAYS, *WHOLE_ARRAYS)
        for row in connection.execute("SELECT to_regtype(%s)::oid::int", [s.type])
    }
    types = connection.execute(_TYPES.encode()).fetchall()
    assert len(types) > 600
    failed = []
    for oid, name, kind, element in types:
        if "p" in (kind, element):
            continue
        (column,) = describe_query(connection, f"SELECT NULL::{name} AS x")
        if fault := _copy_fault(connection, f"SELECT {column.select} FROM (SELECT NULL::{name} AS x) q"):
            failed.append((name, fault))
        if column.fidelity is Fidelity.UNSUPPORTED:
            failed.append((name, "unsupported"))
        if kind != "c" and not element and oid not in sampled and _takes(connection, f"''::{name}"):
            failed.append((name, "no sample"))
    assert not failed


def _copy_fault(connection: Connection, query: str) -> str | None:
    try:
        with connection.cursor().copy(f"COPY ({query}) TO STDOUT (FORMAT BINARY)".encode()) as stream:
            b"".join(bytes(block) for block in stream)
    except psycopg.Error as error:
        return str(error)
    return None


def test_pseudo_types_are_refused_by_name(connection: Connection) -> None:
    """A query can return them. A record and a statistic's array have a text; nothing else does."""
    taken = []
    for _, name, kind, element in connection.execute(_TYPES.encode()).fetchall():
        if "p" not in (kind, element):
            continue
        try:
            columns = describe_query(connection, f"SELECT NULL::{name} AS x")
        except psycopg.Error:
            continue  # not even the server has a value
        if columns[0].native_type == "text":  # "any" and the like: the server gives text
            continue
        if columns[0].fidelity is not Fidelity.UNSUPPORTED:
            taken.append(name)
            assert (
                _copy_fault(connection, f"SELECT {columns[0].select} FROM (SELECT NULL::{name} AS x) q")
                is None
            )
            continue
        with pytest.raises(UsageError, match=r"the query: .*: x \(") as caught:
            require_supported(columns, what="the query")
        assert (caught.value.code, caught.value.field) == ("RIVET_TYPE_UNSAFE_MAPPING", "x")
    assert sorted(taken) == ["anyarray", "record", "record[]"]
    assert describe_query(connection, "SELECT pg_sleep(0) AS x")[0].fidelity is Fidelity.UNSUPPORTED
