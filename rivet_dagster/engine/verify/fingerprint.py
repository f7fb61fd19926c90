"""Fingerprints that other tools reproduce: of bytes, and of a schema."""

from __future__ import annotations

import hashlib
import re
from typing import Any, BinaryIO, Final, cast

import pyarrow as pa
import xxhash

FINGERPRINT_PREFIX: Final = "xxh3:"
_FINGERPRINT = re.compile(r"xxh3:[0-9a-f]{16}\Z")

_UNIT_NAMES: Final = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}
_PLAIN: Final[dict[pa.DataType, str]] = {
    pa.null(): "Null",
    pa.bool_(): "Boolean",
    pa.int8(): "Int8",
    pa.int16(): "Int16",
    pa.int32(): "Int32",
    pa.int64(): "Int64",
    pa.uint8(): "UInt8",
    pa.uint16(): "UInt16",
    pa.uint32(): "UInt32",
    pa.uint64(): "UInt64",
    pa.float16(): "Float16",
    pa.float32(): "Float32",
    pa.float64(): "Float64",
    pa.date32(): "Date32",
    pa.date64(): "Date64",
    pa.string(): "Utf8",
    pa.large_string(): "LargeUtf8",
    pa.string_view(): "Utf8View",
    pa.binary(): "Binary",
    pa.large_binary(): "LargeBinary",
    pa.binary_view(): "BinaryView",
}


def storage_type(kind: pa.DataType) -> pa.DataType:
    """The Arrow type that holds the values: the storage of an extension type, else the type itself."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def is_fingerprint(text: str) -> bool:
    """Whether ``text`` is ``xxh3:`` and 16 lowercase hex digits, and nothing else."""
    return _FINGERPRINT.match(text) is not None


def bytes_fingerprint(data: bytes) -> str:
    return f"{FINGERPRINT_PREFIX}{xxhash.xxh3_64_hexdigest(data)}"


def stream_fingerprint(file: BinaryIO) -> str:
    """``xxh3:<16 hex>`` of what is left to read of ``file``, in blocks that stay in a core's cache."""
    digest = hashlib.file_digest(cast(Any, file), xxhash.xxh3_64)
    return f"{FINGERPRINT_PREFIX}{digest.hexdigest()}"


def schema_fingerprint(schema: pa.Schema) -> str:
    """Fingerprint of column names and types, independent of their order and of metadata.

    xxh3-64 over one ``name TAB type LF`` for each column, sorted by name. The type is written the way
    arrow-rs prints it, because manifests of the reference carry the same value for the same columns.
    """
    lines = sorted((field.name.encode(), type_text(field.type).encode()) for field in schema)
    return bytes_fingerprint(b"".join(b"%s\t%s\n" % line for line in lines))


def type_text(kind: pa.DataType) -> str:
    """A type as arrow-rs's Debug prints it; extension types print as their storage."""
    kind = storage_type(kind)
    text = _PLAIN.get(kind, str(kind))
    if pa.types.is_timestamp(kind):
        zone = f'Some("{kind.tz}")' if kind.tz is not None else "None"
        text = f"Timestamp({_UNIT_NAMES[kind.unit]}, {zone})"
    elif pa.types.is_time(kind):
        text = f"Time{kind.bit_width}({_UNIT_NAMES[kind.unit]})"
    elif pa.types.is_decimal(kind):
        text = f"Decimal{kind.bit_width}({kind.precision}, {kind.scale})"
    elif pa.types.is_fixed_size_binary(kind):
        text = f"FixedSizeBinary({kind.byte_width})"
    elif pa.types.is_list(kind):
        text = f"List({_list_field(kind.value_field)})"
    return text


def _list_field(field: pa.Field) -> str:
    # arrow-rs leaves out what has its default: the name "item" and nullable = false.
    # Parquet calls the same field "element", and a file read again comes back with that name.
    parts = [f'name: "{field.name}"'] if field.name not in {"item", "element"} else []
    parts.append(f"data_type: {type_text(field.type)}")
    if field.nullable:
        parts.append("nullable: true")
    return f"Field {{ {', '.join(parts)} }}"


__all__ = [
    "FINGERPRINT_PREFIX",
    "bytes_fingerprint",
    "is_fingerprint",
    "schema_fingerprint",
    "storage_type",
    "stream_fingerprint",
    "type_text",
]
