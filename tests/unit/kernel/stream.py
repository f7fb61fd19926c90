"""COPY BINARY streams made by hand, and a source that feeds them to the kernel.

The source stands where libpq's PQgetCopyData does: it hands out messages, nothing else.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from rivet_dagster.engine.sources.postgres.decoder import CopyDecoder
from rivet_dagster.engine.sources.postgres.kernel import Transport, Wire
from rivet_dagster.engine.types.decision import Column

SIGNATURE = b"PGCOPY\n\xff\r\n\x00"
HEADER = SIGNATURE + struct.pack("!II", 0, 0)
TRAILER = b"\xff\xff"

_GET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Source:
    """A stream of messages. ``end``: what it returns after the last (-1: end of COPY, -2: an error)."""

    def __init__(self, messages: Iterable[bytes], *, end: int = -1) -> None:
        self._messages: Iterator[bytes] = iter(messages)
        self._end = end
        self._held: dict[int, Any] = {}
        self.freed = 0
        self._get, self._free = _GET(self._give), _FREE(self._take_back)
        get, free = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (self._get, self._free))
        self._addresses = get, free

    @property
    def transport(self) -> Transport:
        return Transport(*self._addresses, None, owner=self)

    def _give(self, _conn: int | None, out: Any, _wait: int) -> int:
        message = next(self._messages, None)
        if message is None:
            return self._end
        held = (ctypes.c_char * max(1, len(message))).from_buffer_copy(message or b"\0")
        address = ctypes.addressof(held)
        self._held[address] = held
        out[0] = address
        return len(message)

    def _take_back(self, address: int) -> None:
        del self._held[address]
        self.freed += 1

    @property
    def leaked(self) -> int:
        return len(self._held)


def column(name: str, arrow: pa.DataType, wire: int, native: str = "x", width: int | None = None) -> Column:
    return Column(name, native, arrow, f'"{name}"', int(wire), avg_width=width)


def int4(name: str = "a") -> Column:
    return column(name, pa.int32(), Wire.INT32, "integer")


def text(name: str = "t", width: int | None = None) -> Column:
    return column(name, pa.utf8(), Wire.TEXT, "text", width)


def numeric(precision: int, scale: int) -> Column:
    wide = precision > 38
    arrow = pa.decimal256(precision, scale) if wide else pa.decimal128(precision, scale)
    wire = Wire.DECIMAL256 if wide else Wire.DECIMAL128
    return column("n", arrow, wire, f"numeric({precision},{scale})")


def list_of(element: pa.DataType, wire: Wire) -> Column:
    return column("l", pa.list_(pa.field("item", element)), Wire.LIST | wire)


def field(value: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if value is None else struct.pack("!i", len(value)) + value


def row(*values: bytes | None) -> bytes:
    return struct.pack("!h", len(values)) + b"".join(field(v) for v in values)


def stream(rows: Iterable[bytes]) -> list[bytes]:
    """As a server sends it: the header with the first row, a message a row, the trailer."""
    return [HEADER, *rows, TRAILER]


def array(values: Sequence[bytes | None], oid: int = 23, lower: int = 1) -> bytes:
    if not values:
        return struct.pack("!iiI", 0, 0, oid)
    head = struct.pack("!iiIii", 1, int(None in values), oid, len(values), lower)
    return head + b"".join(field(v) for v in values)


def numeric_bytes(value: Decimal, *, dscale: int | None = None, pad: tuple[int, int] = (0, 0)) -> bytes:
    """``value`` as numeric_send writes it; ``pad`` adds (leading, trailing) zero groups it would strip."""
    if value.is_nan():
        return struct.pack("!hhHH", 0, 0, 0xC000, 0)
    if value.is_infinite():
        return struct.pack("!hhHH", 0, 0, 0xF000 if value < 0 else 0xD000, 0x20)
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    shown = max(-exponent, 0)
    whole = ("".join(map(str, digits)) + "0" * max(exponent, 0)).rjust(shown, "0")
    integer, fraction = whole[: len(whole) - shown], whole[len(whole) - shown :]
    integer = integer.rjust(-(-len(integer) // 4) * 4, "0")
    fraction = fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    groups = [int((integer + fraction)[i : i + 4]) for i in range(0, len(integer + fraction), 4)]
    weight = len(integer) // 4 - 1
    while groups and groups[0] == 0:
        groups.pop(0)
        weight -= 1
    while groups and groups[-1] == 0:
        groups.pop()
    if not groups:
        weight = 0
    groups = [0] * pad[0] + groups + [0] * pad[1]
    head = struct.pack(
        "!hhHH", len(groups), weight + pad[0], 0x4000 if sign and groups else 0, dscale or shown
    )
    return head + b"".join(struct.pack("!h", g) for g in groups)


def decode(columns: Sequence[Column], messages: Iterable[bytes], **options: Any) -> pa.Table:
    """All rows of one stream; checks that the batches are valid Arrow and that every message was freed."""
    source = Source(messages)
    decoder = CopyDecoder(columns, **options)
    batches = list(decoder.decode(source.transport))
    last = decoder.flush()
    if last is not None:
        batches.append(last)
    for batch in batches:
        batch.validate(full=True)
    assert source.leaked == 0
    return pa.Table.from_batches(batches, schema=decoder.schema)


def values(columns: Sequence[Column], messages: Iterable[bytes], **options: Any) -> list[Any]:
    """The first column of ``decode`` as Python objects."""
    return list(decode(columns, messages, **options).column(0).to_pylist())
