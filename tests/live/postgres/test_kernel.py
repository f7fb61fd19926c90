"""The kernel against a real server: values, errors with their SQLSTATE, counts, cancellation."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.types.json import set_json_loads

from rivet_dagster.engine.errors import IntegrityError, RefusalError
from rivet_dagster.engine.sources.postgres.decoder import CopyDecoder
from rivet_dagster.engine.sources.postgres.kernel import Wire, libpq
from rivet_dagster.engine.types.decision import Column
from tests.services.postgres import TestDatabase, postgres_server


def column(name: str, arrow: pa.DataType, wire: int) -> Column:
    return Column(name, "x", arrow, name, int(wire))


INT = column("a", pa.int64(), Wire.INT64)


def copy(query: str) -> bytes:
    return f"COPY ({query}) TO STDOUT (FORMAT BINARY)".encode()


def read(
    connection: psycopg.Connection[Any], columns: list[Column], query: str, **options: Any
) -> list[pa.RecordBatch]:
    decoder = CopyDecoder(columns, **options)
    batches = list(decoder.copy(connection.pgconn, copy(query)))
    last = decoder.flush()
    return [*batches, last] if last is not None else batches


TYPES = [
    ("bool", pa.bool_(), Wire.BOOL),
    ("int2", pa.int16(), Wire.INT16),
    ("int4", pa.int32(), Wire.INT32),
    ("int8", pa.int64(), Wire.INT64),
    ("oid", pa.int64(), Wire.OID),
    ("float4", pa.float32(), Wire.FLOAT32),
    ("float8", pa.float64(), Wire.FLOAT64),
    ("date", pa.date32(), Wire.DATE),
    ("timestamp", pa.timestamp("us"), Wire.TIMESTAMP),
    ("timestamptz", pa.timestamp("us", tz="UTC"), Wire.TIMESTAMP),
    ("time", pa.time64("us"), Wire.TIME),
    ("numeric(38,9)", pa.decimal128(38, 9), Wire.DECIMAL128),
    ("uuid", pa.uuid(), Wire.UUID),
    ("text", pa.utf8(), Wire.TEXT),
    ("bytea", pa.binary(), Wire.BYTES),
    ("json", pa.json_(), Wire.TEXT),
    ("jsonb", pa.json_(), Wire.JSONB),
]
SAMPLE = {
    "bool": "g % 2 = 0",
    "int2": "(g % 30000 - 15000)::int2",
    "oid": "(g * 2000000::int8)::oid",
    "date": "date '0044-03-15' + g * 97",
    "timestamp": "timestamp '1066-10-14 09:00' + g * interval '31 days 1 microsecond'",
    "timestamptz": "timestamptz '1969-12-31 23:59:59.999999+02' + g * interval '1 hour'",
    "time": "time '00:00' + g * interval '7.000001 seconds'",
    "numeric(38,9)": "(g * 10::numeric ^ (g % 25)) / 10 ^ (g % 9)",
    "uuid": "md5(g::text)::uuid",
    "text": "repeat('é', g % 50)",
    "bytea": "decode(md5(g::text), 'hex')",
    "json": """('{"g": ' || g || '}')::json""",
    "jsonb": """jsonb_build_object('g', g)""",
}


def _text(raw: str | bytes) -> str:
    return raw if isinstance(raw, str) else raw.decode()


@pytest.mark.parametrize(("native", "arrow", "wire"), TYPES, ids=[t[0] for t in TYPES])
def test_values_equal_what_psycopg_reads(
    db: TestDatabase, native: str, arrow: pa.DataType, wire: Wire
) -> None:
    value = f"({SAMPLE.get(native, 'g * 7 - 4000')})::{native}"
    query = f"SELECT CASE WHEN g % 11 = 0 THEN NULL ELSE {value} END AS v FROM generate_series(1, 1500) g"
    arrays = (
        f"SELECT CASE WHEN g % 11 = 0 THEN NULL ELSE ARRAY[{value}, NULL] END FROM generate_series(1, 300) g"
    )
    listed = pa.list_(pa.field("item", arrow))
    with db.connect() as connection:
        set_json_loads(_text, connection)
        expected = [r[0] for r in connection.execute(query.encode())]
        expected_lists = [r[0] for r in connection.execute(arrays.encode())]
        batches = read(connection, [column("v", arrow, wire)], query, max_rows=400)
        lists = read(connection, [column("v", listed, Wire.LIST | wire)], arrays)
    got = [v for b in batches for v in b.column(0).to_pylist()]
    assert [b.num_rows for b in batches] == [400, 400, 400, 300]
    if native == "timestamptz":
        expected = [v and v.astimezone(got[1].tzinfo) for v in expected]
    assert got == expected
    assert lists[0].column(0).to_pylist() == expected_lists


def test_numeric_of_38_digits(db: TestDatabase) -> None:
    texts = ["99999999999999999999999999999.999999999", "-0.000000001", "10000000000000000000000000000", "0"]
    query = "SELECT v::numeric(38,9) FROM unnest(ARRAY[{}]) v".format(",".join(f"'{t}'" for t in texts))
    with db.connect() as connection:
        (batch,) = read(connection, [column("v", pa.decimal128(38, 9), Wire.DECIMAL128)], query)
    assert batch.column(0).to_pylist() == [Decimal(t) for t in texts]


@pytest.mark.parametrize(
    ("sql", "arrow", "wire", "kind"),
    [
        ("'NaN'::numeric", pa.decimal128(10, 2), Wire.DECIMAL128, "NaN"),
        ("'-Infinity'::numeric", pa.decimal128(10, 2), Wire.DECIMAL128, "-infinity"),
        ("1.005", pa.decimal128(10, 2), Wire.DECIMAL128, "does not fit"),
        ("'infinity'::date", pa.date32(), Wire.DATE, "infinity"),
        ("'-infinity'::timestamptz", pa.timestamp("us", "UTC"), Wire.TIMESTAMP, "-infinity"),
        ("'294276-12-31'::timestamp", pa.timestamp("us"), Wire.TIMESTAMP, "timestamp out of"),
        ("'24:00'::time", pa.time64("us"), Wire.TIME, "24:00:00"),
        (
            "ARRAY[[1,2],[3,4]]",
            pa.list_(pa.field("item", pa.int32())),
            Wire.LIST | Wire.INT32,
            "multi-dimensional",
        ),
        (
            "'[0:1]={1,2}'::int[]",
            pa.list_(pa.field("item", pa.int32())),
            Wire.LIST | Wire.INT32,
            "start at 1",
        ),
    ],
)
def test_values_without_a_form(db: TestDatabase, sql: str, arrow: pa.DataType, wire: int, kind: str) -> None:
    columns = [INT, column("v", arrow, wire)]
    query = f"SELECT g, CASE WHEN g = 3 THEN {sql} END FROM generate_series(1::int8, 5) g"
    # after a refusal the connection is still in COPY: it can only be closed
    with closing(db.connect()) as connection, pytest.raises(RefusalError, match=kind) as caught:
        read(connection, columns, query)
    assert "row 3" in caught.value.message
    with db.connect() as connection:
        (batch,) = read(connection, columns, query, policies={"v": "null"})
    assert batch.column(0).to_pylist() == [1, 2, 3, 4, 5]
    assert batch.column(1).null_count == 5


def test_server_errors_keep_their_sqlstate(db: TestDatabase) -> None:
    with db.connect() as connection:
        with pytest.raises(psycopg.errors.UndefinedTable):
            read(connection, [INT], "SELECT 1 FROM nowhere")
        with pytest.raises(psycopg.errors.DivisionByZero):
            read(connection, [INT], "SELECT 1 / (900 - g) FROM generate_series(1::int8, 1000) g")
        connection.execute("SET statement_timeout = '200ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            read(connection, [INT], "SELECT g FROM generate_series(1::int8, 5) g, pg_sleep(5)")
        connection.execute("SET statement_timeout = 0")
        (batch,) = read(connection, [INT], "SELECT 1::int8")
        assert batch.num_rows == 1


def test_a_unit_of_several_statements(db: TestDatabase) -> None:
    decoder = CopyDecoder([INT], max_rows=700)
    with db.connect() as connection:
        counts = [
            b.num_rows
            for low in (1, 501, 1001)
            for b in decoder.copy(
                connection.pgconn, copy(f"SELECT g FROM generate_series({low}::int8, {low + 499}) g")
            )
        ]
    last = decoder.flush()
    assert last is not None
    assert [*counts, last.num_rows] == [700, 700, 100]
    assert decoder.rows == 1500


def test_fewer_rows_than_the_server_counted(db: TestDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row is taken from the connection before the kernel looks: the command tag gives it away."""
    with db.connect() as connection:
        pgconn = connection.pgconn
        pgconn.exec_(copy("SELECT g FROM generate_series(1::int8, 3) g"))
        whole = libpq().transport(pgconn)
        decoder = CopyDecoder([INT])
        for _ in decoder.decode(whole, pgconn):
            pass
        decoder._state.copy_rows -= 1
        with pytest.raises(IntegrityError) as caught:
            decoder._finish(pgconn)
    assert caught.value.code == "RIVET_UNIT_COUNT_MISMATCH"


