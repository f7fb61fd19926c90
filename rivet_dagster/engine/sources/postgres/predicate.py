"""SQL of a unit: FROM and WHERE. One place, used by reading and by reconciliation alike (RC2)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rivet_dagster.engine.errors import InternalError
from rivet_dagster.engine.plan.units import UnitKind, WorkUnit
from rivet_dagster.engine.sources.postgres.quote import quote_ident, quote_literal, quote_relation
from rivet_dagster.engine.sources.postgres.statement import query_body


class Origin(Struct, frozen=True):
    """What an export reads: a table (schema, name) or a query. Exactly one of the two.

    operators: schemas of the table's types outside pg_catalog, where their comparisons are found: without
    them a citext is compared as text, in another order than that of its index.
    """

    schema: str | None = None
    table: str | None = None
    query: str | None = None
    operators: tuple[str, ...] = ()

    @property
    def search_path(self) -> str | None:
        """Of the statements over it; None for a query, whose names the role's own path resolves."""
        return (
            None if self.query is not None else ", ".join(map(quote_ident, ("pg_catalog", *self.operators)))
        )

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


_OPERATORS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def cursor_sql(column: str, fallback: str | None = None) -> str:
    """The cursor as an expression; one place, so that bounds and reads agree (CC6, CC7)."""
    name = quote_ident(column)
    return name if fallback is None else f"COALESCE({name}, {quote_ident(fallback)})"


def key_sql(columns: Sequence[str]) -> str:
    """Columns that are compared as one row."""
    names = ", ".join(quote_ident(column) for column in columns)
    return f"({names})" if len(columns) > 1 else names


def key_literal(values: Sequence[str]) -> str:
    """The other side of such a comparison. An untyped literal takes the column's own type, domains and
    collation included."""
    literals = ", ".join(quote_literal(value) for value in values)
    return f"({literals})" if len(values) > 1 else literals


def _bounded(spec: Mapping[str, Any]) -> str:
    """The bounds of ``column`` (with its ``fallback``), or of ``columns``, compared as rows; else TRUE."""
    several = "columns" in spec
    key = key_sql(spec["columns"]) if several else cursor_sql(spec["column"], spec.get("fallback"))
    bounds = []
    for name, operator in _OPERATORS.items():
        value = spec.get(name)
        if value is not None:
            bounds.append(f"{key} {operator} {key_literal(value if several else [value])}")
    return " AND ".join(bounds) or "TRUE"


def version_sql(versions: Mapping[str, Any]) -> str:
    """Row versions made by transactions of [low, high); 32 bits of an id are kept with a row.

    ``next`` bounds every id that the snapshot sees, so the missing bits follow from it, up to one turn of
    the counter back. Ids below 3 stand for rows that were always there.
    """
    following = int(versions["next"])
    full = (
        f"CASE WHEN xmin::text::bigint < 3 THEN 0 ELSE"
        f" {following}::bigint - (({following}::bigint - xmin::text::bigint) & 4294967295) END"
    )
    low = versions.get("low")
    return f"({full}) < {int(versions['high'])}" + ("" if low is None else f" AND ({full}) >= {int(low)}")


def _selected(spec: Mapping[str, Any]) -> str:
    versions = spec.get("versions")
    return _bounded(spec) if versions is None else f"{_bounded(spec)} AND {version_sql(versions)}"


def _or_null(spec: Mapping[str, Any]) -> str:
    """With the rows that have no cursor value: a run without a lower bound is the one that reads them."""
    if spec.get("gt") is not None:
        return _selected(spec)
    return f"({_selected(spec)} OR {cursor_sql(spec['column'], spec.get('fallback'))} IS NULL)"


def _order(spec: Mapping[str, Any]) -> str:
    columns = spec.get("columns") or [spec["column"]]
    return " ORDER BY " + ", ".join(quote_ident(c) for c in columns)


def tid_condition(first: int, last: int | None) -> str:
    """Rows of heap pages [first, last), the end open when None."""
    low = f"ctid >= '({first},0)'::tid"
    return low if last is None else f"{low} AND ctid < '({last},0)'::tid"


