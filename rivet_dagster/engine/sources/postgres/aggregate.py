"""The same statistics of the same rows, taken by the server and from Arrow batches.

Reconciliation compares the two. Each statistic is exact on both sides, whatever the order of the rows:
sums are integers or decimals, never floats; text is compared by bytes; a float is summed as its bits.
A timestamp counts in microseconds since 1970, a date in days.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from rivet_dagster.engine.sources.postgres.kernel import Wire
from rivet_dagster.engine.sources.postgres.rowhash import digest_arrow, digest_sql, temporal_sql, text_sql
from rivet_dagster.engine.types.aggregates import Aggregates, ColumnAggregate
from rivet_dagster.engine.types.decision import Column

_PREFIX: Final = 256  # characters of a text, bytes of a binary, that its bounds are taken from


class Measure(Struct, frozen=True):
    """One statistic. sql: aggregate that gives it as text. of: the same of one Arrow array.

    merge: joins two arrays' values, neither None. parse: reads the server's text. empty: without rows.
    """

    name: str
    sql: str
    of: Callable[[pa.Array], Any]
    merge: Callable[[Any, Any], Any]
    parse: Callable[[str], Any] = int
    empty: Any = None

    def read(self, text: str | None) -> Any:
        return self.empty if text is None else self.parse(text)


class AggregatePlan(Struct, frozen=True):
    """What the columns of an aggregate statement mean. digest: it ends with the rows' digest."""

    measures: Mapping[str, tuple[Measure, ...]]
    digest: bool = False

    def read(self, row: Sequence[Any]) -> Aggregates:
        """The statement's only row: a count as text, one text array a column, perhaps a digest."""
        last = len(self.measures) + 1
        columns = {
            name: ColumnAggregate({m.name: m.read(text) for m, text in zip(measures, values, strict=True)})
            for (name, measures), values in zip(self.measures.items(), row[1:last], strict=True)
        }
        return Aggregates(int(row[0]), columns, int(row[-1]) if self.digest else None)


def aggregate_sql(
    columns: Sequence[Column], from_where: str, *, encoding: str = "UTF8", digest: Collection[str] = ()
) -> tuple[str, AggregatePlan]:
    """One statement over ``from_where`` (``FROM ... WHERE ...``), and how to read its row.

    digest: columns of the rows' digest, which are ``rowhash.hashable``; without any it is not taken.

    One entry of the SELECT list a column, so that 1600 columns stay below the server's 1664. encoding:
    the server's; in another than UTF8 text is compared by its UTF-8 length alone.
    """
    plan = AggregatePlan({c.name: _measures(c, encoding) for c in columns}, bool(digest))
    entries = [f"ARRAY[{', '.join(f'({m.sql})::text' for m in ms)}]" for ms in plan.measures.values()]
    if digest:
        entries.append(digest_sql([c for c in columns if c.name in digest]))
    return f"SELECT {', '.join(['count(*)::text', *entries])} {from_where}", plan


def aggregate_arrow(
    batches: Iterable[pa.RecordBatch], columns: Sequence[Column], *, digest: Collection[str] = ()
) -> Aggregates:
    """The same statistics of batches that hold ``columns`` by name. Memory: one batch."""
    hashed = [c for c in columns if c.name in digest]
    total = 0
    measures = {c.name: _measures(c, "UTF8") for c in columns}
    state: dict[str, list[Any]] = {name: [m.empty for m in ms] for name, ms in measures.items()}
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        total += digest_arrow(batch, hashed) if hashed else 0
        for name, wanted in measures.items():
            array = _storage(batch.column(name))
            held = state[name]
            for i, measure in enumerate(wanted):
                held[i] = _joined(measure, held[i], measure.of(array))
    found = {
        name: ColumnAggregate({m.name: value for m, value in zip(ms, state[name], strict=True)})
        for name, ms in measures.items()
    }
    return Aggregates(rows, found, total if hashed else None)


def _joined(measure: Measure, held: Any, new: Any) -> Any:
    if new is None or held is None:
        return held if new is None else new
    return measure.merge(held, new)


