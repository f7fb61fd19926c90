"""What the catalog says about tables, on every version."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from rivet_dagster.engine.errors import RefusalError, UsageError
from rivet_dagster.engine.sources.postgres.catalog import (
    Relation,
    blocked_by_row_security,
    describe_table,
    server_facts,
)
from tests.services.postgres import TestDatabase

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def conn(every_db: TestDatabase) -> Iterator[Connection]:
    with every_db.connect() as connection:
        yield connection


@pytest.fixture
def conn17(db: TestDatabase) -> Iterator[Connection]:
    with db.connect() as connection:
        yield connection


def run(conn: Connection, script: str) -> None:
    conn.execute(script.encode())


def describe(conn: Connection, table: str, schema: str | None = "public") -> Relation:
    return describe_table(conn, schema, table)


def test_a_plain_table(conn: Connection) -> None:
    run(
        conn,
        "CREATE TABLE t (id bigint PRIMARY KEY, gone int, k int NOT NULL, n numeric(10,2), body text,"
        " twice bigint GENERATED ALWAYS AS (id * 2) STORED, num int GENERATED ALWAYS AS IDENTITY);"
        "ALTER TABLE t DROP COLUMN gone;"
        "INSERT INTO t SELECT g, g % 10, NULL, repeat(md5(g::text), 400) FROM generate_series(1, 1000) g;"
        "CREATE INDEX ON t (n, k); ANALYZE t",
    )
    found = describe(conn, "t")
    assert [c.name for c in found.columns] == ["id", "k", "n", "body", "twice", "num"]
    assert [c.nullable for c in found.columns] == [False, False, True, True, True, False]
    assert found.origins == {"twice": "generated", "num": "identity always"}
    assert (found.kind, found.schema, found.primary_key) == ("r", "public", ("id",))
    assert found.tuples == 1000
    assert found.indexed == {"id", "n"}
    assert found.in_order >= {"id"}
    assert "k" not in found.in_order
    (leaf,) = found.leaves
    blocks = conn.execute("SELECT pg_relation_size('t') / 8192, pg_table_size('t')").fetchone()
    assert (leaf.pages, leaf.bytes) == (found.pages, found.bytes) == blocks
    assert leaf.is_heap
    assert leaf.readable
    assert leaf.sql == 'ONLY "public"."t"'
    column = found.column("k")
    assert column is not None
    assert column.distinct == 10
    assert column.avg_width == 4
    identity = found.column("id")
    assert identity is not None
    assert identity.distinct == 1000  # pg_stats holds -1: a share of the rows
    assert found.can_select


def test_estimates_follow_the_size_before_the_first_analyze(conn: Connection) -> None:
    run(
        conn,
        "CREATE TABLE t (id int, word text); CREATE TABLE e (id int);"
        "INSERT INTO t SELECT n, n FROM generate_series(1, 10000) AS n",
    )
    found = describe(conn, "t")
    assert found.tuples is not None
    assert 4_000 < found.tuples < 20_000
    assert not found.leaves[0].analysed
    assert describe(conn, "e").tuples == 0  # no pages, no rows


def test_an_old_estimate_grows_with_the_table(conn: Connection) -> None:
    run(
        conn,
        "CREATE TABLE t WITH (autovacuum_enabled = off) AS SELECT generate_series(1, 100000) AS id;ANALYZE t",
    )
    run(conn, "INSERT INTO t SELECT generate_series(1, 300000)")
    assert describe(conn, "t").tuples == pytest.approx(400000, rel=0.1)


def test_only_whole_valid_unique_indexes_are_keys(conn: Connection) -> None:
    run(
        conn,
        "CREATE TABLE t (a int NOT NULL, b int NOT NULL, c int, d int NOT NULL, e text NOT NULL);"
        "CREATE UNIQUE INDEX plain ON t (a, b) INCLUDE (e); CREATE UNIQUE INDEX nullable ON t (c);"
        "CREATE UNIQUE INDEX partial ON t (b) WHERE b > 0; CREATE UNIQUE INDEX expr ON t (lower(e));"
        "CREATE INDEX nonunique ON t (d); CREATE INDEX partlead ON t (e) WHERE d > 0;"
        "CREATE INDEX h ON t USING hash (e);"
        "INSERT INTO t VALUES (1, 1, 1, 1, 'x'), (2, 2, 2, 1, 'y')",
    )
    with pytest.raises(psycopg.errors.UniqueViolation):  # leaves an invalid index behind
        conn.execute("CREATE UNIQUE INDEX CONCURRENTLY broken ON t (d)")
    found = describe(conn, "t")
    assert {(k.index, k.columns, k.not_null) for k in found.unique_keys} == {
        ("plain", ("a", "b"), True),
        ("nullable", ("c",), False),
    }
    assert found.indexed == {"a", "c", "d"}
    assert found.primary_key == ()


def test_a_not_null_constraint_that_was_never_validated_promises_nothing(conn: Connection) -> None:
    if conn.info.server_version < 180000:
        pytest.skip("NOT NULL NOT VALID exists since PostgreSQL 18")
    run(
        conn,
        "CREATE TABLE t (a int UNIQUE); INSERT INTO t VALUES (NULL); ALTER TABLE t ADD NOT NULL a NOT VALID",
    )
    found = describe(conn, "t")
    assert found.columns[0].nullable
    assert not found.unique_keys[0].not_null
    run(conn, "DELETE FROM t; ALTER TABLE t VALIDATE CONSTRAINT t_a_not_null")
    assert describe(conn, "t").unique_keys[0].not_null


def test_not_null_counts_where_every_row_keeps_it(conn: Connection) -> None:
    before_18 = conn.info.server_version < 180000
    run(
        conn,
        "CREATE TABLE up (a int NOT NULL, b int NOT NULL); CREATE TABLE down (c int) INHERITS (up);"
        + ("ALTER TABLE down ALTER b DROP NOT NULL;" if before_18 else
           "ALTER TABLE ONLY up ALTER b DROP NOT NULL; ALTER TABLE down ALTER b DROP NOT NULL;"
           "ALTER TABLE up ADD CONSTRAINT only_up NOT NULL b NO INHERIT;")
        + "CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;"
        "CREATE FOREIGN TABLE afar (a int NOT NULL) SERVER files OPTIONS (filename '/dev/null');"
        "CREATE TABLE p (a int NOT NULL) PARTITION BY RANGE (a);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9);"
        "CREATE VIEW v AS SELECT a FROM p",
    )  # fmt: skip
    assert [c.nullable for c in describe(conn, "up").columns] == [False, True]
    assert [c.nullable for c in describe(conn, "p").columns] == [False]
    assert [c.nullable for c in describe(conn, "p1").columns] == [False]
    assert [c.nullable for c in describe(conn, "v").columns] == [True]
    assert [c.nullable for c in describe(conn, "afar").columns] == [True]
    run(
        conn,
        "CREATE FOREIGN TABLE p2 PARTITION OF p FOR VALUES FROM (9) TO (20)"
        " SERVER files OPTIONS (filename '/dev/null')",
    )
    assert [c.nullable for c in describe(conn, "p").columns] == [True]


def test_a_partition_tree_gives_its_leaves(conn: Connection) -> None:
    run(
        conn,
        "CREATE TABLE p (id int, k int, PRIMARY KEY (id, k)) PARTITION BY RANGE (k);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY LIST (id);"
        "CREATE TABLE p21 PARTITION OF p2 DEFAULT;"
        "INSERT INTO p SELECT g, g % 20 FROM generate_series(1, 2000) g; ANALYZE p1, p21",
    )
    found = describe(conn, "p")
    assert [x.name for x in found.leaves] == ["p1", "p21"]
    assert found.pages == sum(x.pages for x in found.leaves) > 0
    assert found.tuples == 2000
    assert [k.columns for k in found.unique_keys] == [("id", "k")]
    assert not found.is_partition
    assert found.columns[1].distinct  # from the largest leaf: nobody analyses a parent by itself
    part = describe(conn, "p2")
    assert part.is_partition
    assert [x.name for x in part.leaves] == ["p21"]


def test_a_partition_that_is_leaving_belongs_to_its_parent_no_more(every_db: TestDatabase) -> None:
    with every_db.connect() as conn, every_db.connect() as reader, every_db.connect() as other:
        run(
            conn,
            "CREATE TABLE p (k int) PARTITION BY RANGE (k);"
            "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
            "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
        )
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM p")
        other.execute("SET statement_timeout = '300ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):  # waits for the reader after its first step
            other.execute("ALTER TABLE p DETACH PARTITION p1 CONCURRENTLY")
        reader.execute("COMMIT")
        run(conn, "INSERT INTO p1 VALUES (1)")
        assert [x.name for x in describe(conn, "p").leaves] == ["p2"]
        assert conn.execute("SELECT count(*) FROM p").fetchone() == (0,)


def test_a_unique_index_of_a_parent_says_nothing_about_its_children(conn: Connection) -> None:
    run(
        conn,
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (extra int) INHERITS (a);"
        "INSERT INTO a VALUES (1); INSERT INTO b VALUES (1, 2)",
    )
    found = describe(conn, "a")
    assert [x.sql for x in found.leaves] == ['ONLY "public"."a"', 'ONLY "public"."b"']
    assert found.unique_keys == ()
    assert found.primary_key == ("id",)
    run(conn, "DROP TABLE b")
    assert describe(conn, "a").unique_keys[0].primary


def test_views_have_no_pages_and_no_keys(conn: Connection) -> None:
    run(
        conn,
        "CREATE TABLE t (id int PRIMARY KEY, n numeric(5,1)); INSERT INTO t VALUES (1);"
        "CREATE VIEW v AS SELECT * FROM t; CREATE MATERIALIZED VIEW m AS SELECT * FROM t;"
        "CREATE UNIQUE INDEX ON m (id)",
    )
    view, stored = describe(conn, "v"), describe(conn, "m")
    assert (view.kind, view.pages, view.tuples, view.unique_keys) == ("v", 0, None, ())
    assert not view.leaves[0].is_heap
    assert str(view.columns[1].arrow) == "decimal128(5, 1)"
    assert (stored.kind, stored.pages) == ("m", 1)
    assert stored.leaves[0].is_heap
    assert not stored.unique_keys[0].not_null


def test_names_are_exact_and_similar_ones_are_offered(conn: Connection) -> None:
    run(
        conn,
        'CREATE SCHEMA s; CREATE TABLE "Orders" (i int);'
        "CREATE TABLE s.orders (i int); CREATE TABLE lines (i int)",
    )
    assert describe(conn, "Orders", None).schema == "public"
    assert describe(conn, "orders", "s").schema == "s"
    with pytest.raises(RefusalError) as caught:
        describe(conn, "orders", None)
    assert caught.value.code == "RIVET_SOURCE_TABLE_NOT_FOUND"
    assert '"public"."Orders", "s"."orders"' in caught.value.message
    with pytest.raises(RefusalError, match=r'"public"\."lines"'):
        describe(conn, "line")
    for missing in ("", "x" * 70, "a.b", "no%such", "'; DROP TABLE lines --"):
        with pytest.raises(RefusalError):
            describe(conn, missing)


def test_a_name_of_more_than_63_bytes_does_not_find_the_table_that_it_is_cut_to(conn: Connection) -> None:
    run(conn, f'CREATE TABLE "{"é" * 31}" (i int)')
    assert describe(conn, "é" * 31, None).name == "é" * 31
    with pytest.raises(RefusalError):
        describe(conn, "é" * 32, None)


@pytest.mark.parametrize(
    "name",
    ['We"ird %s Tab', "a'b", "$1", "{x}", "tab\there", "😀", "Select", "x" * 63, "back\\slash", " ", "a.b"],
)
def test_any_name(conn17: Connection, name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    run(
        conn17,
        f"CREATE SCHEMA {quoted}; CREATE TABLE {quoted}.{quoted} ({quoted} interval NOT NULL PRIMARY KEY)",
    )
    found = describe(conn17, name, name)
    assert (found.schema, found.name, found.columns[0].name) == (name, name, name)
    assert found.unique_keys[0].columns == (name,)
    run(conn17, f"INSERT INTO {found.sql} VALUES ('1 day')")
    assert conn17.execute(f"SELECT {found.columns[0].select} FROM {found.leaves[0].sql}".encode()).fetchall()


def test_what_is_no_table(conn: Connection) -> None:
    run(conn, "CREATE TABLE t (id serial PRIMARY KEY); CREATE TYPE c AS (a int); CREATE TABLE z ()")
    for name, what in (("t_pkey", "an index"), ("t_id_seq", "a sequence"), ("c", "a composite type")):
        with pytest.raises(UsageError, match=what):
            describe(conn, name)
    with pytest.raises(UsageError, match="no columns"):
        describe(conn, "z")


def test_1600_columns(conn: Connection) -> None:
    run(conn, f"CREATE TABLE w ({', '.join(f'c{i} interval' for i in range(1600))})")
    found = describe(conn, "w")
    assert len(found.columns) == 1600
    query = f"COPY (SELECT {', '.join(c.select for c in found.columns)} FROM w) TO STDOUT"
    with conn.cursor().copy(query.encode()) as copy:
        assert list(copy) == []


@pytest.fixture
def role(conn: Connection) -> Iterator[Connection]:
    """A connection whose current role is neither superuser nor owner of anything."""
    name = f"r{time.time_ns()}"
    run(conn, f"CREATE ROLE {name}; GRANT {name} TO postgres; SET ROLE {name}")
    yield conn
    run(conn, f"RESET ROLE; DROP OWNED BY {name}; DROP ROLE {name}")


def as_owner(conn: Connection, script: str) -> None:
    """Run as the superuser; ``@me`` stands for the role of the test."""
    row = conn.execute("SELECT current_user").fetchone()
    assert row is not None
    run(conn, f"RESET ROLE; {script.replace('@me', row[0])}; SET ROLE {row[0]}")


def test_privileges(role: Connection) -> None:
    as_owner(role, "CREATE TABLE t (a int, b int, c int); CREATE SCHEMA s; CREATE TABLE s.u (a int)")
    assert describe(role, "t").columns_denied == ("a", "b", "c")
    as_owner(role, "GRANT SELECT (a, c) ON t TO @me; GRANT SELECT ON s.u TO @me")
    found = describe(role, "t")
    assert found.columns_denied == ("b",)
    assert not found.can_select
    closed = describe(role, "u", "s")
    assert not closed.schema_usage
    assert not closed.can_select
    as_owner(role, "GRANT SELECT ON t TO @me; GRANT USAGE ON SCHEMA s TO @me")
    assert describe(role, "t").can_select
    assert describe(role, "u", "s").can_select


def test_leaves_may_be_closed_to_who_may_read_their_parent(role: Connection) -> None:
    as_owner(
        role,
        "CREATE TABLE p (k int) PARTITION BY RANGE (k); CREATE TABLE p1 PARTITION OF p DEFAULT;"
        "GRANT SELECT ON p TO @me",
    )
    found = describe(role, "p")
    assert found.can_select
    assert not found.leaves[0].readable
    as_owner(role, "GRANT SELECT (k) ON p1 TO @me")
    assert describe(role, "p").leaves[0].readable
    as_owner(role, "ALTER TABLE p1 ENABLE ROW LEVEL SECURITY")
    found = describe(role, "p")
    assert not found.rows_hidden  # through the parent only the parent's policies count
    assert not found.leaves[0].readable


def test_row_security(role: Connection) -> None:
    as_owner(role, "CREATE TABLE t (a int); INSERT INTO t VALUES (1); GRANT SELECT ON t TO @me")
    assert not describe(role, "t").rows_hidden
    as_owner(role, "ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    for setting in ("on", "off"):
        run(role, f"SET row_security = {setting}")
        found = describe(role, "t")
        assert found.row_security
        assert found.rows_hidden
        assert not found.owned
        assert not found.bypasses_row_security
    assert blocked_by_row_security(role, "SELECT * FROM t")
    as_owner(role, "ALTER ROLE @me BYPASSRLS")
    found = describe(role, "t")
    assert found.bypasses_row_security
    assert not found.rows_hidden
    as_owner(role, "ALTER ROLE @me NOBYPASSRLS; ALTER TABLE t OWNER TO @me")
    found = describe(role, "t")
    assert found.owned
    assert not found.rows_hidden
    as_owner(role, "ALTER TABLE t FORCE ROW LEVEL SECURITY")
    found = describe(role, "t")
    assert found.row_security_forced
    assert found.rows_hidden


def test_row_security_below_a_view_is_told_from_a_missing_privilege(role: Connection) -> None:
    as_owner(
        role,
        "CREATE TABLE t (a int); CREATE TABLE closed (a int); ALTER TABLE t ENABLE ROW LEVEL SECURITY;"
        "CREATE VIEW v WITH (security_invoker) AS SELECT * FROM t; GRANT SELECT ON t, v TO @me",
    )
    assert not describe(role, "v").rows_hidden  # the catalog's entry of the view cannot say
    assert blocked_by_row_security(role, "SELECT * FROM v")
    assert not blocked_by_row_security(role, "SELECT * FROM closed")
    run(role, "BEGIN")
    assert blocked_by_row_security(role, "SELECT * FROM v WHERE a = 1 -- %s")
    assert role.info.transaction_status is TransactionStatus.INTRANS
    run(role, "COMMIT")


def test_the_transaction_is_left_as_it_was(db: TestDatabase) -> None:
    with psycopg.connect(db.dsn) as conn:
        conn.execute("CREATE TABLE t (a int)")
        conn.commit()
        for before in (TransactionStatus.IDLE, TransactionStatus.INTRANS):
            if before is TransactionStatus.INTRANS:
                conn.execute("INSERT INTO t VALUES (1)")
            describe(conn, "t")
            assert conn.info.transaction_status is before
        conn.rollback()


def test_the_role_and_the_search_path_do_not_change_type_names(conn: Connection) -> None:
    run(
        conn,
        "CREATE SCHEMA s; CREATE TYPE s.mood AS ENUM ('a');"
        "CREATE TABLE t (m s.mood, a s.mood[], n numeric(4,2)[])",
    )
    want = ["s.mood", "s.mood[]", "numeric(4,2)[]"]
    assert [c.native_type for c in describe(conn, "t").columns] == want
    run(conn, "SET search_path = s, public")
    assert [c.native_type for c in describe(conn, "t").columns] == want
    run(conn, "SET search_path = pg_catalog")
    assert [c.native_type for c in describe(conn, "t").columns] == want


def test_server_facts(conn: Connection) -> None:
    facts = server_facts(conn)
    assert facts.version == conn.info.server_version
    assert (facts.in_recovery, facts.encoding, facts.block_size, facts.user) == (
        False,
        "UTF8",
        8192,
        "postgres",
    )
    assert facts.database == conn.info.dbname
    assert facts.system_identifier is not None
    run(
        conn,
        "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC; CREATE ROLE little; SET ROLE little",
    )
    try:
        assert server_facts(conn).system_identifier is None
    finally:
        run(conn, "RESET ROLE; DROP ROLE little")


def test_it_is_fast_and_one_statement(conn17: Connection) -> None:
    run(conn17, "CREATE TABLE p (k int) PARTITION BY RANGE (k)")
    parts = (f"CREATE TABLE p{i} PARTITION OF p FOR VALUES FROM ({i}) TO ({i + 1})" for i in range(300))
    run(conn17, ";".join(parts))
    facts = server_facts(conn17)
    describe_table(conn17, "public", "p", server=facts)
    started = time.perf_counter()
    found = describe_table(conn17, "public", "p", server=facts)
    assert time.perf_counter() - started < 1
    assert len(found.leaves) == 300
