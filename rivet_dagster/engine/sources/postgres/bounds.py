"""Statements that find bounds: of a cursor, of a key's ranges. Every comparison is the server's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from rivet_dagster.engine.errors import ConfigError, RefusalError, RivetError
from rivet_dagster.engine.sources.base import Cursor, CursorBounds, Settle, SourceFacts
from rivet_dagster.engine.sources.postgres.predicate import cursor_sql, key_literal, key_sql
from rivet_dagster.engine.sources.postgres.quote import quote_ident, quote_literal
from rivet_dagster.engine.sources.postgres.writers import Cap

#: Asks for one row.
Ask = Callable[[str], tuple[Any, ...] | None]

#: The last key of every (1/ranges)-th of the sample, by rank: any ordered type will do. Sorted by the
#: key itself, not by its text, whose order is another one.
_SAMPLED: Final = """
WITH sample AS (
  SELECT {select}, row_number() OVER (ORDER BY {key}) AS r, count(*) OVER () AS n
  FROM {source} TABLESAMPLE SYSTEM ({percent:.6f}) REPEATABLE (42) WHERE {where}
), ranked AS (SELECT {names}, r, (r * {ranges} - 1) / n AS slice FROM sample),
lasts AS (SELECT DISTINCT ON (slice) {names}, slice FROM ranked ORDER BY slice, r DESC)
SELECT {texts} FROM lasts WHERE slice < {ranges} - 1 ORDER BY slice"""

#: The same of one column, in a fifth of the time: 30,000 rows in 3 ms instead of 15. A bare ``k`` in the last
#: ORDER BY would be the text. Only for types whose arrays ``unnest`` gives back as they were: an array is in
#: no array, and a composite would fall apart into its fields.
_SAMPLED_ONE: Final = """
SELECT cuts.k::text FROM (SELECT DISTINCT k FROM unnest((
  SELECT percentile_disc(ARRAY[{fractions}]::double precision[]) WITHIN GROUP (ORDER BY {key})
  FROM {source} TABLESAMPLE SYSTEM ({percent:.6f}) REPEATABLE (42) WHERE {where}
)) AS found (k)) AS cuts WHERE cuts.k IS NOT NULL ORDER BY cuts.k"""

#: The value of every {rows}-th row in the order of the column, equal ones once; not the greatest value.
_COUNTED: Final = """
WITH numbered AS (
  SELECT {name} AS k, row_number() OVER (ORDER BY {name}) AS r,
    count(*) OVER (ORDER BY {name}) AS up_to, count(*) OVER () AS n
  FROM {source} WHERE {name} IS NOT NULL
), cuts AS (SELECT DISTINCT ON (k) k, r FROM numbered WHERE r % {rows} = 0 AND up_to < n ORDER BY k, r)
SELECT k::text FROM cuts ORDER BY r"""

#: The same of a unique key, in a part of it: no key comes twice, so a row's number is its rank.
_KEYS: Final = """
SELECT {texts} FROM (
  SELECT {select}, row_number() OVER (ORDER BY {order}) AS r, count(*) OVER () AS n
  FROM {source} WHERE {where}
) AS numbered WHERE r % {rows} = 0 AND r < n ORDER BY r"""

#: The same along an index: skips {rows} entries at a time, {steps} times at most.
_WALKED: Final = """
WITH RECURSIVE _rivet_cut(_rivet_k, n) AS (
  SELECT (
    SELECT {name} FROM {source} WHERE {name} > {after} AND {name} < {upto}
    ORDER BY {name} OFFSET {skip} LIMIT 1
  ), 1
  UNION ALL
  SELECT (
    SELECT {name} FROM {source} WHERE {name} > _rivet_cut._rivet_k AND {name} < {upto}
    ORDER BY {name} OFFSET {skip} LIMIT 1
  ), n + 1
  FROM _rivet_cut WHERE _rivet_k IS NOT NULL AND n < {steps}
) SELECT _rivet_k::text FROM _rivet_cut WHERE _rivet_k IS NOT NULL ORDER BY n"""

#: A sort would read all that is left at each step, which the server prefers without statistics; compiling
#: costs more than the walk.
ALONG_INDEX: Final = (
    "SELECT set_config(name, 'off', true)"
    " FROM unnest(ARRAY['enable_sort', 'enable_bitmapscan', 'enable_seqscan', 'jit']) AS name"
)

#: The spans of time that hold a row: one look into the index for each ...
_SKIPPED: Final = """
WITH RECURSIVE _rivet_found(_rivet_k) AS (
  (SELECT {span} FROM {source} WHERE {name} >= {low} ORDER BY {name} LIMIT 1)
  UNION ALL
  SELECT (
    SELECT {span} FROM {source} WHERE {name} >= {following} AND {name} <= {high} ORDER BY {name} LIMIT 1
  )
  FROM _rivet_found WHERE _rivet_k IS NOT NULL
) SELECT to_char(_rivet_k, 'YYYY-MM-DD') FROM _rivet_found WHERE _rivet_k IS NOT NULL ORDER BY _rivet_k"""
#: ... or one pass.
_PASSED: Final = """
SELECT to_char(k, 'YYYY-MM-DD') FROM (
  SELECT DISTINCT {span} AS k FROM {source} WHERE {name} >= {low} AND {name} <= {high}
) AS found ORDER BY k"""

#: now() is the start of the transaction, which comes before its snapshot. A time without a zone was
#: written in UTC or in the server's zone: the earlier reading holds back more, so it loses nothing.
_LOCAL: Final = (
    "LEAST({instant} AT TIME ZONE 'UTC', {instant} AT TIME ZONE"
    " (SELECT reset_val FROM pg_catalog.pg_settings WHERE name = 'TimeZone'))"
)


#: What nearly all keys are, as ``format_type`` names them.
_SCALARS: Final = frozenset(
    {
        "smallint",
        "integer",
        "bigint",
        "text",
        "character varying",
        "uuid",
        "date",
        "timestamp without time zone",
        "timestamp with time zone",
    }
)


def sampled_boundaries(
    source: str,
    columns: Sequence[str],
    native_types: Sequence[str],
    ranges: int,
    percent: float,
    upto: Sequence[str] | None,
) -> str:
    """The SELECT of a key's boundaries, its columns as text."""
    names = [f"k{i}" for i in range(len(columns))]
    quoted = [quote_ident(column) for column in columns]
    where = f"{quoted[0]} IS NOT NULL" if upto is None else f"{key_sql(columns)} <= {key_literal(upto)}"
    if len(columns) == 1 and native_types[0] in _SCALARS:
        return _SAMPLED_ONE.format(
            fractions=", ".join(f"{i}.0/{ranges}" for i in range(1, ranges)),
            key=quoted[0],
            source=source,
            where=where,
            percent=percent,
        )
    return _SAMPLED.format(
        select=", ".join(f"{column} AS {name}" for column, name in zip(quoted, names, strict=True)),
        key=", ".join(quoted),
        names=", ".join(names),
        texts=", ".join(f"{name}::text" for name in names),
        source=source,
        where=where,
        percent=percent,
        ranges=int(ranges),
    )