def _measures(column: Column, encoding: str) -> tuple[Measure, ...]:
    value = column.select
    nulls = Measure("nulls", f"count(*) - count({value})", lambda a: a.null_count, _add, empty=0)
    return nulls, *_of_values(column, value, encoding)


def _of_values(column: Column, value: str, encoding: str) -> tuple[Measure, ...]:
    kind = column.arrow
    if column.wire & Wire.LIST:
        found: tuple[Measure, ...] = (_sum("items", f"cardinality({value})", _list_items),)
    elif pa.types.is_boolean(kind):
        found = (_sum("trues", f"({value})::int", lambda a: pc.sum(a).as_py()),)
    elif pa.types.is_integer(kind):
        found = _number(f"({value})::int8" if column.wire == Wire.OID else value, "TRUE", lambda a: a)
    elif pa.types.is_floating(kind):
        found = _float(value, pa.types.is_float32(kind))
    elif pa.types.is_decimal(kind):
        found = _decimal(value, column.scale)
    elif pa.types.is_temporal(kind):
        found = _temporal(value, kind)
    elif column.wire == Wire.UUID:
        found = _bounds(f'(({value})::text COLLATE "C")', _uuid_text)
    else:
        found = _bytes(column, encoding)
    return found


def _list_items(array: pa.Array) -> int:
    return _total(pc.list_value_length(array))


def _add(a: Any, b: Any) -> Any:
    return a + b


def _sum(name: str, value: str, of: Callable[[pa.Array], Any], where: str = "TRUE") -> Measure:
    filtered = "" if where == "TRUE" else f" FILTER (WHERE {where})"
    return Measure(name, f"sum({value}){filtered}", of, _add, empty=0)


def _number(value: str, where: str, integers: Callable[[pa.Array], pa.Array]) -> tuple[Measure, ...]:
    """Bounds and sum of an integer expression; ``integers`` gives the same of an array."""
    filtered = "" if where == "TRUE" else f" FILTER (WHERE {where})"
    return (
        Measure("min", f"min({value}){filtered}", lambda a: pc.min(integers(a)).as_py(), min),
        Measure("max", f"max({value}){filtered}", lambda a: pc.max(integers(a)).as_py(), max),
        _sum("sum", value, lambda a: _total(integers(a)), where),
    )


def _float(value: str, single: bool) -> tuple[Measure, ...]:
    """NaNs counted, everything else summed as the integer that its bits are: exact in any order."""
    send, bits = ("float4send", 32) if single else ("float8send", 64)
    number = f"('x' || encode({send}({value}), 'hex'))::bit({bits})::int{bits // 8}"
    view = pa.int32() if single else pa.int64()
    is_nan = f"{value} = 'NaN'"

    def bit_sum(array: pa.Array) -> int:
        return _total(array.filter(pc.invert(pc.is_nan(array)), null_selection_behavior="drop").view(view))

    return (
        Measure(
            "nans", f"count(*) FILTER (WHERE {is_nan})", lambda a: pc.sum(pc.is_nan(a)).as_py(), _add, empty=0
        ),
        _sum("bits", number, bit_sum, f"NOT {is_nan}"),
    )


def _decimal(value: str, scale: int) -> tuple[Measure, ...]:
    """Bounds and sum as integers in units of the last place."""

    def unscaled(aggregate: str) -> str:
        return f"trunc({aggregate}({value}) * 1e{scale}::numeric)"

    return (
        Measure("min", unscaled("min"), lambda a: _one_decimal(pc.min(a)), min, _int_or_nan),
        Measure("max", unscaled("max"), lambda a: _one_decimal(pc.max(a)), max, _int_or_nan),
        Measure("sum", unscaled("sum"), _decimal_total, _add, _int_or_nan, 0),
    )


