"""Every row falls into exactly one unit, whatever the table is cut by."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from rivet_dagster.engine.errors import ConfigError, RefusalError
from rivet_dagster.engine.plan.units import UnitKind
from tests.live.modes.kit import Project, Ran
from tests.services.postgres import TestDatabase, TestServer, database


@pytest.fixture
def db(pg15: TestServer) -> Iterator[TestDatabase]:
    """A server that has ICU, whose orders differ from the bytes'."""
    with database(pg15) as fresh:
        yield fresh


COLLATIONS = {"icu": "und-x-icu", "c": "C", "blind": "blind"}


def fill(project: Project, columns: str, rows: list[tuple[Any, ...]]) -> None:
    """Table ``t`` with a column ``n`` of row numbers, analysed: key ranges follow the estimate."""
    with project.db.connect() as connection:
        connection.execute(
            "CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
        )
        connection.execute(f"CREATE TABLE t ({columns}, n int NOT NULL)".encode())
        marks = ", ".join(["%s"] * (len(rows[0]) + 1))
        with connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO t VALUES ({marks})".encode(), [(*r, n) for n, r in enumerate(rows)]
            )
        connection.execute("ANALYZE t")


def assert_whole(project: Project, rows: int) -> None:
    assert project.rows("n") == dict.fromkeys(range(rows), 1)
    assert project.reconcile() == "match"


def words(rng: random.Random, count: int) -> list[str]:
    found: set[str] = set()
    while len(found) < count:
        found.add("".join(rng.choice("aAbBzZäÖß -_'\\é漢") for _ in range(rng.randint(1, 4))))
    return sorted(found)


@pytest.mark.parametrize("collation", ["icu", "c"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_composite_keys_with_ties_on_every_prefix(project: Project, collation: str, seed: int) -> None:
    rng = random.Random(seed)
    texts = words(rng, 7)
    keys = sorted({(rng.choice(texts), rng.randint(-2, 2), rng.choice(texts)) for _ in range(400)})
    rng.shuffle(keys)
    name = f'"{COLLATIONS[collation]}"'
    fill(project, f"a text COLLATE {name}, b int, c text COLLATE {name}, PRIMARY KEY (a, b, c)", keys)
    ran = project.run(mode="chunked", chunk_by_key=["a", "b", "c"], chunk_size=9, parallel=3)
    assert len(ran.plan.units) > 10
    assert_whole(project, len(keys))
    sizes = [e.rows for e in ran.units]
    assert max(sizes) < len(keys) / 3  # the first column alone has fewer values than that


def test_a_key_whose_collation_takes_different_texts_for_equal(project: Project) -> None:
    """Still an order, and the index is unique by it: ranges hold."""
    rows = [(f"{i:03d}{'aAbB'[i % 4]}",) for i in range(200)]
    fill(project, 'a text COLLATE "blind" PRIMARY KEY', rows)
    ran = project.run(mode="chunked", chunk_by_key="a", chunk_size=20)
    assert len(ran.plan.units) == 10
    assert_whole(project, len(rows))


def test_composite_keys_resume_by_their_stored_ranges(project: Project) -> None:
    fill(project, "a int, b text, PRIMARY KEY (a, b)", [(i % 3, str(i)) for i in range(90)])
    with project.engine_with(mode="chunked", chunk_by_key=["a", "b"], chunk_size=10) as engine:
        with engine.session("o", holder="one") as session:
            planned = session.plan()
        with engine.session("o", holder="two") as session:
            again = session.plan(only=list(planned.partitions))
            assert again.resumed
            assert [dict(u.spec) for u in again.units] == [dict(u.spec) for u in planned.units]
            list(session.execute())
            session.finalize()
    assert_whole(project, 90)


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        ("a int NOT NULL, b int NOT NULL, UNIQUE (b, a)", ["a", "b"]),
        ("a int NOT NULL, b int, UNIQUE (a, b)", ["a", "b"]),
        ("a int NOT NULL, b int NOT NULL, c int NOT NULL, UNIQUE (a, b, c)", ["a", "b"]),
        ("a int NOT NULL, b int NOT NULL", ["a", "b"]),
    ],
)
def test_unsuitable_composite_keys(project: Project, columns: str, key: list[str]) -> None:
    project.db.execute(f"CREATE TABLE t ({columns})", "CREATE UNIQUE INDEX ON t (a, b) WHERE a > 0")
    with pytest.raises(ConfigError) as caught:
        project.run(mode="chunked", chunk_by_key=key)
    assert (caught.value.code, caught.value.field) == ("RIVET_CONFIG_CHUNK_KEY_UNSUITABLE", "chunk_by_key")


