"""Relations of every kind, names of every spelling, keys at their ends."""

from __future__ import annotations

import csv
import threading
from pathlib import Path
from typing import Any, Final

import pytest

from rivet_dagster.engine.plan.units import UnitKind
from rivet_dagster.engine.run.events import UnitCommitted
from rivet_dagster.engine.sources.postgres.quote import quote_ident, quote_relation
from tests.live.postgres.rig import EXPORT, Rig, source_rows
from tests.services.postgres import TestServer, database

FULL: Final[dict[str, Any]] = {"mode": "full"}


def units(rig: Rig) -> list[UnitCommitted]:
    return sorted((e for e in rig.events if isinstance(e, UnitCommitted)), key=lambda e: e.unit.index)


def kinds(rig: Rig) -> list[UnitKind]:
    return [e.unit.kind for e in units(rig)]


def assert_exact(rig: Rig, table: str = EXPORT) -> None:
    assert rig.read() == source_rows(rig.db, table=table)
    assert rig.engine.validate(EXPORT).passed


TREE: Final = (
    "CREATE TABLE things (id int, day date, word text) PARTITION BY RANGE (day)",
    "CREATE TABLE y1 PARTITION OF things FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')"
    " PARTITION BY HASH (id)",
    "CREATE TABLE y1a PARTITION OF y1 FOR VALUES WITH (MODULUS 2, REMAINDER 0) PARTITION BY LIST (word)",
    "CREATE TABLE y1b PARTITION OF y1 FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
    "CREATE TABLE y1ax PARTITION OF y1a FOR VALUES IN ('x')",
    "CREATE TABLE y1ad PARTITION OF y1a DEFAULT",
    "CREATE TABLE y2 (word text, extra int, day date, id int)",  # columns in another order, one dropped
    "ALTER TABLE y2 DROP COLUMN extra",
    "ALTER TABLE things ATTACH PARTITION y2 FOR VALUES FROM ('2027-01-01') TO ('2028-01-01')",
    "INSERT INTO things SELECT g, date '2026-01-01' + g, CASE WHEN g % 3 > 0 THEN 'x' END"
    " FROM generate_series(0, 699) g",
)


def test_a_tree_of_partitions(rig: Rig) -> None:
    rig.db.execute(*TREE)
    for options in (FULL, {"mode": "chunked", "chunk_column": "id", "chunk_size": 300}):
        assert rig.export(**options, parallel=2).run().rows == 700
        assert_exact(rig)
    rig.export().run()
    assert kinds(rig) == [UnitKind.PAGES] * 4
    assert rig.engine.reconcile(EXPORT).status == "match"


def test_children_by_inheritance(rig: Rig) -> None:
    rig.db.execute(
        "CREATE TABLE things (id int PRIMARY KEY, word text)",
        "CREATE TABLE child (more int) INHERITS (things)",
        "CREATE TABLE grandchild () INHERITS (child)",
        "INSERT INTO things SELECT g, 'p' FROM generate_series(1, 100) g",
        "INSERT INTO child SELECT g, 'c', 1 FROM generate_series(50, 150) g",  # ids that the parent has too
        "INSERT INTO grandchild SELECT g, 'g', 1 FROM generate_series(-10, 10) g",
    )
    for options in (FULL, {"mode": "chunked", "chunk_column": "id", "chunk_size": 70}):
        assert rig.export(**options).run().rows == 222
        assert_exact(rig)
    error = rig.export(mode="chunked", chunk_by_key="id").failure()
    assert error.code == "RIVET_CONFIG_CHUNK_KEY_UNSUITABLE"


def test_views_of_every_kind(rig: Rig) -> None:
    rig.db.execute(
        "CREATE TABLE base (id int PRIMARY KEY, word text)",
        "INSERT INTO base SELECT g, 'w' || g FROM generate_series(1, 500) g",
        "CREATE VIEW v AS SELECT * FROM base WHERE id % 2 = 0",
        "CREATE MATERIALIZED VIEW m AS SELECT * FROM base",
        "CREATE UNIQUE INDEX ON m (id)",
    )
    for table in ("v", "m"):
        rig.export(table).run()
        assert_exact(rig, table)
        assert kinds(rig) == [UnitKind.WHOLE if table == "v" else UnitKind.PAGES]
        rig.export(table, "chunked", chunk_column="id", chunk_size=100).run()
        assert_exact(rig, table)
    rig.db.execute("DELETE FROM base WHERE id < 100")
    rig.export("m").run(between=lambda: None)
    error = rig.failure(between=lambda: rig.db.execute("REFRESH MATERIALIZED VIEW m"))
    assert error.code == "RIVET_SOURCE_SNAPSHOT_LOST"
    rig.run()
    assert_exact(rig, "m")


