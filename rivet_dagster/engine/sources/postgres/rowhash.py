"""One number for a set of whole rows, equal for the server's rows and those of a file, in any order.

The sum over the rows of 60 bits of the MD5 of a row's text. It sees what sums of columns do not: cells
that changed rows, and changes that cancel. Each cell goes in as text that both sides make exactly alike:
an integer's digits (also for decimals in units of the last place, times in microseconds, dates in days), a
float's bits, a binary's hex, a text as it is. Lists have no such text and are left out.

Python works row by row here, far from any extraction.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct

from rivet_dagster.engine.sources.postgres.kernel import Wire
from rivet_dagster.engine.types.decision import Column

_NULL, _END = "\x02", "\x01"
_DIGITS: Final = 15  # hex digits of an MD5 that fit a bigint, sign aside
_PLAIN_TEXT: Final = ("text", "character varying")


class _Form(Struct, frozen=True):
    """sql: a cell as text. of: the same of an Arrow array."""

    sql: str
    of: Callable[[pa.Array], list[str | None]]


def hashable(columns: Sequence[Column], encoding: str) -> list[str]:
    """Names of the columns that a row's hash can cover. encoding: the server's."""
    return [c.name for c in columns if _form(c, encoding) is not None]


def digest_sql(columns: Sequence[Column]) -> str:
    """The digest of all rows as an aggregate that gives text; of ``hashable`` columns only."""
    cells = [f"COALESCE({_required(c).sql}, E'\\x02') || E'\\x01'" for c in columns]
    row = f"md5({' || '.join(cells)})"
    return f"COALESCE(sum(('x' || substr({row}, 1, {_DIGITS}))::bit({4 * _DIGITS})::int8), 0)::text"


def digest_arrow(batch: pa.RecordBatch, columns: Sequence[Column]) -> int:
    """The digest of the rows of ``batch``; those of several batches add up."""
    texts = [_required(c).of(_storage(batch.column(c.name))) for c in columns]
    total = 0
    for row in zip(*texts, strict=True):
        text = "".join([(_NULL if cell is None else cell) + _END for cell in row])
        total += int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:_DIGITS], 16)
    return total


def text_sql(column: Column) -> str:
    """The text that a column which is text in the file has there; of NULL it may be the empty text."""
    value = column.select
    if column.logical_type == "json":
        return f"({value})::text"
    if value.endswith("::text") or column.native_type.startswith(_PLAIN_TEXT):
        return value
    return f"concat({value})"  # the output function: a cast would strip the padding of char(n)


def temporal_sql(value: str, kind: pa.DataType) -> tuple[str, pa.DataType]:
    """(a date or time as an integer, the integer type of the Arrow array): days, or microseconds."""
    if pa.types.is_time(kind):
        # exact: below 2^53 even in microseconds
        return f"(date_part('epoch', {value}) * 1000000)::int8", pa.int64()
    if pa.types.is_date(kind):
        return f"({value} - date '1970-01-01')", pa.int32()
    # whole minutes are exact as a double, and so are the microseconds of one
    minute = f"date_part('epoch', date_trunc('minute', {value}))::int8"
    return f"({minute} * 1000000 + date_part('microseconds', {value})::int8)", pa.int64()


def _required(column: Column) -> _Form:
    found = _form(column, "UTF8")
    assert found is not None
    return found


def _form(column: Column, encoding: str) -> _Form | None:
    kind, value = column.arrow, column.select
    if column.wire & Wire.LIST:
        return None
    if pa.types.is_boolean(kind):
        return _Form(f"({value})::int::text", lambda a: _each(a, lambda v: "1" if v else "0"))
    if pa.types.is_integer(kind):
        number = f"({value})::int8" if column.wire == Wire.OID else f"({value})"
        return _Form(f"{number}::text", lambda a: _each(a, str))
    if pa.types.is_floating(kind):
        return _float(value, single=pa.types.is_float32(kind))
    if pa.types.is_decimal(kind):
        scaled = f"trunc(({value}) * 1e{column.scale}::numeric)::text"
        return _Form(scaled, lambda a: _each(a, _unscaled)) if column.scale >= 0 else None
    if pa.types.is_temporal(kind):
        number, integers = temporal_sql(value, kind)
        nanos = pa.types.is_timestamp(kind) and kind.unit == "ns"  # of whole microseconds
        step = 1000 if nanos else 1
        return _Form(f"{number}::text", lambda a: _each(a.view(integers), lambda v: str(v // step)))
    if column.wire == Wire.UUID:
        return _Form(f"({value})::text", lambda a: _each(a, lambda v: str(uuid.UUID(bytes=v))))
    if column.wire == Wire.BYTES:
        return _Form(f"encode({value}, 'hex')", lambda a: _each(a, bytes.hex))
    if encoding.upper() not in ("UTF8", "UTF-8"):
        return None
    text = f"CASE WHEN ({value}) IS NOT NULL THEN {text_sql(column)} END"
    return _Form(text, lambda a: a.to_pylist())


def _float(value: str, *, single: bool) -> _Form:
    send, integers, digits = ("float4send", pa.uint32(), 8) if single else ("float8send", pa.uint64(), 16)

    def bits(array: pa.Array) -> list[str | None]:
        pairs = zip(array.to_pylist(), array.view(integers).to_pylist(), strict=True)
        return [
            None if v is None else "NaN" if v != v else f"{number:0{digits}x}"  # noqa: PLR0124
            for v, number in pairs
        ]

    return _Form(f"CASE WHEN ({value}) = 'NaN' THEN 'NaN' ELSE encode({send}({value}), 'hex') END", bits)


def _each(array: pa.Array, text: Callable[[Any], str]) -> list[str | None]:
    return [None if value is None else text(value) for value in array.to_pylist()]


def _unscaled(value: Any) -> str:
    return str(int(format(value, "f").replace(".", "")))


def _storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


__all__ = ["digest_arrow", "digest_sql", "hashable", "temporal_sql", "text_sql"]