DAYS = [
    "2023-12-31 23:59:59.999999",
    "2024-01-01 00:00:00",
    "2024-01-01 23:59:59.999999",
    "2024-02-29 12:00:00",
]


@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamptz"])
@pytest.mark.parametrize("days", [1, 7, 400])
def test_days(project: Project, kind: str, days: int) -> None:
    """Midnights, the last microsecond of a day, NULLs; the server's zone is not UTC."""
    with project.db.connect() as connection:
        connection.execute(
            f"ALTER DATABASE {connection.info.dbname} SET TimeZone = 'Pacific/Kiritimati'".encode()
        )
    rows = [
        (None if i % 10 == 9 else f"{DAYS[i % 4]}{'+00' if kind == 'timestamptz' else ''}",)
        for i in range(100)
    ]
    fill(project, f"d {kind}", rows)
    ran = project.run(mode="chunked", chunk_column="d", chunk_by_days=days, parallel=2)
    assert_whole(project, len(rows))
    assert ran.plan.units[-1].kind is UnitKind.NULLS
    keys = ran.plan.partitions
    assert keys[0] == {1: "2023-12-31", 7: "2023-12-28", 400: "2023-08-31"}[days]
    if days == 1:
        assert (len(keys), keys[-2:]) == (62, ("2024-02-29", "null"))
        by_day = {e.unit.partition: e.rows for e in ran.units}
        assert (by_day["2023-12-31"], by_day["2024-01-01"], by_day["2024-01-02"]) == (25, 45, 0)


def test_the_last_day_ends_at_the_pinned_maximum(project: Project) -> None:
    fill(project, "d timestamp NOT NULL", [("2024-01-01",), ("2024-01-02 08:00",)])
    late = "INSERT INTO t VALUES ('2024-01-02 08:00:00.000001', 2), ('2024-01-01 09:00', 3)"
    project.run(lambda: project.db.execute(late), mode="chunked", chunk_column="d", chunk_by_days=1)
    assert set(project.rows("n")) == {0, 1, 3}


@pytest.mark.parametrize("value", ["infinity", "-infinity", "0044-03-15 BC", "20000-01-01"])
def test_days_that_are_no_days(project: Project, value: str) -> None:
    fill(project, "d timestamp", [("2024-01-01",), (value,)])
    with pytest.raises(RefusalError) as caught:
        project.run(mode="chunked", chunk_column="d", chunk_by_days=1)
    assert caught.value.code == "RIVET_PLAN_BOUNDS_UNREADABLE"


def test_days_from_the_first_to_the_last_year(project: Project) -> None:
    rows = [("0001-01-01",), ("9999-12-31",), ("1970-01-01",)]
    fill(project, "d date NOT NULL", rows)
    with pytest.raises(RefusalError) as caught:
        project.run(mode="chunked", chunk_column="d", chunk_by_days=1)
    assert caught.value.code == "RIVET_PLAN_CHUNK_KEY_SPARSE"
    ran = project.run(chunk_by_days=100_000)
    assert len(ran.plan.units) in {37, 38, 39}
    assert_whole(project, len(rows))


@pytest.mark.parametrize("keys", [{"chunk_by_days": 1}, {"chunk_dense": True}])
def test_an_empty_table(project: Project, keys: dict[str, Any]) -> None:
    project.db.execute("CREATE TABLE t (d date, n int)")
    assert project.run(mode="chunked", chunk_column="d", **keys).outcome.rows == 0


def floats(rng: random.Random) -> Any:
    return rng.choice([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, rng.random()])


DENSE: dict[str, Any] = {
    "int": lambda rng: rng.choice([None, *range(5)]),
    "float8": floats,
    'text COLLATE "und-x-icu"': lambda rng: rng.choice(words(rng, 3)),
    'text COLLATE "blind"': lambda rng: rng.choice("aAbBcC"),
    "char(3)": lambda rng: rng.choice(["a", "a ", "b", " b", ""]),
    "uuid": lambda rng: f"{rng.getrandbits(128):032x}",
    "jsonb": lambda rng: rng.choice(['{"a": 1}', "[]", "1", '"x"']),
    "bytea": lambda rng: rng.randbytes(rng.randint(0, 3)),
    "int[]": lambda rng: [rng.randint(0, 2) for _ in range(rng.randint(0, 2))],
}