def test_a_foreign_table(rig: Rig, pg15: TestServer) -> None:
    from psycopg.conninfo import conninfo_to_dict

    with database(pg15) as far:
        far.execute("CREATE TABLE far (id int, word text)")
        far.execute("INSERT INTO far SELECT g, 'w' || g FROM generate_series(1, 300) g")
        at = conninfo_to_dict(far.dsn)
        rig.db.execute(
            "CREATE EXTENSION postgres_fdw",
            f"CREATE SERVER s FOREIGN DATA WRAPPER postgres_fdw OPTIONS"
            f" (host '{at['host']}', port '{at['port']}', dbname '{far.name}')",
            f"CREATE USER MAPPING FOR postgres SERVER s OPTIONS (user 'postgres', password"
            f" '{at['password']}')",
            "CREATE FOREIGN TABLE things (id int, word text) SERVER s OPTIONS (table_name 'far')",
        )
        for options in (FULL, {"mode": "chunked", "chunk_column": "id", "chunk_size": 100}):
            assert rig.export(**options).run().rows == 300
            assert_exact(rig)


TEN: Final = "SELECT id, word FROM things WHERE id <= 10"
ODD_TEXTS: Final = (
    "VALUES (1, 'a;'), (2, '--b'), (3, $$/*$$), (4, E'\\';'), (5, NULL), (6,''), (7,'%s'), (8,'{x}'),"
    " (9,'$1'), (10,'\t')"
)
FEW: Final = "WITH few AS (SELECT * FROM things LIMIT 10) SELECT id, word FROM few ORDER BY id DESC"
#: (a query, the same without what comes after it)
QUERIES: Final = [
    (TEN, TEN),
    (f"{TEN} -- the first ten", TEN),
    (f"{TEN}; -- the first ten;", TEN),
    (f"{TEN} ;;\n\n/* a ; b */ ;\n", TEN),
    (FEW, FEW),
    (f"{ODD_TEXTS} ; ", ODD_TEXTS),
    ("TABLE things LIMIT 10", "TABLE things LIMIT 10"),
    ("/* /* */ ; */ TABLE things LIMIT 10;", "TABLE things LIMIT 10"),
]


@pytest.mark.parametrize(("query", "bare"), QUERIES)
@pytest.mark.parametrize("file", [False, True])
def test_queries(rig: Rig, query: str, bare: str, file: bool) -> None:
    rig.db.execute("CREATE TABLE things (id int, word text)")
    rig.db.execute("INSERT INTO things SELECT g, 'w' || g FROM generate_series(1, 50) g")
    if file:
        (rig.root / "q.sql").write_text(f"\ufeff{query}\n", encoding="utf-8")
        rig.configure({"query_file": "q.sql"})
    else:
        rig.configure({"query": query})
    assert rig.run().rows == 10
    with rig.db.connect() as connection:
        assert rig.read() == sorted(connection.execute(bare.encode()).fetchall(), key=repr)


def test_queries_in_ranges(rig: Rig) -> None:
    rig.db.execute("CREATE TABLE things (id int, word text)")
    rig.db.execute("INSERT INTO things SELECT NULLIF(g, 7), 'w' FROM generate_series(-50, 50) g")
    query = "SELECT id, word FROM things WHERE word <> '' -- all of them;"
    rig.configure({"query": query, "mode": "chunked", "chunk_column": "id", "chunk_size": 25}).run()
    assert_exact(rig)
    assert len(units(rig)) == 6
    assert kinds(rig)[-1] is UnitKind.NULLS


ODD: Final = [
    'We"ird %s {x} $1',
    "Select",
    "a.b",
    "tab\there",
    "naïve 🚰",
    "semi;colon -- comment",
    "it's",
    "back\\slash",
    "x" * 63,
    " lead and trail ",
]


