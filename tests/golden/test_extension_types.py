"""Types of extensions that one server of the tests has: every path that a type can take."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow.parquet as pq
import pytest

from tests.conftest import without
from tests.golden.read_back import pin
from tests.live.modes.kit import Project
from tests.services.postgres import TestDatabase, TestServer, database

#: Type -> server, extension, values in the type's own order.
TYPES: Final = {
    "vector": ("pg18", "vector", [f"[{i},-2.5,3e-07]" for i in range(1, 41)]),
    "geometry (postgis)": ("pg15", "postgis", [f"SRID=4326;POINT({i} -2)" for i in range(1, 41)]),
    "geography (postgis)": ("pg15", "postgis", [f"SRID=4326;POINT({i} -2)" for i in range(1, 41)]),
}
KEYSET: Final[dict[str, Any]] = {"mode": "chunked", "chunk_by_key": "c", "chunk_size": 9}
DENSE: Final[dict[str, Any]] = {"mode": "chunked", "chunk_column": "c", "chunk_dense": True, "chunk_size": 9}


@pytest.fixture(params=TYPES)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Table ``t`` of (n, c, a): values of the type in c, unique, and lists of them with NULLs in a."""
    server_name, extension, values = TYPES[request.param]
    server: TestServer = request.getfixturevalue(server_name)
    kind = request.param.partition(" ")[0]
    with database(server) as db:
        with db.connect() as connection:
            found = connection.execute(
                "SELECT FROM pg_available_extensions WHERE name = %s", [extension]
            ).fetchone()
        if found is None:
            without("postgresql-15-postgis-3")
        db.execute(f"CREATE EXTENSION {extension}", f"CREATE TABLE t (n serial, c {kind}, a {kind}[])")
        with db.connect() as connection, connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO t (c, a) VALUES (%s::text::{kind}, ARRAY[%s::text::{kind}, NULL])".encode(),
                [(value, value) for value in values],
            )
        db.execute("CREATE UNIQUE INDEX ON t (c)", "ANALYZE t")
        yield Project(tmp_path, db)


def texts(db: TestDatabase, what: str) -> list[Any]:
    with db.connect() as connection, connection.transaction():
        pin(connection)
        connection.execute("SET LOCAL search_path = public, pg_catalog")
        return [value for (value,) in connection.execute(f"SELECT {what} FROM t ORDER BY n".encode())]


def test_both_formats_and_all_readers(project: Project) -> None:
    db = project.db
    db.execute("INSERT INTO t (c, a) VALUES (NULL, NULL)")
    project.run(mode="full")
    cells, lists = texts(db, "c::text"), texts(db, "(SELECT array_agg(e::text) FROM unnest(a) e)")
    (part,) = project.parts
    table = pq.ParquetFile(part).read().sort_by("n")
    assert table.column("c").to_pylist() == cells
    assert table.column("a").to_pylist() == lists
    read = duckdb.sql("SELECT c::text, a::text[] FROM read_parquet($p) ORDER BY n", params={"p": str(part)})
    assert read.fetchall() == list(zip(cells, lists, strict=True))
    assert project.reconciled("rows").status == "match"
    project.run(format="csv")
    (part,) = project.parts
    with part.open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["n"]))
    assert [row["c"] or None for row in rows] == cells
    assert [row["a"] or None for row in rows] == texts(db, "a::text[]::text")  # a list of texts
    assert project.reconcile() == "match"
    db.execute("UPDATE t SET c = NULL WHERE n = 3")
    assert project.reconcile() == "mismatch"


@pytest.mark.parametrize("keys", [KEYSET, DENSE], ids=["by key", "by rows"])
def test_as_a_chunk_key(project: Project, keys: dict[str, Any]) -> None:
    project.db.execute("ALTER TABLE t ALTER c SET NOT NULL")
    ran = project.run(**keys, parallel=2)
    assert len(ran.units) > 2
    assert project.rows("n") == Counter(range(1, 41))
    assert project.reconcile() == "match"


def test_as_a_cursor(project: Project) -> None:
    db = project.db
    db.execute("CREATE TABLE later AS SELECT * FROM t ORDER BY c OFFSET 20")
    db.execute("DELETE FROM t USING later l WHERE l.n = t.n")
    project.run(mode="incremental", cursor_column="c")
    db.execute("INSERT INTO t SELECT * FROM later")
    assert project.run().outcome.rows == 20
    assert project.rows("n") == Counter(range(1, 41))
