"""The frame of a COPY: header, tuples, trailer. What breaks it is an error, never a guess."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from rivet_dagster.engine.errors import InternalError, RefusalError, UsageError
from rivet_dagster.engine.sources.postgres.decoder import CopyDecoder
from rivet_dagster.engine.sources.postgres.kernel import Wire
from tests.unit.kernel.stream import (
    HEADER,
    SIGNATURE,
    TRAILER,
    Source,
    column,
    decode,
    field,
    int4,
    numeric,
    row,
    stream,
    text,
    values,
)

ONE = row(struct.pack("!i", 7))


def refused(columns: Sequence[object], messages: Sequence[bytes], **options: object) -> RefusalError:
    source = Source(messages)
    decoder = CopyDecoder(columns, **options)  # type: ignore[arg-type]
    with pytest.raises(RefusalError) as caught:
        list(decoder.decode(source.transport))
    assert source.leaked == 0
    with pytest.raises(InternalError):
        decoder.flush()
    return caught.value


def test_header_alone_with_the_first_row_and_with_everything() -> None:
    assert values([int4()], [HEADER, ONE, TRAILER]) == [7]
    assert values([int4()], [HEADER + ONE, TRAILER]) == [7]
    assert values([int4()], [HEADER + ONE + ONE + TRAILER]) == [7, 7]
    assert values([int4()], [HEADER + TRAILER]) == []


def test_header_extension_is_skipped() -> None:
    extended = SIGNATURE + struct.pack("!II", 0, 5) + b"abcde"
    assert values([int4()], [extended + ONE, TRAILER]) == [7]


@pytest.mark.parametrize(
    "header",
    [
        b"",
        HEADER[:18],
        b"X" + HEADER[1:],
        SIGNATURE + struct.pack("!II", 1 << 16, 0),
        SIGNATURE + struct.pack("!II", 1 << 31, 0),
        SIGNATURE + struct.pack("!II", 0, 9),
        SIGNATURE + struct.pack("!Ii", 0, -1),
        SIGNATURE + struct.pack("!Ii", 0, 2**31 - 1),
    ],
    ids=[
        "row",
        "short",
        "signature",
        "oids",
        "critical",
        "extension-long",
        "extension-negative",
        "extension-max",
    ],
)
def test_bad_header(header: bytes) -> None:
    error = refused([int4()], [header or ONE, ONE, TRAILER])
    assert error.code == "RIVET_SOURCE_UNDECODABLE"


@pytest.mark.parametrize(
    "broken",
    [
        b"\x00",
        b"\x00\x01",
        b"\x00\x01\x00\x00",
        struct.pack("!hi", 1, -2),
        struct.pack("!hi", 1, 4) + b"abc",
        struct.pack("!hi", 1, 2**31 - 1) + b"abcd",
        struct.pack("!hi", 1, -(2**31)) + b"abcd",
        struct.pack("!hi", 1, 3) + b"abc",
        struct.pack("!hi", 1, 8) + b"abcdefgh",
        struct.pack("!hi", 1, 0),
        struct.pack("!h", 0),
        struct.pack("!h", -2),
        row(b"abcd", b"abcd"),
        ONE + b"\x00",
        TRAILER + b"\x00",
    ],
)
def test_broken_tuple(broken: bytes) -> None:
    error = refused([int4()], [HEADER, ONE, broken, TRAILER])
    assert error.code == "RIVET_SOURCE_UNDECODABLE"
    assert "row 2" in error.message or broken.startswith((ONE, TRAILER))


def test_data_after_the_trailer() -> None:
    refused([int4()], [HEADER, TRAILER, ONE])


def test_broken_stream_is_an_error() -> None:
    source = Source([HEADER, ONE], end=-2)
    with pytest.raises(RefusalError):
        list(CopyDecoder([int4()]).decode(source.transport))


def test_table_without_columns_counts_its_rows() -> None:
    source = Source([HEADER, row(), row(), TRAILER])
    decoder = CopyDecoder([])
    assert list(decoder.decode(source.transport)) == []
    last = decoder.flush()
    assert decoder.rows == 2
    assert last is not None
    assert last.num_columns == 0


@pytest.mark.parametrize("columns", [1, 5, 40, 1600])
def test_many_columns(columns: int) -> None:
    names = [int4(f"c{i}") if i % 2 else text(f"c{i}") for i in range(columns)]
    one = row(*(struct.pack("!i", i) if i % 2 else str(i).encode() for i in range(columns)))
    nulls = row(*([None] * columns))
    table = decode(names, stream([one, nulls, one]))
    assert [c[0].as_py() for c in table.columns] == [i if i % 2 else str(i) for i in range(columns)]
    assert all(c.null_count == 1 for c in table.columns)


def test_value_over_the_limit_names_the_column_and_not_the_value() -> None:
    error = refused(
        [int4("id"), text("body")],
        stream([row(b"\0\0\0\1", b"x" * 100), row(b"\0\0\0\2", b"secret" * 20)]),
        max_value_bytes=100,
    )
    assert error.code == "RIVET_VALUE_TOO_LARGE"
    assert error.field == "body"
    assert "120 bytes in row 2" in error.message
    assert "secret" not in error.message
    assert not error.stops_run


def test_value_at_the_limit_passes() -> None:
    assert values([text()], stream([row(b"x" * 100)]), max_value_bytes=100) == ["x" * 100]


@pytest.mark.parametrize(
    ("arrow", "wire"),
    [
        (pa.int32(), Wire.INT64),
        (pa.utf8(), Wire.BYTES),
        (pa.timestamp("ms"), Wire.TIMESTAMP),
        (pa.decimal256(60, 2), Wire.DECIMAL128),
        (pa.decimal128(10, -2), Wire.DECIMAL128),
        (pa.list_(pa.field("item", pa.int16())), Wire.LIST | Wire.INT32),
        (pa.int32(), 99),
        (pa.int32(), 0),
    ],
)
def test_type_and_wire_code_must_belong_together(arrow: pa.DataType, wire: int) -> None:
    with pytest.raises(InternalError, match="'a'"):
        CopyDecoder([column("a", arrow, wire)])


def test_limits_keep_offsets_in_int32() -> None:
    cases: tuple[dict[str, Any], ...] = (
        {"max_rows": 0},
        {"max_bytes": 2**31},
        {"max_bytes": 2**30, "max_value_bytes": 2**30},
    )
    for options in cases:
        with pytest.raises(UsageError):
            CopyDecoder([int4()], **options)


def test_error_does_not_show_other_columns() -> None:
    error = refused(
        [text("name"), numeric(5, 2)], stream([row(b"private", struct.pack("!hhHH", 0, 0, 0xC000, 0))])
    )
    assert error.field == "n"
    assert "private" not in str(error)


def test_field_helper_matches_the_protocol() -> None:
    assert field(None) == b"\xff\xff\xff\xff"
    assert field(b"ab") == b"\0\0\0\2ab"
