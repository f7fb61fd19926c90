"""Schema fingerprints against those that rivet-cli 0.32.2 wrote."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest

from rivet_dagster.engine.verify.fingerprint import (
    bytes_fingerprint,
    is_fingerprint,
    schema_fingerprint,
    stream_fingerprint,
    type_text,
)

ORDERS = [
    ("id", pa.int64()),
    ("customer", pa.string()),
    ("amount", pa.decimal128(12, 2)),
    ("placed_at", pa.timestamp("us", "UTC")),
    ("doc", pa.json_(pa.string())),
    ("uid", pa.uuid()),
]

ONE_COLUMN = {
    pa.bool_(): "dbddb8fa188f7569",
    pa.int16(): "89d75f69c4a1d244",
    pa.int32(): "c0e91afafa016d56",
    pa.int64(): "9ca46b4e29a66fd4",
    pa.float32(): "dff3f6ecd7e77812",
    pa.float64(): "a069c556bec27786",
    pa.date32(): "da4420d8ee2d5ed1",
    pa.timestamp("us"): "7cd3c158d57f98fc",
    pa.timestamp("us", "UTC"): "915f193ae4a222ce",
    pa.time64("us"): "6474a09c62a7660d",
    pa.string(): "41c9ea8585e4019e",
    pa.binary(): "e8f3a67069887821",
    pa.binary(16): "40321dae0d5ad72a",
    pa.decimal128(38, 10): "2a948671f7e9f023",
    pa.decimal256(60, 10): "56c2ab8c69d9fc89",
    pa.list_(pa.field("item", pa.int32())): "0ae496cf3ff0230c",
    pa.list_(pa.field("item", pa.bool_())): "ee0f7dd1d34e90e8",
    pa.list_(pa.field("item", pa.string())): "937fe775a6b8e869",
}


def test_the_sample_export_has_the_fingerprint_of_the_reference() -> None:
    assert schema_fingerprint(pa.schema(ORDERS)) == "xxh3:1c80fded66f3c0a2"
    assert schema_fingerprint(pa.schema(reversed(ORDERS))) == "xxh3:1c80fded66f3c0a2"


@pytest.mark.parametrize(("kind", "expected"), ONE_COLUMN.items(), ids=str)
def test_each_type_prints_as_the_reference_prints_it(kind: pa.DataType, expected: str) -> None:
    assert schema_fingerprint(pa.schema([("v", kind)])) == f"xxh3:{expected}"


def test_metadata_does_not_count_but_name_and_type_do() -> None:
    plain = pa.schema([("v", pa.int32())])
    assert schema_fingerprint(plain.with_metadata({"a": "b"})) == schema_fingerprint(plain)
    assert schema_fingerprint(pa.schema([("w", pa.int32())])) != schema_fingerprint(plain)
    assert (
        type_text(pa.list_(pa.field("x", pa.int8(), nullable=False)))
        == 'List(Field { name: "x", data_type: Int8 })'
    )


def test_a_list_read_from_parquet_keeps_the_fingerprint_it_was_written_with() -> None:
    written = pa.schema([("v", pa.list_(pa.field("item", pa.int32())))])
    read = pa.schema([("v", pa.list_(pa.field("element", pa.int32())))])
    assert schema_fingerprint(read) == schema_fingerprint(written)


def test_bytes_and_streams_agree() -> None:
    data = bytes(range(256)) * 9000
    assert stream_fingerprint(io.BytesIO(data)) == bytes_fingerprint(data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "xxh3:",
        "xxh3:123",
        "xxh3:" + "G" * 16,
        "xxh3:" + "A" * 16,
        "xxh3:" + "0" * 17,
        "xxh3:" + "0" * 16 + "\n",
        "md5:" + "0" * 16,
    ],
)
def test_odd_fingerprints_are_none(text: str) -> None:
    assert not is_fingerprint(text)


def test_a_real_one_is() -> None:
    assert is_fingerprint("xxh3:00000000deadbeef")
