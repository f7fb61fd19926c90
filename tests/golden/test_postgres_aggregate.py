"""The server's statistics and Arrow's are equal on every type's edge values, and differ when rows do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from rivet_dagster.engine.sources.postgres.aggregate import aggregate_arrow, aggregate_sql
from rivet_dagster.engine.sources.postgres.catalog import describe_table
from rivet_dagster.engine.sources.postgres.kernel import Wire
from rivet_dagster.engine.sources.postgres.quote import quote_ident
from rivet_dagster.engine.sources.postgres.rowhash import hashable
from rivet_dagster.engine.types.aggregates import Aggregates
from rivet_dagster.engine.types.decision import Column
from tests.golden.postgres_values import ARRAYS, SCALARS, SETUP, WHOLE_ARRAYS, Sample
from tests.golden.read_back import Connection, create_extensions, pin, read_table
from tests.services.postgres import database

_ALL = tuple(s for s in (*SCALARS, *ARRAYS, *WHOLE_ARRAYS))


@pytest.fixture(scope="module", params=["pg15", "pg17", "pg18"])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A database with one table of every type: row n holds the n-th value of each sample."""
    with database(request.getfixturevalue(request.param)) as db, db.connect() as conn:
        create_extensions(conn)
        for statement in SETUP:
            conn.execute(statement.encode())
        version = conn.info.server_version // 10000
        brought = {None} | {row[0] for row in conn.execute("SELECT extname FROM pg_extension")}
        samples = [s for s in _ALL if s.since <= version and s.type != "xml" and s.extension in brought]
        columns = ", ".join(
            f'"c{i} {s.type[:20].replace(chr(34), "")}" {s.type}' for i, s in enumerate(samples)
        )
        conn.execute(f"CREATE TABLE every (id serial, {columns})".encode())
        _fill(conn, samples)
        yield conn


def _fill(conn: Connection, samples: list[Sample]) -> None:
    longest = max(len(s.values) for s in samples) + 1
    slots = ", ".join(f"%s::text::{s.type}" for s in samples)
    with conn.transaction():
        pin(conn)
        conn.execute("SET LOCAL search_path = public, pg_catalog")
        for row in range(longest):
            values = [s.values[row] if row < len(s.values) else None for s in samples]
            conn.execute(f"INSERT INTO every VALUES (DEFAULT, {slots})".encode(), values)


def _both(
    conn: Connection, where: str = "TRUE", digest: Sequence[str] | None = None
) -> tuple[Aggregates, Aggregates, tuple[Column, ...]]:
    columns, table = read_table(conn, "public", "every")
    digest = hashable(columns, "UTF8") if digest is None else digest
    query, plan = aggregate_sql(columns, f"FROM every WHERE {where}", digest=digest)
    with conn.transaction():
        pin(conn)
        conn.execute("SET LOCAL search_path = public, pg_catalog")
        row = conn.execute(query.encode()).fetchone()
    assert row is not None
    batches = table.to_batches(max_chunksize=3)
    return plan.read(row), aggregate_arrow(batches, columns, digest=digest), columns


def test_server_and_arrow_agree_on_every_type(connection: Connection) -> None:
    source, exported, columns = _both(connection)
    assert source.rows == exported.rows > 10
    for column in columns:
        assert source.columns[column.name].statistics == exported.columns[column.name].statistics
        assert len(source.columns[column.name].statistics) > 1


def test_server_and_arrow_agree_on_the_digest_of_rows_of_every_type(connection: Connection) -> None:
    source, exported, columns = _both(connection)
    names = hashable(columns, "UTF8")
    assert {c.name for c in columns} - set(names) == {c.name for c in columns if c.wire & Wire.LIST}
    if source.digest != exported.digest:
        pairs = {name: _both(connection, digest=[name])[:2] for name in names}
        assert [n for n, (one, other) in pairs.items() if one.digest != other.digest] == []
    assert source.digest == exported.digest != 0


def test_rows_that_exchange_cells_differ_in_their_digest_alone(changed: Connection) -> None:
    _, exported, columns = _both(changed)
    name = next(c.name for c in columns if c.name.endswith(" numeric(10,2)") or c.name.endswith(" int4"))
    column = quote_ident(name)
    changed.execute(
        f"UPDATE every t SET {column} = o.{column} FROM every o"
        " WHERE t.id IN (1, 2) AND o.id = 3 - t.id".encode()
    )
    source, _, _ = _both(changed)
    assert source.columns == exported.columns
    assert source.digest != exported.digest


def test_no_rows(connection: Connection) -> None:
    source, _, columns = _both(connection, "FALSE", digest=())
    empty = aggregate_arrow([], columns)
    assert source == empty
    _, table = read_table(connection, "public", "every")
    assert aggregate_arrow([table.to_batches()[0].slice(0, 0)], columns) == empty
    assert [found.digest for found in _both(connection, "FALSE")[:1]] == [0]


@pytest.fixture
def changed(connection: Connection) -> Iterator[Connection]:
    """What a test changes is undone."""
    with connection.transaction(force_rollback=True):
        yield connection


def test_a_column_that_came_out_as_null_differs(changed: Connection) -> None:
    _, exported, columns = _both(changed)
    names = [quote_ident(c.name) for c in columns if c.name != "id"]
    changed.execute(f"UPDATE every SET {', '.join(f'{n} = NULL' for n in names)} WHERE id = 1".encode())
    source, _, _ = _both(changed)
    assert source.rows == exported.rows
    for column in columns[1:]:
        differs = source.columns[column.name].differences(exported.columns[column.name])
        assert "nulls" in differs, column.name


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("smallint", "1"),
        ("oid", "7"),
        ("real", "1e-45"),
        ("double precision", "5e-324"),
        ("numeric(38,19)", "0.0000000000000000001"),
        ("date", "2020-02-02"),
        ("timestamp", "1969-12-31 23:59:59.999998"),
        ("timestamptz", "2024-01-01 00:00:00.000001+01"),
        ("time", "00:00:00.000001"),
        ("boolean", "false"),
        ("text", "x"),
        ("uuid", "00000000-0000-0000-0000-000000000001"),
        ("bytea", "\\x01"),
        ("int4[]", "{1}"),
    ],
)
def test_one_other_value_differs(changed: Connection, kind: str, other: str) -> None:
    _, exported, columns = _both(changed)
    column = next(c for c in columns if c.name.endswith(f" {kind}"))
    changed.execute(
        f"UPDATE every SET {quote_ident(column.name)} = %s::text::{kind} WHERE id = 1".encode(), [other]
    )
    source, _, _ = _both(changed)
    assert source.columns[column.name].differences(exported.columns[column.name])


def test_sums_beyond_64_bits_and_38_digits(connection: Connection) -> None:
    connection.execute(
        "DROP TABLE IF EXISTS big; CREATE TABLE big AS SELECT 9223372036854775807 AS i, "
        f"({'9' * 38})::numeric(38,0) AS n, '294246-12-31'::timestamp AS t FROM generate_series(1, 1000);"
        f"INSERT INTO big VALUES (-9223372036854775808, -{'9' * 38}, '4713-01-01 BC')"
    )
    columns = describe_table(connection, "public", "big").columns
    _, table = read_table(connection, "public", "big", order="i")
    query, plan = aggregate_sql(columns, "FROM big")
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    source = plan.read(row)
    assert source == aggregate_arrow(table.to_batches(max_chunksize=300), columns)
    assert source.columns["i"].statistics["sum"] == 999 * 9223372036854775807 - 1
    assert source.columns["n"].statistics["sum"] == 999 * (10**38 - 1)