@pytest.mark.parametrize("number", [0, 2, 4, 6, 7])
def test_names_of_any_spelling(rig: Rig, number: int) -> None:
    """Columns and tables, by ``table:`` and by query; a quoted table is read in page ranges too."""
    columns = ", ".join(f"{quote_ident(name)} int" for name in ODD)
    schema, key = f'S "{number}" %', ODD[number]
    rig.db.execute(
        f"CREATE TABLE things (id int PRIMARY KEY, {columns})",
        f"INSERT INTO things SELECT g{', g' * len(ODD)} FROM generate_series(1, 30) g",
        f"ALTER TABLE things ADD UNIQUE ({quote_ident(key)}), ALTER {quote_ident(key)} SET NOT NULL",
        f"CREATE SCHEMA {quote_ident(schema)}",
        f"CREATE TABLE {quote_relation(schema, key)} AS TABLE things",
    )
    whole: dict[str, Any] = {"query": f"SELECT * FROM {quote_relation(schema, key)}"}
    quoted: dict[str, Any] = {"table": quote_relation(schema, key), "columns": {quote_ident(key): "int8"}}
    ranges = {"mode": "chunked", "chunk_column": key, "chunk_size": 10}
    window = {"mode": "incremental", "cursor_column": key}
    keys = {"mode": "chunked", "chunk_by_key": key, "chunk_size": 10}
    for at, export in enumerate(
        (
            *({"table": EXPORT, **m} for m in (ranges, window, keys)),
            *(whole, {**whole, **ranges}),
            *(quoted, {**quoted, **ranges, "chunk_column": quote_ident(key)}),
        )
    ):
        name = f"e{at}"
        rig.configure({"name": name, **export}).run(name)
        assert rig.read(name=name) == source_rows(rig.db)
        assert rig.engine.reconcile(name).status == "match"
        assert export != quoted or UnitKind.PAGES in kinds(rig)


@pytest.fixture
def widest(rig: Rig) -> Rig:
    """A table of as many columns as PostgreSQL takes."""
    names = [f"c{i}" for i in range(1600)]
    rig.db.execute(
        f"CREATE TABLE things ({', '.join(f'{n} bool' for n in names)})",
        "INSERT INTO things (c0, c1599) SELECT g % 2 = 0, g % 3 = 0 FROM generate_series(1, 50) g",
    )
    return rig


@pytest.mark.parametrize("added", [False, True])
def test_1600_columns(widest: Rig, added: bool) -> None:
    """With the columns that are ours they are more than the server could send."""
    assert widest.export(meta_columns={"exported_at": added, "row_hash": added}).run().rows == 50
    assert widest.read("c0, c7, c1599") == source_rows(widest.db, "c0, c7, c1599")
    assert len(widest.read()[0]) == 1600 + 2 * added
    assert widest.engine.validate(EXPORT).passed


@pytest.mark.parametrize("added", [False, True])
def test_1600_columns_of_csv(widest: Rig, added: bool) -> None:
    widest.export(format="csv", meta_columns={"exported_at": added, "row_hash": added}).run()
    (part,) = widest.parts()
    with part.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert len(header) == 1600 + 2 * added
    assert {len(row) for row in rows} == {len(header)}
    found = sorted((row[0], row[7], row[1599]) for row in rows)
    shown = "c0::bool::text, coalesce(c7::text, ''), c1599::text"
    assert found == sorted(source_rows(widest.db, shown))
    if added:
        assert len({row[-1] for row in rows}) == len({row[:1600] for row in map(tuple, rows)})


@pytest.mark.parametrize(
    "mode",
    [
        {"mode": "full"},
        {"mode": "chunked", "chunk_column": "id"},
        {"mode": "chunked", "chunk_by_key": "id"},
        {"mode": "incremental", "cursor_column": "id"},
    ],
)
def test_an_empty_table_shows_its_schema(rig: Rig, mode: dict[str, Any]) -> None:
    rig.db.execute("CREATE TABLE things (id int PRIMARY KEY, word text)")
    outcome = rig.export(**mode).run()
    assert (outcome.status, outcome.rows, outcome.files) == ("success", 0, 1)
    assert rig.read() == []
    assert "_SUCCESS" in rig.files()
    assert rig.read("id") == []
    assert rig.engine.validate(EXPORT).passed
    rig.db.execute("INSERT INTO things VALUES (1, 'a')")
    assert rig.run().rows == 1
    assert rig.read() == [(1, "a")]


def test_a_table_that_was_emptied(rig: Rig) -> None:
    rig.db.execute("CREATE TABLE things (id int)", "INSERT INTO things SELECT generate_series(1, 10)")
    assert rig.export().run().rows == 10
    rig.db.execute("DELETE FROM things")
    assert rig.run().rows == 0
    assert rig.read() == []
    rig.db.execute("TRUNCATE things")
    assert rig.run().rows == 0
    assert len(rig.parts()) == 1