@pytest.mark.parametrize("kind", DENSE)
def test_dense_ranges_of_any_ordered_type(project: Project, kind: str) -> None:
    rng = random.Random(kind)
    rows = [(DENSE[kind](rng),) for _ in range(300)]
    fill(project, f"k {kind}", rows)
    ran = project.run(mode="chunked", chunk_column="k", chunk_dense=True, chunk_size=25, parallel=2)
    assert len(ran.plan.units) >= 3
    assert_whole(project, len(rows))


def test_dense_ranges_hold_as_many_rows_as_asked(project: Project) -> None:
    """Gaps of any width do not matter; ties do: they make a range longer, never split."""
    rows = [(10**i,) for i in range(18)] + [(-5,)] * 30 + [(10**17 + i,) for i in range(1, 53)]
    fill(project, "k bigint NOT NULL", rows)
    ran = project.run(mode="chunked", chunk_column="k", chunk_dense=True, chunk_size=10)
    sizes = [e.rows for e in ran.units]
    assert sizes == [30, 10, 10, 10, 10, 10, 10, 10]
    assert_whole(project, len(rows))


def test_dense_needs_an_order(project: Project) -> None:
    project.db.execute("CREATE TABLE t (k json)", "INSERT INTO t VALUES ('1')")
    with pytest.raises(ConfigError) as caught:
        project.run(mode="chunked", chunk_column="k", chunk_dense=True)
    assert caught.value.field == "chunk_column"


def test_dense_ranges_of_a_query(project: Project) -> None:
    fill(project, "k text", [(str(i % 40),) for i in range(100)])
    project.run(query="SELECT k, n FROM t", mode="chunked", chunk_column="k", chunk_dense=True, chunk_size=30)
    assert project.rows("n") == dict.fromkeys(range(100), 1)


def test_rows_that_move_between_ranges_while_a_snapshot_is_read(project: Project) -> None:
    fill(project, "k int NOT NULL", [(i,) for i in range(100)])
    ran: Ran = project.run(
        lambda: project.db.execute("UPDATE t SET k = 99 - k", "DELETE FROM t WHERE n % 2 = 0"),
        mode="chunked",
        chunk_column="k",
        chunk_dense=True,
        chunk_size=10,
        consistency="snapshot",
        parallel=3,
    )
    assert len(ran.plan.units) == 10
    assert project.rows("n") == dict.fromkeys(range(100), 1)


def test_a_large_table_is_not_scanned_for_bounds(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rivet_dagster.engine.plan.guards.SCAN_BYTES", 1000)
    fill(project, "k int, d date", [(i, "2024-01-01") for i in range(100)])
    for keys in ({"chunk_column": "k"}, {"chunk_column": "k", "chunk_dense": True}):
        with pytest.raises(RefusalError) as caught:
            project.run(mode="chunked", **keys)
        assert (caught.value.code, caught.value.field) == ("RIVET_PLAN_SCAN_REFUSED", "chunk_column")
    project.run(allow_scan=True)
    project.db.execute("CREATE INDEX ON t (k)")
    project.run(allow_scan=False)
    assert_whole(project, 100)


@pytest.mark.parametrize("kind", ["numeric(18,0)", "numeric(7)", "whole"])
def test_a_numeric_without_fraction_is_an_integer(project: Project, kind: str) -> None:
    top = 10**18 - 1 if kind == "numeric(18,0)" else 9_999_999
    project.db.execute(
        "CREATE DOMAIN whole AS numeric(9,0)",
        f"CREATE TABLE t (k {kind} PRIMARY KEY, n int)",
        f"INSERT INTO t SELECT {top} - i * 10, i FROM generate_series(0, 99) AS i",
    )
    ran = project.run(mode="chunked", chunk_size=100)
    assert len(ran.plan.units) in (10, 11)
    assert_whole(project, 100)
    project.run(chunk_column="k", chunk_count=4)
    assert_whole(project, 100)


def test_a_numeric_chunk_column_that_holds_nan_is_refused(project: Project) -> None:
    project.db.execute("CREATE TABLE t (k numeric(9,0), n int)", "INSERT INTO t VALUES (1, 0), ('NaN', 1)")
    with pytest.raises(RefusalError) as caught:
        project.run(mode="chunked", chunk_column="k")
    assert caught.value.code == "RIVET_PLAN_BOUNDS_UNREADABLE"
