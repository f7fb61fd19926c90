"""``columns:`` on real columns: what is written, what fails by name, what is refused before the first row."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rivet_dagster.engine.errors import ConfigError, RefusalError, UsageError
from tests.services.exporting import Exporter
from tests.services.postgres import TestDatabase, TestServer

AT = datetime(2024, 2, 29, 12, 30, 1, 5)
UID = uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")


@pytest.fixture
def exporter(db: TestDatabase, tmp_path: Path) -> Exporter:
    return Exporter(db, tmp_path)


def fill(db: TestDatabase, kind: str, *values: str) -> None:
    """Table ``t`` of an id and one column ``v``; row 0 is NULL."""
    rows = ", ".join(f"({i}, {value})" for i, value in enumerate(["NULL", *values]))
    db.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {kind})", f"INSERT INTO t VALUES {rows}")


HELD: list[tuple[str, str, str, pa.DataType, Any, str]] = [
    ("numeric", "12345678901234567890.123456789", "decimal(38,10)", pa.decimal128(38, 10),
     Decimal("12345678901234567890.1234567890"), "compatible"),
    ("numeric", "-0.0000000001", "decimal(38, 10)", pa.decimal128(38, 10), Decimal("-1E-10"), "compatible"),
    ("numeric(10,2)", "12345678.91", "numeric(20,4)", pa.decimal128(20, 4), Decimal("12345678.9100"),
     "compatible"),
    ("numeric(50,2)", "1.25", "decimal(38,2)", pa.decimal128(38, 2), Decimal("1.25"), "compatible"),
    ("int4", "-7", "decimal(12,2)", pa.decimal128(12, 2), Decimal("-7.00"), "compatible"),
    ("money", "'12.34'", "decimal(19,2)", pa.decimal128(19, 2), Decimal("12.34"), "compatible"),
    ("text", "' 1.50 '", "decimal(9,4)", pa.decimal128(9, 4), Decimal("1.5000"), "lossy"),
    ("numeric(9,0)", "999999999", "int4", pa.int32(), 999999999, "compatible"),
    ("numeric(18,0)", "999999999999999999", "bigint", pa.int64(), 999999999999999999, "compatible"),
    ("int2", "-32768", "int4", pa.int32(), -32768, "compatible"),
    ("int2", "32767", "int64", pa.int64(), 32767, "compatible"),
    ("int4", "2147483647", "int8", pa.int64(), 2147483647, "compatible"),
    ("oid", "4294967295", "int8", pa.int64(), 4294967295, "compatible"),
    ("int4", "16777217", "float8", pa.float64(), 16777217.0, "compatible"),
    ("float4", "0.1", "double", pa.float64(), 0.10000000149011612, "compatible"),
    ("timestamp", f"'{AT}'", "timestamp_tz", pa.timestamp("us", "UTC"), AT.replace(tzinfo=UTC), "compatible"),
    ("timestamptz", f"'{AT}+00'", "timestamp", pa.timestamp("us"), AT, "compatible"),
    ("date", "'2024-02-29'", "timestamp", pa.timestamp("us"), datetime(2024, 2, 29), "compatible"),
    ("date", "'2024-02-29'", "timestamptz", pa.timestamp("us", "UTC"), datetime(2024, 2, 29, tzinfo=UTC),
     "compatible"),
    ("timestamp", f"'{AT}'", "timestamp_ns", pa.timestamp("ns"), AT, "compatible"),
    ("timestamptz", f"'{AT}+00'", "timestamp_ns", pa.timestamp("ns"), AT, "compatible"),
    ("timestamptz", f"'{AT}+02'", "TIMESTAMP_TZ_NS", pa.timestamp("ns", "UTC"),
     AT.replace(hour=10, tzinfo=UTC), "compatible"),
    ("timestamp", "'1677-09-21 00:12:43.145225'", "timestamp_tz_ns", pa.timestamp("ns", "UTC"),
     datetime(1677, 9, 21, 0, 12, 43, 145225, UTC), "compatible"),
    ("timestamp", "'2262-04-11 23:47:16.854775'", "timestamp_ns", pa.timestamp("ns"),
     datetime(2262, 4, 11, 23, 47, 16, 854775), "compatible"),
    ("date", "'2024-02-29'", "timestamp_ns", pa.timestamp("ns"), datetime(2024, 2, 29), "compatible"),
    ("numeric(60,30)", "-1." + "1" * 30, "decimal(60,30)", pa.decimal256(60, 30), Decimal("-1." + "1" * 30),
     "compatible"),
    ("numeric(76,0)", "9" * 76, "decimal(76,0)", pa.decimal256(76, 0), Decimal("9" * 76), "compatible"),
    ("numeric", "1e-50", "decimal(76,50)", pa.decimal256(76, 50), Decimal("1E-50"), "compatible"),
    ("numeric(10,2)", "-1.25", "numeric(40,3)", pa.decimal256(40, 3), Decimal("-1.250"), "compatible"),
    ("int8", "-5", "decimal(39,20)", pa.decimal256(39, 20), Decimal("-5." + "0" * 20), "compatible"),
    ("text", "'1e38'", "decimal(50,2)", pa.decimal256(50, 2), Decimal("1" + "0" * 38 + ".00"), "lossy"),
    ("date", "'2024-02-29'", "date", pa.date32(), date(2024, 2, 29), "exact"),
    ("text", "'{\"b\":1, \"a\":  2}'", "json", pa.json_(), '{"b":1, "a":  2}', "compatible"),
    ("varchar(40)", f"'{{{str(UID).upper()}}}'", "uuid", pa.uuid(), UID, "lossy"),
    ("bytea", "'\\x00ff'", "blob", pa.binary(), b"\x00\xff", "exact"),
    ("bool", "true", "boolean", pa.bool_(), True, "exact"),
    ("numeric", "1e-16383", "text", pa.string(), "0." + "0" * 16382 + "1", "text"),
    ("int8", "-9223372036854775808", "string", pa.string(), "-9223372036854775808", "text"),
    ("timestamptz", f"'{AT}+02'", "text", pa.string(), "2024-02-29 10:30:01.000005+00", "text"),
    ("timestamp", "'infinity'", "varchar", pa.string(), "infinity", "text"),
    ("float8", "0.1", "text", pa.string(), "0.1", "text"),
    ("int4[]", "'{{1,NULL},{3,4}}'", "text", pa.string(), "{{1,NULL},{3,4}}", "text"),
    ("jsonb", "'{\"a\":1}'", "text", pa.string(), '{"a": 1}', "text"),
    ("bytea", "'\\x00ff'", "text", pa.string(), "\\x00ff", "text"),
    ("uuid", f"'{str(UID).upper()}'", "text", pa.string(), str(UID), "text"),
    ("bool", "false", "text", pa.string(), "false", "text"),
    ("char(5)", "'ab'", "text", pa.string(), "ab   ", "exact"),
]  # fmt: skip


def test_every_value_arrives_in_the_declared_type(every_db: TestDatabase, tmp_path: Path) -> None:
    exporter = Exporter(every_db, tmp_path)
    columns = ", ".join(f"v{i} {kind}" for i, (kind, *_) in enumerate(HELD))
    values = ", ".join(value for _, value, *_ in HELD)
    nulls = ", ".join("NULL" for _ in HELD)
    exporter.db.execute(f"CREATE TABLE t ({columns})", f"INSERT INTO t VALUES ({nulls}), ({values})")
    exporter.run(columns={f"v{i}": declared for i, (_, _, declared, *_) in enumerate(HELD)})
    table = exporter.table()
    for i, (kind, _, declared, arrow, expected, fidelity) in enumerate(HELD):
        field = table.schema.field(f"v{i}")
        assert field.type == arrow, (kind, declared)
        assert field.metadata[b"rivet.fidelity"].decode() == fidelity, (kind, declared)
        assert table.column(i).to_pylist() == [None, expected], (kind, declared)


REFUSED = [
    ("int8", "int4"), ("int4", "int2"), ("int8", "float8"), ("int4", "float4"), ("float8", "float4"),
    ("float8", "decimal(18,2)"), ("float8", "int8"), ("numeric", "float8"), ("numeric", "int8"),
    ("numeric(10,0)", "int4"), ("numeric(20,4)", "decimal(20,2)"), ("numeric(20,4)", "decimal(10,4)"),
    ("int8", "timestamp_ns"), ("text", "timestamp_ns"), ("timestamp[]", "timestamp_ns"),
    ("time", "timestamp_ns"), ("numeric(60,2)", "int8"), ("float8", "decimal(60,2)"),
    ("numeric(20,4)", "decimal(50,2)"), ("int4", "decimal(9,0)"), ("timestamp", "date"), ("text", "date"),
    ("text", "timestamp"), ("text", "int4"), ("text", "bool"), ("text", "binary"), ("int4", "bool"),
    ("bytea", "uuid"), ("int4", "json"), ("int4[]", "json"), ("int4[]", "decimal(12,2)"), ("uuid", "binary"),
]  # fmt: skip


def test_what_could_lose_something_is_refused_before_the_first_row(exporter: Exporter) -> None:
    columns = ", ".join(f"v{i} {kind}" for i, (kind, _) in enumerate(REFUSED))
    exporter.db.execute(f"CREATE TABLE t ({columns})")
    for i, (kind, declared) in enumerate(REFUSED):
        with pytest.raises(UsageError) as caught:
            exporter.run(columns={f"v{i}": declared})
        assert caught.value.code == "RIVET_TYPE_UNSAFE_MAPPING", (kind, declared)
        assert (caught.value.field, caught.value.export) == (f"columns.v{i}", "o")
        assert f"'v{i}'" in caught.value.message
        assert "text" in caught.value.message
    assert not (exporter.root / "out").exists()


@pytest.mark.parametrize(
    ("kind", "value", "declared"),
    [
        ("numeric", "0.125", "decimal(10,2)"),
        ("numeric", "123456789.5", "decimal(10,2)"),
        ("numeric", "'NaN'", "decimal(10,2)"),
        ("text", "'1.005'", "decimal(10,2)"),
        ("text", "'1,5'", "decimal(10,2)"),
        ("text", "'not-a-uuid'", "uuid"),
        ("text", "'{\"a\":'", "json"),
        ("numeric(18,0)", "'NaN'", "int8"),
        ("timestamp", "'9999-12-31'", "timestamp_ns"),
        ("timestamp", "'1677-09-21 00:12:43.145224'", "timestamp_ns"),
        ("timestamptz", "'2262-04-11 23:47:16.854776+00'", "timestamp_tz_ns"),
        ("timestamp", "'infinity'", "timestamp_ns"),
        ("date", "'2262-04-12'", "timestamp_ns"),
        ("date", "'300000-01-01'", "timestamp"),
        ("numeric", "1" + "0" * 76, "decimal(76,0)"),
        ("numeric(60,30)", "'NaN'", "decimal(60,30)"),
        ("numeric(60,30)", "1e-30", "decimal(60,29)"),
    ],
)
@pytest.mark.parametrize("written", ["parquet", "csv"])
def test_a_value_that_does_not_fit_fails_by_name_and_is_never_null(
    exporter: Exporter, kind: str, value: str, declared: str, written: str
) -> None:
    fill(exporter.db, kind, value)
    with pytest.raises(RefusalError) as caught:
        exporter.run(columns={"v": declared}, format=written)
    assert caught.value.code == "RIVET_SOURCE_VALUE_UNREPRESENTABLE"
    assert caught.value.field == "v"
    assert "'v'" in caught.value.message
    assert value.strip("'") not in caught.value.message or value in ("'NaN'", "'infinity'")
    assert not exporter.marked


def test_of_several_parsed_columns_the_one_at_fault_is_named(exporter: Exporter) -> None:
    exporter.db.execute(
        "CREATE TABLE t (a text, b text, c text)",
        f"INSERT INTO t VALUES ('{UID}', 'x', '1'), ('{UID}', '{{}}', '2')",
    )
    with pytest.raises(RefusalError) as caught:
        exporter.run(columns={"a": "uuid", "b": "json", "c": "decimal(5,0)"})
    assert caught.value.field == "b"


def test_unknown_columns_are_told_with_the_nearest_name(exporter: Exporter) -> None:
    exporter.db.execute('CREATE TABLE t (price numeric, "Amount" numeric)')
    for wanted, near, code in [
        ("pricee", "price", "RIVET_CONFIG_COLUMN_UNKNOWN"),
        ("amount", "Amount", "RIVET_CONFIG_COLUMN_OVERRIDE_CASE"),
        ("zzz", "name one of: price, Amount", "RIVET_CONFIG_COLUMN_UNKNOWN"),
    ]:
        with pytest.raises(ConfigError) as caught:
            exporter.run(columns={wanted: "text"})
        assert caught.value.code == code
        assert caught.value.field == f"columns.{wanted}"
        assert near in str(caught.value)
        assert caught.value.export == "o"


def test_a_qualified_key_wins_and_a_query_takes_plain_ones(exporter: Exporter) -> None:
    fill(exporter.db, "numeric", "1.5")
    exporter.run(columns={"v": "text", "t.v": "decimal(5,1)"})
    assert exporter.column("v") == [None, Decimal("1.5")]
    exporter.run(query="SELECT v AS w FROM t", columns={"w": "decimal(6,2)"})
    assert exporter.column("w") == [None, Decimal("1.50")]


def test_a_domain_is_overridden_as_its_base(exporter: Exporter) -> None:
    exporter.db.execute("CREATE DOMAIN price AS numeric", "CREATE DOMAIN small AS int2 CHECK (VALUE > 0)")
    exporter.db.execute("CREATE TABLE t (p price, s small)", "INSERT INTO t VALUES (1.25, 3)")
    exporter.run(columns={"p": "decimal(6,2)", "s": "int8"})
    assert exporter.column("p") == [Decimal("1.25")]
    assert exporter.table().schema.field("s").type == pa.int64()


@pytest.mark.parametrize("mode", ["range", "key", "incremental"])
def test_a_key_keeps_its_own_order_and_ranges_when_it_is_written_as_text(
    exporter: Exporter, mode: str
) -> None:
    exporter.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "INSERT INTO t SELECT g, g FROM generate_series(1, 120) g",
    )
    exporter.db.execute("ANALYZE t")
    modes: dict[str, dict[str, Any]] = {
        "range": {"mode": "chunked", "chunk_column": "id", "chunk_size": 50},
        "key": {"mode": "chunked", "chunk_by_key": "id", "chunk_size": 50},
        "incremental": {"mode": "incremental", "cursor_column": "id"},
    }
    keys = modes[mode]
    exporter.run(columns={"id": "text"}, **keys)
    assert sorted(map(int, exporter.column("id"))) == list(range(1, 121))
    if mode == "key":
        assert [int(n) for n in exporter.column("id")] == list(range(1, 121))
    with exporter.engine(columns={"id": "text"}, **keys) as engine:
        assert engine.reconcile("o").status == "match"
        assert engine.validate("o").passed


def test_overridden_columns_reconcile_with_the_source(exporter: Exporter) -> None:
    exporter.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n numeric, i int, d date, z timestamptz, u text, j text,"
        " f float4, m numeric(9,0), a int[], w numeric(60,30), ns timestamp)",
        """INSERT INTO t SELECT g, g * 1.5, g, date '2000-01-01' + g, to_timestamp(g * 1e6),
        md5(g::text)::uuid::text, '[' || g || ']', g / 3.0, g, ARRAY[g], (25 - g) * 1e28 + g * 1e-30,
        timestamp '1969-12-31 23:59:59.999' + g * interval '77 us' FROM generate_series(1, 50) g""",
        "INSERT INTO t (id) VALUES (51)",
    )
    types = {"n": "decimal(20,4)", "i": "decimal(12,0)", "d": "timestamp", "z": "timestamp", "u": "uuid"}
    types |= {"j": "json", "f": "float8", "m": "int8", "a": "text", "id": "text"}
    types |= {"w": "decimal(60,30)", "ns": "timestamp_ns"}
    for written in ("parquet", "csv"):
        exporter.run(columns=types, format=written)
        with exporter.engine(columns=types, format=written) as engine:
            report = engine.reconcile("o")
            assert report.status == "match", [u.note for u in report.units]
            assert engine.validate("o").passed


def test_csv_writes_declared_decimals_in_plain_digits(exporter: Exporter) -> None:
    fill(exporter.db, "numeric", "0.0000000001", "-12.5", "0")
    exporter.run(columns={"v": "decimal(20,10)"}, format="csv")
    lines = exporter.text().splitlines()
    assert lines == ["id,v", "0,", "1,0.0000000001", "2,-12.5000000000", "3,0.0000000000"]


def test_csv_writes_wide_decimals_and_nanoseconds_whole(exporter: Exporter) -> None:
    exporter.db.execute(
        "CREATE TABLE t (n numeric(60,30), at timestamp, z timestamptz)",
        f"INSERT INTO t VALUES (-1e-30, '{AT}', '{AT}+02'), ({'9' * 30}.5, '1969-12-31 23:59:59.9', NULL)",
    )
    exporter.run(columns={"n": "decimal(60,30)", "at": "timestamp_ns", "z": "timestamp_tz_ns"}, format="csv")
    assert exporter.text().splitlines() == [
        "n,at,z",
        f"-0.{'0' * 29}1,2024-02-29T12:30:01.000005000,2024-02-29T10:30:01.000005000Z",
        f"{'9' * 30}.5{'0' * 29},1969-12-31T23:59:59.900000000,",
    ]


def test_a_policy_holds_for_timestamps_that_nanoseconds_do_not_reach(exporter: Exporter) -> None:
    fill(exporter.db, "timestamp", "'9999-12-31'", "'infinity'", "'2000-01-01'")
    exporter.run(columns={"v": "timestamp_ns"}, value_policy={"v": "null"})
    assert exporter.column("v") == [None, None, None, datetime(2000, 1, 1)]
    assert exporter.manifest()["rivet_dagster"]["policies"] == {"v": {"policy": "null", "nulled": 2}}
    exporter.run(columns={"v": "timestamp_ns"}, value_policy={"v": "text"})
    assert exporter.column("v") == [None, "9999-12-31 00:00:00", "infinity", "2000-01-01 00:00:00"]


def test_vectors_of_the_catalog_are_text(exporter: Exporter) -> None:
    exporter.db.execute(
        "CREATE TABLE t (i int2vector, o oidvector)", "INSERT INTO t VALUES ('1 2 -3', '7 8')"
    )
    exporter.run()
    assert exporter.table().to_pylist() == [{"i": "1 2 -3", "o": "7 8"}]


@pytest.fixture
def ascii_db(pg: TestServer) -> Any:
    name = "plain_ascii"
    with pg.connect() as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {name}")
        admin.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    yield TestDatabase(pg, name)
    with pg.connect() as admin:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_text_of_an_sql_ascii_database_is_proven_to_be_utf8(ascii_db: TestDatabase, tmp_path: Path) -> None:
    exporter = Exporter(ascii_db, tmp_path)
    ascii_db.execute("CREATE TABLE t (id int, v text)", "INSERT INTO t VALUES (1, E'gr\\xc3\\xb6')")
    exporter.run()
    assert exporter.column("v") == ["grö"]
    ascii_db.execute("INSERT INTO t VALUES (2, E'gr\\xf6\\xdfe')")
    with pytest.raises(RefusalError) as caught:
        exporter.run()
    assert caught.value.sqlstate == "22021"  # PostgreSQL checks what it sends to a UTF-8 client


def test_days_are_cut_by_the_sources_type_whatever_is_written(exporter: Exporter) -> None:
    exporter.db.execute(
        "CREATE TABLE t (id int, at timestamptz)",
        "INSERT INTO t SELECT g, timestamptz '2024-01-01+00' + g * interval '7 h'"
        " FROM generate_series(1, 50) g",
        "CREATE INDEX ON t (at)",
    )
    keys: dict[str, Any] = {"mode": "chunked", "chunk_column": "at", "chunk_by_days": 3}
    for declared in ("text", "timestamp"):
        exporter.run(columns={"at": declared}, **keys)
        assert sorted(exporter.column("id")) == list(range(1, 51))