def has_order(ask: Callable[[str], object], source: str, column: str, native_type: str) -> bool:
    """Whether the column's values can be sorted, and compared with their text. ``ask`` runs a statement."""
    if native_type.startswith("reg"):
        return False  # compared as oids, which their texts are not
    name = quote_ident(column)
    try:
        ask(f"SELECT {name} FROM {source} ORDER BY 1 LIMIT 0")
        ask(f"SELECT FROM {source} WHERE {name} >= '' LIMIT 0")
    except RivetError as error:
        if (error.sqlstate or "")[:2] == "22" or error.sqlstate in {"42601", "XX000"}:
            return True  # '' is no value of the type; seg calls it a syntax error, PostGIS an internal one
        if error.sqlstate not in {"42883", "0A000"}:  # no such operator; a row literal
            raise
        return False
    return True


def counted_boundaries(source: str, column: str, rows: int) -> str:
    """The SELECT of a column's boundaries by exact row numbers, as text."""
    return _COUNTED.format(name=quote_ident(column), source=source, rows=int(rows))


def counted_keys(
    source: str, columns: Sequence[str], rows: int, after: Sequence[str], upto: Sequence[str]
) -> str:
    """The SELECT of every ``rows``-th key of (after, upto], without the last one, its columns as text."""
    key, quoted = key_sql(columns), [quote_ident(column) for column in columns]
    names = [f"k{i}" for i in range(len(columns))]
    return _KEYS.format(
        select=", ".join(f"{column} AS {name}" for column, name in zip(quoted, names, strict=True)),
        order=", ".join(quoted),
        texts=", ".join(f"{name}::text" for name in names),
        source=source,
        where=f"{key} > {key_literal(after)} AND {key} <= {key_literal(upto)}",
        rows=int(rows),
    )


