"""Every type as a key that a table is cut by and as a cursor: each row once, or a refusal by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow.parquet as pq
import pytest

from rivet_dagster.config import load_config
from rivet_dagster.engine.errors import ConfigError
from rivet_dagster.engine.run.engine import Engine
from tests.golden.postgres_values import CONTRIB, SCALARS, SETUP, Sample
from tests.golden.random_values import VARIANTS, drawn, strategy
from tests.golden.test_random_rows import ask, unfit
from tests.services.postgres import TestDatabase, TestServer, database
from tests.services.rivet_cli import write_config

_LIST: Final = Sample("int2[]", "list<item: int16>", ("{1}", "{}"))
#: One type of each kind, of those that every server has.
TYPES: Final = {
    s.type: s for s in (*SCALARS, _LIST) if not VARIANTS.fullmatch(s.type) and s.extension in {None, *CONTRIB}
}
_ENDLESS: Final = ("NaN", "Infinity", "-Infinity", "infinity", "-infinity", "inf", "-inf", "nan")
#: An order that no ``<`` stands for, also through a domain; a literal that needs its type's name; and a text
#: that is no oid.
_NOT_COMPARED: Final = ("hstore", "pair", "nested", "two", "feeling", "regclass")
SHAPES: Final = ("lseg", "path", "polygon", "txid_snapshot")
REGISTRY: Final = tuple(
    f"reg{name}"
    for name in (
        *("collation", "config", "dictionary", "namespace", "oper", "operator", "proc", "procedure"),
        *("role", "type"),
    )
)
PSEUDO: Final = {
    "record": "SELECT 1 AS n, ROW(1, 2) AS c",
    "anyarray": "SELECT 1 AS n, most_common_vals AS c FROM pg_catalog.pg_stats",
}
#: Rows of a date that is not over wait for it.
_PAST: Final = "c < current_date - 1"


@pytest.fixture(scope="module")
def db(pg: TestServer) -> Iterator[TestDatabase]:
    with database(pg) as fresh:
        fresh.execute(*(f"CREATE EXTENSION {name}" for name in CONTRIB), *SETUP)
        yield fresh


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One state for all exports, whose names differ."""
    return tmp_path_factory.mktemp("keys")


def table(db: TestDatabase, sample: Sample) -> str | None:
    """``t`` of (n, c) with different values in c, unique when the type has an order; else why it has none."""
    with db.connect() as connection:
        if sample.type == "xml" and ask(connection, "SELECT pg_input_is_valid('<a/>', 'xml')") != [(True,)]:
            pytest.skip("this server was built without libxml, so it has no xml values")
        valid = "SELECT DISTINCT v FROM unnest(%s::text[]) v WHERE pg_input_is_valid(v, %s) AND v <> ALL(%s)"
        values = ask(connection, valid, drawn(strategy(sample), 48, 7), sample.type, list(_ENDLESS))
        connection.execute("DROP TABLE IF EXISTS t")
        connection.execute(f"CREATE TABLE t (n serial, c {sample.type})".encode())
        with connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO t (c) VALUES (%s::text::{sample.type})".encode(), values)
        if kinds := unfit(sample):
            connection.execute(
                f"DELETE FROM t WHERE {kinds.replace('v ', 'c ').replace('(v)', '(c)')}".encode()
            )
        try:
            connection.execute("SELECT FROM t ORDER BY c")
            connection.execute(
                "DELETE FROM t USING (SELECT n, row_number() OVER (PARTITION BY c ORDER BY n) AS r FROM t) u"
                " WHERE t.n = u.n AND r > 1"
            )
            connection.execute("CREATE UNIQUE INDEX ON t (c); ALTER TABLE t ALTER c SET NOT NULL")
        except (psycopg.errors.UndefinedObject, psycopg.errors.UndefinedFunction) as error:
            return str(error)
        connection.execute("ANALYZE t")
    return None


def number(sample: Sample) -> int:
    return list(TYPES).index(sample.type)


def run(db: TestDatabase, root: Path, name: str, **keys: Any) -> Counter[int]:
    """How often each n is in the folder after a run."""
    entry = {"name": name, "format": "parquet", **({} if "query" in keys else {"table": "t"}), **keys}
    entry["destination"] = {"type": "local", "path": str(root / name)}
    config = write_config(root / f"{name}.yaml", db.url, [entry])
    with Engine(load_config(config), state_url=f"sqlite:{root}") as engine:
        with engine.session(name, holder="test") as session:
            session.plan()
            list(session.execute())
            session.finalize()
        assert engine.reconcile(name).status == "match"
    parts = [pq.ParquetFile(part).read(["n"]) for part in (root / name).glob("*.parquet")]
    return Counter(n for part in parts for n in part.column("n").to_pylist())


def rows(db: TestDatabase, where: str = "TRUE") -> Counter[int]:
    with db.connect() as connection:
        return Counter(n for (n,) in ask(connection, f"SELECT n FROM t WHERE {where}"))


