"""SQL of a unit: FROM and WHERE. One place, used by reading and by reconciliation alike (RC2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rivet_dagster.engine.errors import InternalError
from rivet_dagster.engine.plan.units import UnitKind, WorkUnit
from rivet_dagster.engine.sources.postgres.quote import quote_ident, quote_literal, quote_relation
from rivet_dagster.engine.sources.postgres.statement import query_body


@dataclass(frozen=True, slots=True)
class Origin:
    """What an export reads: a table (schema, name) or a query. Exactly one of the two."""

    schema: str | None = None
    table: str | None = None
    query: str | None = None

    def from_sql(self) -> str:
        if self.query is not None:
            return f"({query_body(self.query)}) AS _rivet"
        assert self.table is not None
        prefix = f"{quote_ident(self.schema)}." if self.schema else ""
        return f"{prefix}{quote_ident(self.table)}"


def _relation(spec: Mapping[str, Any], origin: Origin) -> str:
    relation = spec.get("relation")
    if relation is None:
        return origin.from_sql()
    schema, name = relation
    only = "ONLY " if spec.get("only") else ""
    return f"{only}{quote_ident(schema)}.{quote_ident(name)}"


def relation_sql(unit: WorkUnit, origin: Origin) -> str:
    """Quoted name of the relation that the unit reads; empty for a query."""
    if "relation" in unit.spec:
        return quote_relation(*unit.spec["relation"])
    return "" if origin.query is not None else origin.from_sql()


def _range_condition(spec: Mapping[str, Any]) -> str:
    column = quote_ident(spec["column"])
    # int() because bounds are integers by construction: nothing else may reach the SQL unquoted
    return f"{column} BETWEEN {int(spec['ge'])} AND {int(spec['le'])}"


def _key_condition(spec: Mapping[str, Any]) -> str:
    # an untyped literal takes the column's own type, domains and collation included
    column = quote_ident(spec["column"])
    bounds = []
    if spec.get("gt") is not None:
        bounds.append(f"{column} > {quote_literal(spec['gt'])}")
    if spec.get("le") is not None:
        bounds.append(f"{column} <= {quote_literal(spec['le'])}")
    return " AND ".join(bounds) or "TRUE"


def tid_condition(first: int, last: int | None) -> str:
    """Rows of heap pages [first, last), the end open when None."""
    low = f"ctid >= '({first},0)'::tid"
    return low if last is None else f"{low} AND ctid < '({last},0)'::tid"


def unit_from_where(unit: WorkUnit, origin: Origin) -> tuple[str, str, str]:
    """(FROM item, condition, ORDER BY or '') of a unit. Page ranges cover the whole unit here."""
    source = _relation(unit.spec, origin)
    spec = unit.spec
    match unit.kind:
        case UnitKind.WHOLE if "column" in spec:
            return source, f"({_key_condition(spec)} OR {quote_ident(spec['column'])} IS NULL)", ""
        case UnitKind.WHOLE:
            return source, "TRUE", ""
        case UnitKind.PAGES:
            return source, tid_condition(spec["first"], spec["last"]), ""
        case UnitKind.RANGE:
            return source, _range_condition(spec), ""
        case UnitKind.NULLS:
            return source, f"{quote_ident(spec['column'])} IS NULL", ""
        case UnitKind.KEY:
            return source, _key_condition(spec), f" ORDER BY {quote_ident(spec['column'])}"
        case UnitKind.WINDOW:
            return source, _key_condition(spec), ""
    raise InternalError(f"unit kind {unit.kind}")


def statements(unit: WorkUnit, select: str, origin: Origin) -> list[str]:
    """The SELECTs that read the unit, in order; only page ranges take more than one."""
    source, condition, order = unit_from_where(unit, origin)
    if unit.kind is not UnitKind.PAGES:
        return [f"SELECT {select} FROM {source} WHERE {condition}{order}"]
    first, last, step = unit.spec["first"], unit.spec["last"], unit.spec["step"]
    end = unit.spec["pages"] if last is None else last
    starts = list(range(first, max(end, first + 1), step))
    stops: list[int | None] = [*starts[1:], last]
    return [
        f"SELECT {select} FROM {source} WHERE {tid_condition(a, b)}"
        for a, b in zip(starts, stops, strict=True)
    ]