def walked_cuts(source: str, column: str, rows: int, after: str, upto: str, steps: int) -> str:
    """The SELECT of at most ``steps`` values between two, ``rows`` rows apart, as text."""
    return _WALKED.format(
        name=quote_ident(column),
        source=source,
        after=quote_literal(after),
        upto=quote_literal(upto),
        skip=int(rows) - 1,
        steps=int(steps),
    )


def spans(source: str, facts: SourceFacts, column: str, granularity: str, low: str, high: str) -> str:
    """The SELECT of the first days of the days, months or years that hold a row with low <= column <= high.

    An index is probed once a span that holds a row, however far they lie apart; without one it is one
    pass over the rows.
    """
    found = facts.column(column)
    zoned = found is not None and pa.types.is_timestamp(found.source_arrow) and found.source_arrow.tz
    name = quote_ident(column)
    utc = f"{name} AT TIME ZONE 'UTC'" if zoned else f"{name}::timestamp"
    following = f"(_rivet_found._rivet_k + interval '1 {granularity}')" + (
        " AT TIME ZONE 'UTC'" if zoned else ""
    )
    template = _SKIPPED if column in facts.indexed else _PASSED
    return template.format(
        span=f"date_trunc('{granularity}', {utc})",
        name=name,
        source=source,
        low=quote_literal(low),
        high=quote_literal(high),
        following=following,
    )


def cursor_bounds(
    ask: Ask,
    source: str,
    facts: SourceFacts,
    cursor: Cursor,
    after: str | None,
    settle: Settle | None,
    cap: Cap | None = None,
) -> CursorBounds:
    """The highest cursor value past ``after`` that this snapshot may be read up to.

    Without ``settle`` that is the highest one, but of dates yesterday's: more rows of today may come,
    and they would not lie past today. Of a key of several columns it is the last row's, whatever their
    types. ``cap`` lowers it to what open transactions leave. Refuses values that end the order.
    """
    kind = cursor_type(ask, source, facts, cursor)
    past = _past(cursor, after)
    top = _last(ask, source, cursor, past)
    if top is None:
        return CursorBounds(None, kind)
    _refuse_end(cursor, top)
    if settle is None and kind == "date":
        settle = Settle(0)
    elif settle is not None and settle.column is not None and (settle.column,) != cursor.columns:
        return _below_unsettled(ask, source, facts, cursor, past, top, kind, settle)
    limits = [past]
    if cap is not None:
        if cap.open and (cap.since is None or cursor.more or not _is_time(kind)):
            return CursorBounds(None, kind, f"no row is read: {cap.shown}", capped=True)
        limits.append(f"{_key(cursor)} <= {key_literal(cursor.values(cap.upto))}")
        if cap.since is not None:
            limits.append(f"{_key(cursor)} < {_as_cursor(kind, f'{quote_literal(cap.since)}::timestamptz')}")
    if settle is not None:
        limits.append(f"{_key(cursor)} <= {_cutoff(kind, settle, cursor.identity)}")
    high = top if limits == [past] else _last(ask, source, cursor, " AND ".join(limits))
    if high == top:
        return CursorBounds(top, kind)
    where = f"past {high} " if high is not None else ""
    if cap is not None and cap.open:
        return CursorBounds(high, kind, f"rows {where}wait: {cap.shown}", capped=True)
    # what came during the wait for others is the next run's, without a word
    quiet = settle is None and high is not None
    return CursorBounds(high, kind, None if quiet else f"rows {where}are not settled yet", capped=True)


def last_value(ask: Ask, source: str, cursor: Cursor, after: str | None) -> str | None:
    """The highest cursor value past ``after`` that there is, in its stored form."""
    return _last(ask, source, cursor, _past(cursor, after))


def _key(cursor: Cursor) -> str:
    return key_sql(cursor.key) if cursor.more else cursor_sql(cursor.column, cursor.fallback)


