"""Rows of every kind, for the hostile tests and for the fuzz corpus (scripts/kernel_asan.sh)."""

from __future__ import annotations

import random
import struct
import sys
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from rivet_dagster.engine.sources.postgres.kernel import Wire
from rivet_dagster.engine.types.decision import Column
from tests.unit.kernel.stream import array, column, numeric_bytes, row, stream

_TYPES: dict[Wire, pa.DataType] = {
    Wire.BOOL: pa.bool_(),
    Wire.INT16: pa.int16(),
    Wire.INT32: pa.int32(),
    Wire.INT64: pa.int64(),
    Wire.OID: pa.int64(),
    Wire.FLOAT32: pa.float32(),
    Wire.FLOAT64: pa.float64(),
    Wire.DATE: pa.date32(),
    Wire.TIMESTAMP: pa.timestamp("us"),
    Wire.TIME: pa.time64("us"),
    Wire.DECIMAL128: pa.decimal128(38, 6),
    Wire.UUID: pa.uuid(),
    Wire.DECIMAL256: pa.decimal256(76, 6),
    Wire.TIMESTAMP_NS: pa.timestamp("ns"),
    Wire.TEXT: pa.utf8(),
    Wire.BYTES: pa.binary(),
    Wire.JSONB: pa.json_(),
}
#: every kind, then a list of every kind; the harness fuzz_main.c builds the same table
COLUMNS: list[Column] = [column(w.name.lower(), t, w) for w, t in _TYPES.items()] + [
    column(f"{w.name.lower()}_list", pa.list_(pa.field("item", t)), Wire.LIST | w) for w, t in _TYPES.items()
]

_WIDTHS = {Wire.INT16: 2, Wire.INT32: 4, Wire.OID: 4, Wire.FLOAT32: 4, Wire.DATE: 4, Wire.UUID: 16}


_NUMBERS: dict[Wire, tuple[str, int, int]] = {
    Wire.BOOL: ("!B", 0, 1),
    Wire.DATE: ("!i", -2_451_545, 2_000_000),
    Wire.TIMESTAMP: ("!q", -(2**60), 2**60),
    Wire.TIMESTAMP_NS: ("!q", -(2**52), 2**52),
    Wire.TIME: ("!q", 0, 86_399_999_999),
}


def value(rng: random.Random, wire: Wire) -> bytes:
    """A valid value of the kind, never a special one."""
    if wire in _NUMBERS:
        code, low, high = _NUMBERS[wire]
        return struct.pack(code, rng.randint(low, high))
    if wire in (Wire.DECIMAL128, Wire.DECIMAL256):
        sign, most = rng.choice(["", "-"]), 38 if wire is Wire.DECIMAL128 else 76
        return numeric_bytes(Decimal(f"{sign}{rng.randrange(10 ** rng.randint(0, most))}e-6"))
    if wire in (Wire.TEXT, Wire.BYTES, Wire.JSONB):
        body = bytes(rng.choices(b"abc {}0", k=rng.choice([0, 1, 3, 9, 20, 40, 300])))
        return b"\1" + body if wire is Wire.JSONB else body
    return rng.randbytes(_WIDTHS.get(wire, 8))


def good_row(rng: random.Random, number: int) -> bytes:
    """A valid row; every fourth value is NULL, and every fourth element."""
    fields: list[bytes | None] = []
    for i, c in enumerate(COLUMNS):
        wire = Wire(c.wire & ~Wire.LIST)
        if (i + number) % 4 == 3:
            fields.append(None)
        elif c.wire & Wire.LIST:
            count = rng.choice([0, 1, 2, 7])
            fields.append(array([None if rng.random() < 0.25 else value(rng, wire) for _ in range(count)]))
        else:
            fields.append(value(rng, wire))
    return row(*fields)


def _mutate(rng: random.Random, messages: list[bytes]) -> list[bytes]:
    """Some bytes changed, some lengths made hostile, perhaps a cut or a message twice."""
    work = [bytearray(m) for m in messages]
    for _ in range(rng.choice([0, 1, 1, 2, 5, 20])):
        target = rng.choice(work)
        if not target:
            continue
        at = rng.randrange(len(target))
        match rng.randrange(4):
            case 0:
                target[at] = rng.randrange(256)
            case 1:
                length = rng.choice([-1, -2, 2**31 - 1, -(2**31), 0, 1, 2, 65535, 2**24])
                target[at : at + 4] = struct.pack("!i", length)
            case 2:
                del target[at:]
            case _:
                target[at:at] = rng.randbytes(rng.randrange(1, 9))
    if rng.random() < 0.1:
        work.insert(rng.randrange(len(work)), rng.choice(work))
    return [bytes(m) for m in work if m]


def write_corpus(path: Path, streams: int, seed: int) -> None:
    """``streams`` streams in one file: uint32 messages, then (uint32 length, bytes) each, big-endian."""
    rng = random.Random(seed)
    with path.open("wb") as out:
        for i in range(streams):
            messages = stream([good_row(rng, n) for n in range(rng.choice([0, 1, 3, 8]))])
            if i % 8:
                messages = _mutate(rng, messages)
            out.write(struct.pack("!I", len(messages)))
            for message in messages:
                out.write(struct.pack("!I", len(message)) + message)


if __name__ == "__main__":
    write_corpus(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
