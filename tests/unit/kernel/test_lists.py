"""One-dimensional arrays -> lists; what a list cannot say is refused, not flattened."""

from __future__ import annotations

import datetime as dt
import struct
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from rivet_dagster.engine.errors import RefusalError
from rivet_dagster.engine.sources.postgres.decoder import CopyDecoder
from rivet_dagster.engine.sources.postgres.kernel import Wire
from tests.unit.kernel.stream import (
    Source,
    array,
    decode,
    field,
    int4,
    list_of,
    numeric_bytes,
    row,
    stream,
    values,
)


def i4(value: int) -> bytes:
    return struct.pack("!i", value)


@pytest.mark.parametrize(
    ("arrow", "wire", "raw", "expected"),
    [
        (pa.bool_(), Wire.BOOL, [b"\1", b"\0"], [True, False]),
        (pa.int16(), Wire.INT16, [b"\0\1", b"\xff\xff"], [1, -1]),
        (pa.int32(), Wire.INT32, [i4(1), i4(-1)], [1, -1]),
        (pa.int64(), Wire.INT64, [struct.pack("!q", 2**62)], [2**62]),
        (pa.int64(), Wire.OID, [b"\xff\xff\xff\xff"], [2**32 - 1]),
        (pa.float32(), Wire.FLOAT32, [struct.pack("!f", 0.5)], [0.5]),
        (pa.float64(), Wire.FLOAT64, [struct.pack("!d", 0.1)], [0.1]),
        (pa.date32(), Wire.DATE, [i4(0)], [dt.date(2000, 1, 1)]),
        (pa.timestamp("us"), Wire.TIMESTAMP, [b"\0" * 8], [dt.datetime(2000, 1, 1)]),
        (pa.time64("us"), Wire.TIME, [b"\0" * 8], [dt.time(0)]),
        (pa.decimal128(9, 2), Wire.DECIMAL128, [numeric_bytes(Decimal("-1.25"))], [Decimal("-1.25")]),
        (pa.uuid(), Wire.UUID, [bytes(16)], [uuid.UUID(int=0)]),
        (pa.utf8(), Wire.TEXT, [b"", b"abc", b"x" * 100], ["", "abc", "x" * 100]),
        (pa.binary(), Wire.BYTES, [b"\xff"], [b"\xff"]),
        (pa.utf8(), Wire.JSONB, [b"\1{}", b"\1[1]"], ["{}", "[1]"]),
    ],
)
def test_elements_nulls_and_empty(
    arrow: pa.DataType, wire: Wire, raw: list[bytes], expected: list[Any]
) -> None:
    rows = [array(raw), array([None, *raw, None]), array([]), None, array([None]), array(raw * 40)]
    table = decode([list_of(arrow, wire), int4()], stream(row(r, i4(i)) for i, r in enumerate(rows)))
    assert table.column(0).to_pylist() == [expected, [None, *expected, None], [], None, [None], expected * 40]
    assert table.column(1).to_pylist() == list(range(len(rows)))
    assert table.schema.field(0).type.value_field.name == "item"


def test_growth_in_every_direction() -> None:
    lists = [[b"e" * (i % 7) for i in range(n * 37 % 900)] for n in range(300)]
    table = decode([list_of(pa.utf8(), Wire.TEXT)], stream(row(array(v)) for v in lists))
    assert table.column(0).to_pylist() == [[e.decode() for e in v] for v in lists]


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (struct.pack("!iiIiiii", 2, 0, 23, 1, 1, 2, 1) + field(i4(1)) + field(i4(2)), "multi-dimensional"),
        (struct.pack("!iiIii", 1, 0, 23, 1, 0) + field(i4(1)), "does not start at 1"),
        (struct.pack("!iiIii", 1, 0, 23, 1, -5) + field(i4(1)), "does not start at 1"),
    ],
)
def test_shapes_that_a_list_cannot_say(raw: bytes, kind: str) -> None:
    column = list_of(pa.int32(), Wire.INT32)
    with pytest.raises(RefusalError, match=kind) as caught:
        values([column], stream([row(raw)]))
    assert caught.value.code == "RIVET_SOURCE_VALUE_UNREPRESENTABLE"
    decoder = CopyDecoder([column], policies={"l": "null"})
    assert (
        list(decoder.decode(Source(stream([row(array([i4(5)])), row(raw), row(array([i4(6)]))])).transport))
        == []
    )
    last = decoder.flush()
    assert last is not None
    assert last.column(0).to_pylist() == [[5], None, [6]]
    assert decoder.nulled == {"l": 1}


def test_special_element_becomes_a_null_element() -> None:
    column = list_of(pa.date32(), Wire.DATE)
    decoder = CopyDecoder([column], policies={"l": "null"})
    list(decoder.decode(Source(stream([row(array([i4(0), i4(2**31 - 1)]))])).transport))
    last = decoder.flush()
    assert last is not None
    assert last.column(0).to_pylist() == [[dt.date(2000, 1, 1), None]]
    assert decoder.nulled == {"l": 1}
    with pytest.raises(RefusalError, match="infinity"):
        values([column], stream([row(array([i4(2**31 - 1)]))]))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0" * 11,
        struct.pack("!iiI", -1, 0, 23),
        struct.pack("!iiI", 7, 0, 23),
        struct.pack("!iiI", 0, 2, 23),
        struct.pack("!iiI", 0, 0, 23) + b"\0",
        struct.pack("!iiI", 1, 0, 23),
        struct.pack("!iiIii", 1, 0, 23, 2**31 - 1, 1),
        struct.pack("!iiIii", 1, 0, 23, -1, 1),
        struct.pack("!iiIii", 1, 0, 23, 2, 1) + field(i4(1)),
        struct.pack("!iiIii", 1, 0, 23, 1, 1) + field(i4(1)) + b"\0",
        struct.pack("!iiIii", 1, 0, 23, 1, 1) + struct.pack("!i", -2),
        struct.pack("!iiIii", 1, 0, 23, 1, 1) + struct.pack("!i", 2**31 - 1),
        struct.pack("!iiIii", 1, 0, 23, 1, 1) + field(b"\0" * 8),
    ],
)
def test_broken_arrays(raw: bytes) -> None:
    with pytest.raises(RefusalError) as caught:
        values([list_of(pa.int32(), Wire.INT32)], stream([row(raw)]))
    assert caught.value.code == "RIVET_SOURCE_UNDECODABLE"


def test_null_elements_need_more_room_than_they_take_on_the_wire() -> None:
    """4 bytes of wire become a 16-byte slot: room is counted in elements."""
    rows = [array([None] * 5000), array([None] * 5000)]
    table = decode([list_of(pa.decimal128(38, 0), Wire.DECIMAL128)], stream(row(r) for r in rows))
    assert [len(v) for v in table.column(0).to_pylist()] == [5000, 5000]
