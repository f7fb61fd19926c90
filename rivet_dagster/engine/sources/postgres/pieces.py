"""A unit that a standby's recovery cancelled, read in pieces along its key, each under a snapshot of its own.

A standby cancels a statement whose snapshot stands in the way of what it replays for longer than
``max_standby_streaming_delay``: the same statement again would end the same way, a shorter one need not.
A piece is delivered when it is complete, so what has been read is kept whatever happens to the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa
from msgspec.structs import replace

from rivet_dagster.engine.plan.units import UnitKind, WorkUnit
from rivet_dagster.engine.sources.postgres.predicate import Origin, cursor_sql, unit_from_where
from rivet_dagster.engine.sources.postgres.quote import quote_ident

FIRST_ROWS: Final = 500
#: Conflicts one after another that are borne; 500 rows have then become 7.
MAX_CONFLICTS: Final = 6

_PAUSE_S: Final = 0.2
_KEYED: Final = frozenset({UnitKind.KEY, UnitKind.RANGE, UnitKind.SPAN, UnitKind.WINDOW})


class Connection(Protocol):
    """What a piece needs of the reader."""

    def ask(self, statement: str) -> tuple[Any, ...] | None:
        """The first row, in a short transaction."""
        ...

    def fetch(self, unit: WorkUnit, max_bytes: int | None) -> list[pa.RecordBatch] | None:
        """All rows of ``unit``, or None when they take more than ``max_bytes``."""
        ...

    def is_conflict(self, error: BaseException) -> bool: ...

    def pause(self, seconds: float) -> None: ...


def can_split(unit: WorkUnit) -> bool:
    """The unit has an order that its rows can be taken up again in."""
    return unit.kind in _KEYED


@dataclass(slots=True)
class _Key:
    """The order of a unit: its columns or the one expression that it walks along."""

    parts: Sequence[str]
    spec: Mapping[str, Any]
    integer: bool

    @classmethod
    def of(cls, unit: WorkUnit) -> _Key:
        spec = unit.spec
        if "columns" in spec:
            return cls([quote_ident(c) for c in spec["columns"]], spec, integer=False)
        expression = cursor_sql(spec["column"], spec.get("fallback"))
        return cls([expression], spec, integer=unit.kind is UnitKind.RANGE)

    def value(self, row: tuple[Any, ...]) -> Any:
        if "columns" in self.spec:
            return [str(value) for value in row]
        return int(row[0]) if self.integer else str(row[0])

    def select(self, unit: WorkUnit, origin: Origin, *, descending: bool = False, offset: int = 0) -> str:
        """The key at one place of the unit, as the server's text."""
        source, condition, _ = unit_from_where(unit, origin)
        order = ", ".join(f"{part} DESC" if descending else part for part in self.parts)
        # by names of their own: ORDER BY must mean the column, not its text
        texts = ", ".join(f'({part})::text AS "_rivet_{i}"' for i, part in enumerate(self.parts))
        return (
            f"SELECT {texts} FROM {source} WHERE ({condition}) AND {self.parts[0]} IS NOT NULL"
            f" ORDER BY {order} OFFSET {offset} LIMIT 1"
        )

    def upto(self, unit: WorkUnit, value: Any) -> WorkUnit:
        return replace(unit, spec={**_without(unit.spec, "lt"), "le": value})

    def after(self, unit: WorkUnit, value: Any) -> WorkUnit:
        if self.integer:
            return replace(unit, spec={**unit.spec, "ge": value + 1})
        return replace(unit, spec={**_without(unit.spec, "ge"), "gt": value})


def _without(spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key != name}


def read_in_pieces(
    unit: WorkUnit,
    origin: Origin,
    connection: Connection,
    *,
    max_rows: int,
    max_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """The unit's rows in batches of at most about ``max_rows`` rows and ``max_bytes`` bytes.

    Pieces double while they come through and halve at each conflict. The unit ends at the greatest key
    that there is now, so rows that go on coming do not prolong it. Raises the conflict that
    follows ``MAX_CONFLICTS`` others without a piece in between.
    """
    key = _Key.of(unit)
    held: list[pa.RecordBatch] = []
    rows, conflicts, ending = FIRST_ROWS, 0, False
    rest: WorkUnit | None = unit
    while rest is not None:
        try:
            if not ending:
                last = connection.ask(key.select(rest, origin, descending=True))
                if last is None:
                    break
                rest, ending = key.upto(rest, key.value(last)), True
            row = connection.ask(key.select(rest, origin, offset=rows - 1))
            bound = None if row is None else key.value(row)
            piece = rest if bound is None else key.upto(rest, bound)
            found = connection.fetch(piece, max_bytes if rows > 1 else None)
        except Exception as error:
            if not connection.is_conflict(error):
                raise
            conflicts += 1
            if conflicts > MAX_CONFLICTS:
                raise
            rows = max(1, rows // 2)
            connection.pause(_PAUSE_S * 2**conflicts)
            continue
        if found is None:
            rows = max(1, rows // 2)
            continue
        conflicts, rows = 0, min(rows * 2, max_rows)
        rest = None if bound is None else key.after(rest, bound)
        for batch in found:
            if held and _full([*held, batch], max_rows, max_bytes):
                yield _joined(held)
                held = []
            held.append(batch)
    if held:
        yield _joined(held)


def _full(batches: list[pa.RecordBatch], max_rows: int, max_bytes: int) -> bool:
    rows, size = sum(b.num_rows for b in batches), sum(int(b.nbytes) for b in batches)
    return rows > max_rows or size > max_bytes


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