def blocked(
    connection: psycopg.Connection[Any], decoder: CopyDecoder
) -> tuple[threading.Thread, list[BaseException]]:
    """A thread that reads a COPY which stops after some rows (a server sends nothing before 8 KiB)."""
    query = "SELECT g FROM generate_series(1::int8, 5000) g WHERE g < 4900 OR pg_sleep(60) IS NULL"
    caught: list[BaseException] = []

    def work() -> None:
        try:
            list(decoder.copy(connection.pgconn, copy(query)))
        except BaseException as error:  # noqa: BLE001 -- handed to the test
            caught.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while decoder.rows == 0:  # the kernel is in its loop
        time.sleep(0.01)
    time.sleep(0.2)
    return thread, caught


def test_a_blocked_read_is_stopped_by_cancelling_the_statement(db: TestDatabase) -> None:
    with db.connect() as connection:
        thread, caught = blocked(connection, CopyDecoder([INT]))
        connection.cancel_safe(timeout=5)
        thread.join(5)
        assert not thread.is_alive()
    assert isinstance(caught[0], psycopg.errors.QueryCanceled)
    assert caught[0].sqlstate == "57014"


def test_a_blocked_read_is_stopped_by_shutting_the_socket_down(db: TestDatabase) -> None:
    with db.connect() as connection:
        thread, caught = blocked(connection, CopyDecoder([INT]))
        with socket.socket(fileno=connection.pgconn.socket) as handle:
            handle.shutdown(socket.SHUT_RDWR)
            handle.detach()
        thread.join(5)
        assert not thread.is_alive()
        assert isinstance(caught[0], psycopg.OperationalError)
    assert caught[0].sqlstate is None