def _past(cursor: Cursor, after: str | None) -> str:
    if after is None:
        return "TRUE" if cursor.more else f"{_key(cursor)} IS NOT NULL"
    return f"{_key(cursor)} > {key_literal(cursor.values(after))}"


def _refuse_end(cursor: Cursor, top: str) -> None:
    top = cursor.values(top)[0]
    if top.lower() in {"infinity", "nan"}:
        name = cursor.column if cursor.more else cursor.identity
        raise RefusalError(
            f"cursor column '{name}' holds {top}, past which no row could ever be found",
            code="RIVET_SOURCE_VALUE_UNREPRESENTABLE",
            field="cursor_column",
        )


def _below_unsettled(
    ask: Ask, source: str, facts: SourceFacts, cursor: Cursor, past: str, top: str, kind: str, settle: Settle
) -> CursorBounds:
    """The highest value below that of the first row which is not settled by a column of its own."""
    assert settle.column is not None
    age, key = facts.column(settle.column), _key(cursor)
    name = quote_ident(settle.column)
    cutoff = _cutoff(age.native_type if age else "", settle, settle.column)
    first = ask(
        f"SELECT k::text, s IS NULL FROM (SELECT {key} AS k, {name} AS s FROM {source}"
        f" WHERE {past} AND ({name} <= {cutoff}) IS NOT TRUE ORDER BY 1, 2 NULLS FIRST LIMIT 1) AS q"
    )
    if first is None:
        return CursorBounds(top, kind)
    high = _last(ask, source, cursor, f"{past} AND {key} < {quote_literal(str(first[0]))}")
    why = f"'{settle.column}' is NULL there" if first[1] else "it is not settled yet"
    return CursorBounds(high, kind, f"rows from {first[0]} on are left: {why}", capped=True)


def _last(ask: Ask, source: str, cursor: Cursor, where: str) -> str | None:
    # not max(): uuid and others are ordered without having it. Cast outside and sorted by position: a
    # name in ORDER BY means the output column, which would be the text
    parts = [quote_ident(name) for name in cursor.key] if cursor.more else [_key(cursor)]
    names = [f"k{i}" for i in range(len(parts))]
    select = ", ".join(f"{part} AS {name}" for part, name in zip(parts, names, strict=True))
    order = ", ".join(f"{i} DESC" for i in range(1, len(names) + 1))
    row = ask(
        f"SELECT {', '.join(f'{name}::text' for name in names)} FROM"
        f" (SELECT {select} FROM {source} WHERE {where} ORDER BY {order} LIMIT 1) AS q"
    )
    return None if row is None else cursor.text([str(value) for value in row])


def cursor_type(ask: Ask, source: str, facts: SourceFacts, cursor: Cursor) -> str:
    """The name of the cursor's type, of a key those of its columns; ``date`` for a domain over it too."""
    if cursor.more:
        return ", ".join(c.native_type for c in map(facts.column, cursor.key) if c)
    found = facts.column(cursor.column)
    if cursor.fallback is None and found is not None:
        return "date" if pa.types.is_date(found.source_arrow) else found.native_type
    key = cursor_sql(cursor.column, cursor.fallback)
    row = ask(f"SELECT pg_catalog.pg_typeof((SELECT {key} FROM {source} LIMIT 0))::text")
    assert row is not None
    return str(row[0])


def _is_time(kind: str) -> bool:
    return kind == "date" or kind.startswith("timestamp")


def _as_cursor(kind: str, instant: str) -> str:
    """An instant (SQL) as a value of a date or timestamp cursor; where the zone is open the earlier one."""
    local = _LOCAL.format(instant=instant)
    return f"({local})::date" if kind == "date" else instant if kind.endswith("with time zone") else local


def _cutoff(native: str, settle: Settle, name: str) -> str:
    """The latest settled value of a column of this type, as SQL."""
    if not _is_time(native):
        raise ConfigError(
            f"`settle` needs a date or timestamp, and '{name}' is {native}",
            code="RIVET_CONFIG_INVALID",
            field="settle",
            fix="name such a column in `settle: {column: ...}`",
        )
    settled = _as_cursor(native, f"(now() - interval '{int(settle.seconds)} seconds')")
    return f"({settled} - 1)" if native == "date" else settled  # a day is settled when all of it is
