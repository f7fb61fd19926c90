"""Each fixed and variable kind: its range, its NULL, its values that Arrow cannot hold."""

from __future__ import annotations

import datetime as dt
import math
import struct
import uuid
from typing import Any

import pyarrow as pa
import pytest

from rivet_dagster.engine.errors import RefusalError
from rivet_dagster.engine.sources.postgres.decoder import CopyDecoder
from rivet_dagster.engine.sources.postgres.kernel import Wire
from rivet_dagster.engine.types.decision import Column
from tests.unit.kernel.stream import Source, column, decode, row, stream, text, values

US = pa.timestamp("us", tz="UTC")
EPOCH = 946684800000000  # microseconds from 1970 to 2000
DATE = column("a", pa.date32(), Wire.DATE, "date")
STAMP = column("a", US, Wire.TIMESTAMP, "timestamptz")
NANO = column("a", pa.timestamp("ns"), Wire.TIMESTAMP_NS, "timestamp")
TIME = column("a", pa.time64("us"), Wire.TIME, "time")


@pytest.mark.parametrize(
    ("arrow", "wire", "raw", "expected"),
    [
        (pa.bool_(), Wire.BOOL, [b"\1", b"\0", b"\1"], [True, False, True]),
        (pa.int16(), Wire.INT16, [b"\x80\0", b"\x7f\xff"], [-(2**15), 2**15 - 1]),
        (pa.int32(), Wire.INT32, [b"\x80\0\0\0", b"\x7f\xff\xff\xff"], [-(2**31), 2**31 - 1]),
        (
            pa.int64(),
            Wire.INT64,
            [struct.pack("!q", v) for v in (-(2**63), 2**63 - 1)],
            [-(2**63), 2**63 - 1],
        ),
        (pa.int64(), Wire.OID, [b"\xff\xff\xff\xff", b"\0\0\0\1"], [2**32 - 1, 1]),
        (pa.float32(), Wire.FLOAT32, [struct.pack("!f", v) for v in (1.5, math.inf)], [1.5, math.inf]),
        (pa.float64(), Wire.FLOAT64, [struct.pack("!d", v) for v in (0.1, -math.inf)], [0.1, -math.inf]),
        (pa.uuid(), Wire.UUID, [bytes(range(16))], [uuid.UUID(bytes=bytes(range(16)))]),
        (pa.utf8(), Wire.TEXT, [b"", "é\0".encode(), b"x" * 70], ["", "é\0", "x" * 70]),
        (pa.binary(), Wire.BYTES, [b"", b"\xff\0"], [b"", b"\xff\0"]),
        (pa.json_(), Wire.JSONB, [b'\1{"a": 1}', b"\1"], ['{"a": 1}', ""]),
        (pa.json_(), Wire.TEXT, [b'{"a": 1}'], ['{"a": 1}']),
        (pa.date32(), Wire.DATE, [b"\0\0\0\0"], [dt.date(2000, 1, 1)]),
        (
            pa.timestamp("us"),
            Wire.TIMESTAMP,
            [struct.pack("!q", 1)],
            [dt.datetime(2000, 1, 1, microsecond=1)],
        ),
        (US, Wire.TIMESTAMP, [b"\0" * 8], [dt.datetime(2000, 1, 1, tzinfo=dt.UTC)]),
        (pa.time64("us"), Wire.TIME, [b"\0" * 8, struct.pack("!q", 86399999999)], [dt.time(0), dt.time.max]),
    ],
)
def test_values_and_nulls(arrow: pa.DataType, wire: Wire, raw: list[bytes], expected: list[Any]) -> None:
    a = column("a", arrow, wire)
    assert values([a], stream(row(r) for r in raw)) == expected
    mixed = [None, *raw, None]
    assert values([a], stream(row(r) for r in mixed)) == [None, *expected, None]


def test_negative_zero_and_nan_payload_survive() -> None:
    raw = [struct.pack("!d", -0.0), bytes.fromhex("7ff8000000000001"), bytes.fromhex("fff0000000000001")]
    table = decode([column("a", pa.float64(), Wire.FLOAT64)], stream(row(r) for r in raw))
    assert table.column(0).chunk(0).buffers()[1].to_pybytes() == b"".join(r[::-1] for r in raw)