def test_a_lost_server_process_is_an_operational_error(db: TestDatabase) -> None:
    with db.connect() as connection, db.connect() as other:
        pid = connection.info.backend_pid
        thread, caught = blocked(connection, CopyDecoder([INT]))
        other.execute("SELECT pg_terminate_backend(%s)", [pid])
        thread.join(5)
        assert not thread.is_alive()
    assert isinstance(caught[0], psycopg.OperationalError)
    assert caught[0].sqlstate == "57P01"


def test_other_threads_run_while_a_read_waits(db: TestDatabase) -> None:
    with db.connect() as connection:
        decoder = CopyDecoder([INT])
        thread, _ = blocked(connection, decoder)
        assert decoder.rows > 0
        started, ticks = time.monotonic(), 0
        while time.monotonic() - started < 0.3:
            time.sleep(0.001)
            ticks += 1
        connection.cancel_safe(timeout=5)
        thread.join(5)
    assert ticks > 10  # with the GIL held it would be none, on a busy machine it is fewer than 300


def test_the_cancel_flag_ends_a_wait(db: TestDatabase) -> None:
    decoder = CopyDecoder([INT])
    with closing(db.connect()) as connection:
        thread, caught = blocked(connection, decoder)
        decoder.cancel()
        thread.join(2)
        assert not thread.is_alive()
    assert isinstance(caught[0], psycopg.errors.QueryCanceled)


def test_over_tls() -> None:
    """Encrypted connections take the blocking path: the TLS layer may hold bytes that poll cannot see."""
    with postgres_server(17, tls=True) as server, server.connect() as connection:
        assert connection.pgconn.ssl_in_use
        assert libpq().transport(connection.pgconn).consume is None
        batches = read(connection, [INT], "SELECT g FROM generate_series(1::int8, 200000) g", max_rows=60000)
        assert sum(b.num_rows for b in batches) == 200000