def test_rows_without_a_key_have_a_partition_of_their_own(rig: Rig) -> None:
    rig.db.execute("CREATE TABLE things (id int, k int)")
    rig.db.execute("INSERT INTO things SELECT g, NULLIF(g % 10, 3) FROM generate_series(1, 200) g")
    rig.export(mode="chunked", chunk_column="k", chunk_size=4).run()
    assert_exact(rig)
    assert [e.unit.partition for e in units(rig)] == ["000000000000", "000000000004", "000000000008", "null"]
    assert units(rig)[-1].rows == 20
    rig.db.execute("UPDATE things SET k = NULL")
    rig.run()
    assert_exact(rig)
    assert [(e.unit.kind, e.rows) for e in units(rig)] == [(UnitKind.NULLS, 200)]
    rig.db.execute("ALTER TABLE things DROP COLUMN k", "ALTER TABLE things ADD k int NOT NULL DEFAULT 5")
    rig.run()
    assert UnitKind.NULLS not in kinds(rig)


@pytest.mark.parametrize(
    ("kind", "keys", "options"),
    [
        ("bigint", [-(2**63), 0, 2**63 - 1], {"chunk_count": 3}),
        ("bigint", [2**63 - 5, 2**63 - 1], {"chunk_size": 3}),
        ("bigint", [-(2**63), -(2**63) + 4], {"chunk_size": 3}),
        ("int", [-(2**31), -1, 0, 1, 2**31 - 1], {"chunk_count": 7}),
        ("smallint", [-32768, -101, -100, -1, 0, 32767], {"chunk_size": 10_000}),
        ("int", [-5, -4, -3], {"chunk_size": 2}),
        ("int", [7], {"chunk_count": 50}),
    ],
)
def test_keys_at_their_ends(rig: Rig, kind: str, keys: list[int], options: dict[str, Any]) -> None:
    rig.db.execute(f"CREATE TABLE things (id {kind} PRIMARY KEY)")
    for key in keys:
        rig.db.execute(f"INSERT INTO things VALUES ({key})")
    rig.export(mode="chunked", chunk_column="id", **options).run()
    assert_exact(rig)
    rig.export(mode="chunked", chunk_by_key="id", chunk_size=2).run()
    assert_exact(rig)


def test_text_keys_in_the_order_of_their_collation(pg15: TestServer, tmp_path: Path) -> None:
    with database(pg15) as db:
        db.execute(
            'CREATE TABLE things (k text COLLATE "en-x-icu" PRIMARY KEY)',
            "INSERT INTO things SELECT substr('aAbBäZ', g % 6 + 1, 1) || g % 11 || chr(65 + g % 50) || g"
            " FROM generate_series(1, 2000) g",
            "ANALYZE things",
        )
        rig = Rig(db, tmp_path)
        rig.export(mode="chunked", chunk_by_key="k", chunk_size=200, parallel=2).run()
        assert_exact(rig)
        assert len(units(rig)) == 10
        assert all(100 < e.rows < 300 for e in units(rig))
        rig.close()


def test_a_full_run_is_one_snapshot(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Money only moves: its sum is the same at every instant, and in the files."""
    monkeypatch.setattr("rivet_dagster.engine.plan.sizing.UNIT_MIN_BYTES", 100_000)
    monkeypatch.setattr("rivet_dagster.engine.plan.sizing.STATEMENT_BYTES", 50_000)
    rig.db.execute(
        "CREATE TABLE things (id int PRIMARY KEY, balance bigint, pad text)",
        "INSERT INTO things SELECT g, 1000, repeat('x', 90) FROM generate_series(1, 6000) g",
    )
    stop, moved = threading.Event(), []

    def move() -> None:
        with rig.db.connect() as connection:
            n = 0
            while not stop.is_set():
                n += 1
                a, b = n * 7919 % 6000 + 1, n * 104729 % 6000 + 1
                connection.execute(
                    "UPDATE things SET balance = balance + CASE id WHEN %s THEN -9 ELSE 9 END"
                    " WHERE id IN (%s, %s) AND %s <> %s",
                    [a, a, b, a, b],
                )
            moved.append(n)

    writer = threading.Thread(target=move)
    writer.start()
    try:
        for _ in range(3):
            rig.export(parallel=2).run()
            rows = rig.read("id, balance")
            assert len(units(rig)) > 3
            assert len(rows) == len({i for i, _ in rows}) == 6_000
            assert sum(b for _, b in rows) == 6_000_000
    finally:
        stop.set()
        writer.join()
    assert moved[0] > 50