def _within(pages: str, spec: Mapping[str, Any]) -> str:
    """Pages of a run with a cursor: what the cursor's bound leaves out belongs to a later run."""
    return f"{pages} AND {_or_null(spec)}" if "column" in spec else pages


def _folder_condition(folder: Mapping[str, Any]) -> str:
    """The rows of one folder of ``partition_by``; without bounds those that have no value."""
    if folder["ge"] is None:
        return f"{quote_ident(folder['column'])} IS NULL"
    return _bounded(folder)


def unit_from_where(unit: WorkUnit, origin: Origin) -> tuple[str, str, str]:
    """(FROM item, condition, ORDER BY or '') of a unit. Page ranges cover the whole unit here."""
    source, condition, order = _from_where(unit, origin)
    folder = unit.spec.get("folder")
    if folder is None:
        return source, condition, order
    within = _folder_condition(folder)
    return source, within if condition == "TRUE" else f"{within} AND {condition}", order


def scope_sql(unit: WorkUnit, origin: Origin) -> str:
    """The unit's rows as a FROM item to ask about. OFFSET keeps the server from looking for their bounds
    along an index of the whole table, past all the rows that the unit does not have."""
    source, condition, _ = unit_from_where(unit, origin)
    return f"(SELECT * FROM {source} WHERE {condition} OFFSET 0) AS _rivet_scope"


def _from_where(unit: WorkUnit, origin: Origin) -> tuple[str, str, str]:
    source = _relation(unit.spec, origin)
    spec = unit.spec
    match unit.kind:
        case UnitKind.WHOLE:
            return source, _or_null(spec) if "column" in spec else "TRUE", ""
        case UnitKind.PAGES:
            return source, _within(tid_condition(spec["first"], spec["last"]), spec), ""
        case UnitKind.RANGE:
            return source, _range_condition(spec), ""
        case UnitKind.NULLS:
            return source, f"{cursor_sql(spec['column'], spec.get('fallback'))} IS NULL", ""
        case UnitKind.KEY:
            return source, _bounded(spec), _order(spec)
        case UnitKind.SPAN:
            return source, f"{quote_ident(spec['column'])} IS NOT NULL AND {_bounded(spec)}", ""
        case UnitKind.WINDOW:
            return source, _selected(spec), ""
    raise InternalError(f"unit kind {unit.kind}")


def stretches(unit: WorkUnit) -> list[WorkUnit]:
    """The unit, or its rows between its cuts: one statement reads each."""
    if "cuts" not in unit.spec:
        return [unit]
    spec = {name: value for name, value in unit.spec.items() if name != "cuts"}
    bounds = itertools.pairwise([spec["gt"], *unit.spec["cuts"], spec["le"]])
    return [replace(unit, spec={**spec, "gt": low, "le": high}) for low, high in bounds]


def statement_sql(unit: WorkUnit, select: str, origin: Origin) -> str:
    """The SELECT that reads the unit; see ``page_statement`` for page ranges."""
    source, condition, order = unit_from_where(unit, origin)
    return f"SELECT {select} FROM {source} WHERE {condition}{order}"


def page_statement(unit: WorkUnit, select: str, origin: Origin, first: int, last: int | None) -> str:
    """The SELECT that reads heap pages [first, last) of a unit of page ranges, the end open when None."""
    spec = {**unit.spec, "first": first, "last": last}
    return statement_sql(replace(unit, spec=spec), select, origin)


def page_tiles(spec: Mapping[str, Any], pages: Callable[[int], int]) -> Iterator[tuple[int, int | None]]:
    """Half-open ranges of heap pages that tile a unit; the last one ends as the unit does.

    pages: how many the next range has, asked when its turn comes with how many are behind it.
    """
    first, last = spec["first"], spec["last"]
    at, end = first, spec["pages"] if last is None else last
    while (stop := at + pages(at - first)) < end:
        yield at, stop
        at = stop
    yield at, last