@pytest.mark.parametrize("sample", TYPES.values(), ids=TYPES)
def test_every_type_as_a_chunk_key(db: TestDatabase, root: Path, sample: Sample) -> None:
    none = table(db, sample) or sample.type in _NOT_COMPARED
    keyset = {"mode": "chunked", "chunk_by_key": "c", "chunk_size": 9}
    dense = {"mode": "chunked", "chunk_column": "c", "chunk_dense": True, "chunk_size": 9}
    if none:
        for name, keys in (("keyset", keyset), ("dense", dense)):
            with pytest.raises(ConfigError) as caught:
                run(db, root, f"{name}{number(sample)}", **keys)
            assert caught.value.code == "RIVET_CONFIG_CHUNK_KEY_UNSUITABLE"
        return
    assert run(db, root, f"keyset{number(sample)}", **keyset, parallel=2) == rows(db)
    db.execute(
        "DO $$ DECLARE i text; BEGIN SELECT indexrelid::regclass INTO i FROM pg_index"
        " WHERE indrelid = 't'::regclass; EXECUTE 'DROP INDEX ' || i; END $$",
        "ALTER TABLE t ALTER c DROP NOT NULL",
        "INSERT INTO t (c) SELECT c FROM t UNION ALL SELECT NULL",
    )
    assert run(db, root, f"dense{number(sample)}", **dense, parallel=2) == rows(db)


@pytest.mark.parametrize("sample", TYPES.values(), ids=TYPES)
def test_every_type_as_a_cursor(db: TestDatabase, root: Path, sample: Sample) -> None:
    none = table(db, sample) or sample.type in _NOT_COMPARED
    keys = {"mode": "incremental", "cursor_column": "c"}
    if none:
        with pytest.raises(ConfigError) as caught:
            run(db, root, f"cursor{number(sample)}", **keys)
        assert caught.value.field == "cursor_column"
        return
    if sample.type == "date":
        db.execute(f"DELETE FROM t WHERE NOT {_PAST}")
    db.execute("CREATE TABLE later AS SELECT * FROM t ORDER BY c OFFSET (SELECT (count(*) + 1) / 2 FROM t)")
    try:
        db.execute("DELETE FROM t WHERE n IN (SELECT n FROM later)")
        assert run(db, root, f"cursor{number(sample)}", **keys) == rows(db)
        db.execute("INSERT INTO t SELECT * FROM later")
        assert run(db, root, f"cursor{number(sample)}", **keys) == rows(db)
    finally:
        db.execute("DROP TABLE later")


@pytest.mark.parametrize("kind", [*SHAPES, *REGISTRY, *PSEUDO])
def test_what_has_no_order_is_refused(db: TestDatabase, root: Path, kind: str) -> None:
    db.execute("DROP TABLE IF EXISTS t", f"CREATE TABLE t (n serial, c {'text' if kind in PSEUDO else kind})")
    source = {"query": PSEUDO[kind]} if kind in PSEUDO else {}
    ways = {"dense": {"mode": "chunked", "chunk_column": "c", "chunk_dense": True}}
    ways["cursor"] = {"mode": "incremental", "cursor_column": "c"}
    if kind in REGISTRY:
        db.execute("ALTER TABLE t ALTER c SET NOT NULL", "CREATE UNIQUE INDEX ON t (c)")
    if not source:
        ways["keyset"] = {"mode": "chunked", "chunk_by_key": "c"}
    for name, keys in ways.items():
        with pytest.raises(ConfigError) as caught:
            run(db, root, f"{name}_of_{kind}", **source, **keys)
        assert "no order" in caught.value.message or (name == "keyset" and kind in SHAPES)


def test_keys_of_an_extension_are_compared_as_their_index_compares(db: TestDatabase, root: Path) -> None:
    """As text all capitals come before ``a``; the index of a citext has them between the small letters."""
    db.execute(
        "DROP TABLE IF EXISTS t",
        "CREATE TABLE t (n serial, c citext PRIMARY KEY)",
        "INSERT INTO t (c) SELECT chr(CASE WHEN g % 2 = 0 THEN 65 ELSE 97 END + g % 26) || g"
        " FROM generate_series(0, 155) g",
        "ANALYZE t",
    )
    chunked = {"mode": "chunked", "chunk_size": 10}
    assert run(db, root, "citext_keyset", chunk_by_key="c", **chunked, parallel=2) == rows(db)
    assert run(db, root, "citext_dense", chunk_column="c", chunk_dense=True, **chunked) == rows(db)
    query = {"query": "SELECT * FROM public.t", "chunk_column": "c", "chunk_dense": True}
    assert run(db, root, "citext_query", **query, **chunked) == rows(db)
    db.execute("CREATE TABLE later AS SELECT * FROM t WHERE c > 'm'", "DELETE FROM t WHERE c > 'm'")
    grows = {"mode": "incremental", "cursor_column": "c"}
    assert run(db, root, "citext_cursor", **grows) == rows(db)
    db.execute("INSERT INTO t SELECT * FROM later", "DROP TABLE later")
    assert run(db, root, "citext_cursor", **grows) == rows(db)