@pytest.mark.parametrize(
    ("wire", "arrow", "bad"),
    [
        (Wire.BOOL, pa.bool_(), b"\2"),
        (Wire.BOOL, pa.bool_(), b""),
        (Wire.INT16, pa.int16(), b"\0\0\0\0"),
        (Wire.INT64, pa.int64(), b"\0\0\0\0"),
        (Wire.OID, pa.int64(), b"\0" * 8),
        (Wire.FLOAT32, pa.float32(), b"\0" * 8),
        (Wire.FLOAT64, pa.float64(), b"\0" * 4),
        (Wire.DATE, pa.date32(), b"\0" * 8),
        (Wire.TIMESTAMP, US, b"\0" * 4),
        (Wire.TIME, pa.time64("us"), struct.pack("!q", -1)),
        (Wire.TIME, pa.time64("us"), struct.pack("!q", 86400000001)),
        (Wire.UUID, pa.uuid(), b"\0" * 15),
        (Wire.JSONB, pa.json_(), b""),
        (Wire.JSONB, pa.json_(), b"\2{}"),
    ],
)
def test_wrong_length_or_content(wire: Wire, arrow: pa.DataType, bad: bytes) -> None:
    with pytest.raises(RefusalError, match="'a', row 1") as caught:
        values([column("a", arrow, wire)], stream([row(bad)]))
    assert caught.value.code == "RIVET_SOURCE_UNDECODABLE"


SPECIALS = [
    (DATE, struct.pack("!i", 2**31 - 1), "infinity"),
    (DATE, struct.pack("!i", -(2**31)), "-infinity"),
    (DATE, struct.pack("!i", 2**31 - 2), "date out of"),
    (STAMP, struct.pack("!q", 2**63 - 1), "infinity"),
    (STAMP, struct.pack("!q", -(2**63)), "-infinity"),
    (STAMP, struct.pack("!q", 9223371331199999999), "timestamp out of"),  # 294276-12-31 23:59:59.999999
    (NANO, struct.pack("!q", 2**63 - 1), "infinity"),
    (NANO, struct.pack("!q", -(2**63)), "-infinity"),
    (NANO, struct.pack("!q", 9223372036854776 - EPOCH), "timestamp out of"),
    (NANO, struct.pack("!q", -9223372036854776 - EPOCH), "timestamp out of"),
    (NANO, struct.pack("!q", 9223371331199999999), "timestamp out of"),
    (TIME, struct.pack("!q", 86400000000), "24:00:00"),
]


@pytest.mark.parametrize(("a", "raw", "kind"), SPECIALS)
def test_special_values_stop_by_default(a: Column, raw: bytes, kind: str) -> None:
    with pytest.raises(RefusalError, match=kind) as caught:
        values([a], stream([row(b"\0" * len(raw)), row(raw)]))
    assert caught.value.code == "RIVET_SOURCE_VALUE_UNREPRESENTABLE"
    assert "row 2 of the unit" in caught.value.message
    assert caught.value.field == "a"
    assert not caught.value.stops_run


@pytest.mark.parametrize(("a", "raw", "kind"), SPECIALS)
def test_special_values_become_null_by_policy_and_are_counted(a: Column, raw: bytes, kind: str) -> None:
    zero = b"\0" * len(raw)
    source = Source(stream([row(zero, b"x"), row(raw, b"y"), row(raw, None), row(zero, b"z")]))
    decoder = CopyDecoder([a, text()], policies={"a": "null"}, max_rows=2)
    batches = list(decoder.decode(source.transport))
    assert [b.column(0).null_count for b in batches] == [1, 1]
    assert pa.Table.from_batches(batches).column(1).to_pylist() == ["x", "y", None, "z"]
    assert decoder.nulled == {"a": 2}
    assert kind


def test_the_widest_dates_that_fit() -> None:
    days = [-2451545, 2**31 - 2 - 10957]  # 4713 BC, and the last day of int32 counted from 1970
    table = decode([DATE], stream(row(struct.pack("!i", d)) for d in days))
    assert table.column(0).cast(pa.int32()).to_pylist() == [d + 10957 for d in days]
    stamp = 2**63 - 1 - 946684800000000
    table = decode([STAMP], stream([row(struct.pack("!q", stamp))]))
    assert table.column(0).cast(pa.int64()).to_pylist() == [2**63 - 1]


def test_the_widest_timestamps_that_fit_in_nanoseconds() -> None:
    ends = [-9223372036854775, -1, 0, 1, 9223372036854775]
    table = decode([NANO], stream(row(struct.pack("!q", us - EPOCH)) for us in ends))
    assert table.column(0).cast(pa.int64()).to_pylist() == [us * 1000 for us in ends]


def test_null_slots_hold_zero_so_equal_rows_give_equal_buffers() -> None:
    columns = [
        column("i", pa.int64(), Wire.INT64),
        column("b", pa.bool_(), Wire.BOOL),
        column("u", pa.uuid(), Wire.UUID),
        column("d", pa.decimal128(10, 0), Wire.DECIMAL128),
    ]
    table = decode(columns, stream([row(None, None, None, None)] * 3))
    for chunk in (c.chunk(0) for c in table.columns):
        storage = chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk
        assert set(storage.buffers()[1].to_pybytes()) == {0}


@pytest.mark.parametrize("length", [*range(40), 63, 64, 65, 255, 256, 1000, 70000])
def test_text_of_every_short_length(length: int) -> None:
    value = bytes(33 + i % 90 for i in range(length))
    got = values([text()], stream([row(b"<"), row(value), row(b">")]))
    assert got == ["<", value.decode(), ">"]