def _temporal(value: str, kind: pa.DataType) -> tuple[Measure, ...]:
    """Days or microseconds since 1970 or midnight; an infinity has no number and is counted apart."""
    number, view = temporal_sql(value, kind)
    if pa.types.is_time(kind):
        return _number(number, "TRUE", lambda a: a.view(view))
    nanos = pa.types.is_timestamp(kind) and kind.unit == "ns"  # of whole microseconds

    def integers(array: pa.Array) -> pa.Array:
        return pc.divide(array.view(view), 1000) if nanos else array.view(view)

    infinite = f"count(*) FILTER (WHERE NOT isfinite({value}))"
    return (
        Measure("infinite", infinite, lambda _: 0, _add, empty=0),
        *_number(number, f"isfinite({value})", integers),
    )


def _bounds(value: str, of: Callable[[Any], str | None]) -> tuple[Measure, ...]:
    return (
        Measure("min", f"min({value})", lambda a: of(pc.min(a).as_py()), min, str),
        Measure("max", f"max({value})", lambda a: of(pc.max(a).as_py()), max, str),
    )


def _bytes(column: Column, encoding: str) -> tuple[Measure, ...]:
    """Text and binary: bytes in all, and the bounds of the first ``_PREFIX`` characters or bytes."""
    value = column.select
    if column.wire == Wire.BYTES:
        prefix = f"encode(substring({value} FROM 1 FOR {_PREFIX}), 'hex') COLLATE \"C\""
        length = _sum("bytes", f"octet_length({value})", lambda a: _total(pc.binary_length(a)))
        return length, *_bounds(f"({prefix})", _hex_prefix)
    text = text_sql(column)
    present = f"{value} IS NOT NULL" if text.startswith("concat") else "TRUE"
    same = encoding.upper() in ("UTF8", "UTF-8")
    sized = text if same else f"convert_to({text}, 'UTF8')"
    length = _sum("bytes", f"octet_length({sized})", lambda a: _total(pc.binary_length(a)), present)
    if not same or column.logical_type == "json":
        return (length,)
    return length, *_text_bounds(f'(left({text}, {_PREFIX}) COLLATE "C")', present)


def _text_bounds(value: str, where: str) -> tuple[Measure, ...]:
    """Python orders code points, which is the order of their UTF-8 bytes."""
    filtered = "" if where == "TRUE" else f" FILTER (WHERE {where})"

    def prefix(array: pa.Array) -> pa.Array:
        return pc.utf8_slice_codeunits(array, 0, _PREFIX)

    return (
        Measure("min", f"min({value}){filtered}", lambda a: pc.min(prefix(a)).as_py(), min, str),
        Measure("max", f"max({value}){filtered}", lambda a: pc.max(prefix(a)).as_py(), max, str),
    )


def _uuid_text(value: Any) -> Any:
    return None if value is None else str(uuid.UUID(bytes=value))


def _hex_prefix(value: bytes | None) -> Any:
    return None if value is None else value[:_PREFIX].hex()


def _storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _total(integers: pa.Array) -> int:
    """Sum of an integer array without overflow: high and low halves apart."""
    wide = integers.cast(pa.int64())
    low = pc.sum(pc.bit_wise_and(wide, 0xFFFFFFFF)).as_py() or 0
    high = pc.sum(pc.shift_right(wide, 32)).as_py() or 0
    return (int(high) << 32) + int(low)


def _decimal_total(array: pa.Array) -> int:
    """Sum of a decimal array in units of the last place, of any size: by 32-bit limbs."""
    present = array.drop_null()
    count, size = len(present), array.type.bit_width // 32
    if not count:
        return 0
    data = present.buffers()[1].slice(present.offset * size * 4, count * size * 4)
    total = 0
    for limb in range(size):
        kind = pa.int32() if limb == size - 1 else pa.uint32()  # the sign is in the highest
        limbs = pa.FixedSizeListArray.from_arrays(
            pa.Array.from_buffers(kind, count * size, [None, data]), size
        )
        total += int(pc.sum(pc.list_element(limbs, limb)).as_py()) << (32 * limb)
    return total


def _one_decimal(value: pa.Scalar) -> int | None:
    return _decimal_total(pa.array([value.as_py()], value.type)) if value.is_valid else None


def _int_or_nan(text: str) -> int | str:
    return text if text in ("NaN", "Infinity", "-Infinity") else int(text)


__all__ = ["AggregatePlan", "Measure", "aggregate_arrow", "aggregate_sql"]
