"""What the catalog knows about a table or a query, read in one or two statements.

``describe_table`` and ``describe_query`` take an open connection, inside a transaction or not, and
leave its transaction state as they found it. They read no row of the table. psycopg's errors pass
through; the caller classifies them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, LiteralString

import psycopg
from msgspec import Struct
from psycopg import errors as pg_errors
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import tuple_row

from rivet_dagster.engine.errors import RefusalError, UsageError
from rivet_dagster.engine.sources.postgres import catalog_sql as sql
from rivet_dagster.engine.sources.postgres.overrides import Override
from rivet_dagster.engine.sources.postgres.quote import quote_relation
from rivet_dagster.engine.sources.postgres.statement import query_body
from rivet_dagster.engine.sources.postgres.types import PgType, decide
from rivet_dagster.engine.types.decision import Column

Connection = psycopg.Connection[Any]
#: Column names -> what the export says about them; raises for what it says about others.
Overrides = Callable[[Sequence[str]], Mapping[str, Override]]

_WHAT = {"i": "an index", "I": "an index", "S": "a sequence", "t": "a TOAST table", "c": "a composite type"}


class ServerFacts(Struct, frozen=True):
    """version: server_version_num. block_size in bytes. system_identifier: None if not readable."""

    version: int
    in_recovery: bool
    encoding: str
    database: str
    user: str
    block_size: int
    system_identifier: str | None = None


class LeafRelation(Struct, frozen=True):
    """One relation that holds rows itself, read without its children.

    pages: blocks of the main fork. bytes: with TOAST. tuples: estimate, None when unknown; by the size alone
    unless ``analysed``.
    is_heap: pages can be addressed by ctid. readable: this role may select every column of it
    directly, and no row-level policy of its own hides rows.
    """

    oid: int
    schema: str
    name: str
    kind: str
    pages: int
    bytes: int
    tuples: float | None
    analysed: bool
    is_heap: bool
    readable: bool

    @property
    def sql(self) -> str:
        """For FROM: the quoted name, ``ONLY`` where children could hang below it."""
        return ("ONLY " if self.kind in "rf" else "") + quote_relation(self.schema, self.name)


class UniqueKey(Struct, frozen=True):
    """A valid, whole, unique btree index over plain columns; it covers every row of the relation.

    not_null: no column of it can be NULL. primary: it is the primary key.
    """

    index: str
    columns: tuple[str, ...]
    not_null: bool
    primary: bool


class Relation(Struct, frozen=True):
    """A table, view, materialized view, foreign table or partitioned table.

    kind: pg_class.relkind (r, p, v, m, f). pages, bytes, tuples: sums over ``leaves``.
    rows_hidden: a row-level policy would hide rows from this role (views: see
    ``blocked_by_row_security``). columns_denied: columns that the role may not select.
    indexed: leading columns of valid, whole btree indexes. origins: columns that the server
    fills, and how: ``generated``, ``identity always`` or ``identity by default``.
    numbers: the columns' attnum; another column of a name has another one. sequences: column -> oids of
    the sequences that number it one by one.
    """

    oid: int
    schema: str
    name: str
    kind: str
    is_partition: bool
    pages: int
    bytes: int
    tuples: float | None
    row_security: bool
    row_security_forced: bool
    owned: bool
    bypasses_row_security: bool
    rows_hidden: bool
    schema_usage: bool
    columns_denied: tuple[str, ...]
    columns: tuple[Column, ...]
    numbers: tuple[int, ...]
    primary_key: tuple[str, ...]
    unique_keys: tuple[UniqueKey, ...]
    indexed: frozenset[str]
    in_order: frozenset[str]
    origins: Mapping[str, str]
    sequences: Mapping[str, tuple[int, ...]]
    leaves: tuple[LeafRelation, ...]
    server: ServerFacts
    type_schemas: tuple[str, ...]

    @property
    def sql(self) -> str:
        """For FROM: the quoted name; children are included."""
        return quote_relation(self.schema, self.name)

    @property
    def can_select(self) -> bool:
        return self.schema_usage and not self.columns_denied

    def column(self, name: str) -> Column | None:
        return next((c for c in self.columns if c.name == name), None)


def server_facts(conn: Connection) -> ServerFacts:
    """Facts of the server and the session; at most two statements."""
    with _as_found(conn):
        facts = _ask(conn, sql.SERVER) or {}
        identifier = None
        if facts.pop("control_readable"):
            identifier = (_ask(conn, sql.IDENTIFIER) or {}).get("system_identifier")
    return ServerFacts(**facts, system_identifier=identifier)


def describe_table(
    conn: Connection,
    schema: str | None,
    table: str,
    *,
    server: ServerFacts | None = None,
    overrides: Overrides | None = None,
) -> Relation:
    """Facts and type decisions of one relation: one statement when ``server`` is given.

    Without a schema the search path decides. Names are exact. Raises RefusalError
    (RIVET_SOURCE_TABLE_NOT_FOUND) with similar names, UsageError for what is no table or has no
    columns. Privileges and row security are reported, not judged.
    """
    with _as_found(conn):
        found = _ask(conn, sql.RELATION, {"schema": schema, "table": table})
        if found is None:
            raise _not_found(conn, schema, table)
        shown = quote_relation(found["schema"], found["name"])
        if found["kind"] not in "rpvmf":
            raise UsageError(f"{shown} is {_WHAT.get(found['kind'], 'no table')}, not a table")
        if not found["columns"]:
            raise UsageError(f"{shown} has no columns, so no file can hold its rows")
        server = server or server_facts(conn)
    return _relation(found, server, _given(overrides, [c["name"] for c in found["columns"]]))


def describe_query(conn: Connection, query: str, *, overrides: Overrides | None = None) -> tuple[Column, ...]:
    """Columns of a SELECT as the server's own parser sees them; nothing is executed.

    ``query`` may end in ``;`` and hold comments; ``SELECT ... FROM (query_body(query)) AS q`` reads
    it. Raises UsageError for several statements, for what does not only read, for parameters, and
    for columns of one name.
    """
    with conn.transaction():
        fields = _parse(conn, query)
        names = [name for name, _, _ in fields]
        repeated = sorted({n for n in names if names.count(n) > 1})
        if repeated:
            raise UsageError(
                f"the query returns several columns named {', '.join(repeated)}. Give each its own alias.",
                field="query",
            )
        asked = {"oids": [oid for _, oid, _ in fields], "mods": [mod for _, _, mod in fields]}
        found = _ask(conn, sql.TYPES_OF, asked) or {}
    types, given = _by_oid(found["types"]), _given(overrides, names)
    return tuple(
        decide(name, _type(types, oid, mod, native=native), override=given.get(name))
        for (name, oid, mod), native in zip(fields, found["native"], strict=True)
    )


def _given(overrides: Overrides | None, names: Sequence[str]) -> Mapping[str, Override]:
    return {} if overrides is None else overrides(names)


def blocked_by_row_security(conn: Connection, select: str) -> bool:
    """Whether row-level security, and not a missing privilege, makes ``select`` fail.

    The server judges: planned with ``row_security`` on and off, the statement fails only under off.
    For views and queries, where the policies are those of the tables below. Nothing is executed.
    """
    return _plans(conn, select, "on") and not _plans(conn, select, "off")


def _plans(conn: Connection, select: str, row_security: LiteralString) -> bool:
    try:
        with conn.transaction(force_rollback=True), conn.cursor() as cursor:
            cursor.execute(f"SET LOCAL row_security = {row_security}")
            cursor.execute(f"EXPLAIN {select}".encode())
    except pg_errors.InsufficientPrivilege:
        return False
    return True


@contextmanager
def _as_found(conn: Connection) -> Iterator[None]:
    """Read in a transaction of our own unless the caller has one open, or wants none."""
    if conn.autocommit or conn.info.transaction_status is not TransactionStatus.IDLE:
        yield
    else:
        with conn.transaction():
            yield


def _ask(
    conn: Connection, statement: LiteralString, params: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    with conn.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(statement, params).fetchone()
    return None if row is None else dict(json.loads(row[0]))


def _relation(found: dict[str, Any], server: ServerFacts, overrides: Mapping[str, Override]) -> Relation:
    types = _by_oid(found.pop("types"))
    columns = found.pop("columns")
    leaves = tuple(LeafRelation(**leaf) for leaf in found.pop("leaves"))
    tuples = _total([leaf.tuples for leaf in leaves])
    not_null = {c["name"] for c in columns if c["not_null"]}
    keys = tuple(
        UniqueKey(k["index"], tuple(k["columns"]), not_null.issuperset(k["columns"]), k["primary"])
        for k in found.pop("keys")
    )
    return Relation(
        **{
            **found,
            "primary_key": tuple(found["primary_key"]),
            "indexed": frozenset(found["indexed"]),
            "in_order": frozenset(found["in_order"]),
        },
        pages=sum(leaf.pages for leaf in leaves),
        bytes=sum(leaf.bytes for leaf in leaves),
        tuples=tuples,
        columns_denied=tuple(c["name"] for c in columns if not c["can_select"]),
        columns=tuple(_column(c, types, tuples, overrides.get(c["name"])) for c in columns),
        numbers=tuple(c["number"] for c in columns),
        unique_keys=keys,
        origins={c["name"]: c["origin"] for c in columns if c["origin"]},
        sequences={c["name"]: tuple(c["sequences"]) for c in columns if c["sequences"]},
        leaves=leaves,
        server=server,
        type_schemas=tuple(sorted({row["schema"] for row in types.values()} - {"pg_catalog"})),
    )


def _column(
    c: dict[str, Any],
    types: Mapping[int, dict[str, Any]],
    tuples: float | None,
    override: Override | None,
) -> Column:
    distinct = c["n_distinct"]
    if distinct is not None and distinct < 0:  # a share of the rows
        distinct = -distinct * tuples if tuples is not None else None
    return decide(
        c["name"],
        _type(types, c["type"], c["typmod"], native=c["native"], ndims=c["ndims"]),
        nullable=not c["not_null"],
        distinct=distinct or None,
        avg_width=c["avg_width"],
        override=override,
    )


def _total(parts: Sequence[float | None]) -> float | None:
    """The sum, None as soon as one part is unknown."""
    known = [p for p in parts if p is not None]
    return sum(known) if len(known) == len(parts) else None


def _by_oid(rows: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {row["oid"]: row for row in rows}


def _type(
    types: Mapping[int, dict[str, Any]], oid: int, typmod: int, *, native: str | None = None, ndims: int = 0
) -> PgType:
    """The type ``oid`` with what it stands on. ``native``: format_type's answer.

    A name outside pg_catalog is shown with its schema always: format_type's form hangs on search_path.
    """
    row = types[oid]
    base, elem = row["base"], row["elem"]
    own = types[elem] if elem and row["schema"] != "pg_catalog" else row
    name = f"{own['schema']}.{own['name']}" + ("[]" if own is not row else "")
    builtin = row["schema"] == "pg_catalog"
    return PgType(
        oid=oid,
        schema=row["schema"],
        name=row["name"],
        kind=row["kind"],
        native=native if builtin and native else name,
        typmod=typmod,
        ndims=max(ndims, row["ndims"]),
        extension=row["extension"],
        base=_type(types, base, row["typmod"], ndims=row["ndims"]) if base else None,
        elem=_type(types, elem, -1) if elem else None,
    )


def attnums(conn: Connection, oids: Sequence[int], columns: Sequence[str]) -> dict[tuple[int, int], int]:
    """(oid of a relation, index in ``columns``) -> number of the column that has that name now."""
    index = {name: i for i, name in enumerate(columns)}
    with conn.cursor(row_factory=tuple_row) as cursor:
        found = cursor.execute(sql.ATTNUMS, {"oids": list(oids), "names": list(columns)}).fetchall()
    return {(oid, index[name]): number for oid, name, number in found}


def _parse(conn: Connection, query: str) -> list[tuple[str, int, int]]:
    """(name, type oid, typmod) of each output column; the caller holds a transaction open.

    Prepared twice: as written, so that the server sees one whole statement, and between our
    parentheses, where only what reads is legal.
    """
    described = _prepare(conn, query)
    if described.nparams:
        raise UsageError("the query holds $1-style parameters; write the values in it", field="query")
    try:
        with conn.transaction():
            _prepare(conn, f"SELECT * FROM ({query_body(query)}) AS rivet_query")
    except (pg_errors.SyntaxError, pg_errors.FeatureNotSupported) as exc:
        raise UsageError("the query is not one SELECT that only reads", field="query") from exc
    encoding = conn.info.encoding
    fields = [
        ((described.fname(i) or b"").decode(encoding), described.ftype(i), described.fmod(i))
        for i in range(described.nfields)
    ]
    if not fields:
        raise UsageError("the query returns no columns", field="query")
    return fields


def _prepare(conn: Connection, statement: str) -> PGresult:
    encoding = conn.info.encoding
    result = conn.pgconn.prepare(b"", statement.encode(encoding))
    if result.status != ExecStatus.COMMAND_OK:
        raise pg_errors.error_from_result(result, encoding)
    result = conn.pgconn.describe_prepared(b"")
    if result.status != ExecStatus.COMMAND_OK:
        raise pg_errors.error_from_result(result, encoding)
    return result


def _not_found(conn: Connection, schema: str | None, table: str) -> RefusalError:
    """The refusal, with the names that were most likely meant."""
    with conn.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(sql.NAMES, {"table": table, "schema": schema}).fetchone()
    names = json.loads(row[0]) if row else []
    same = [n for n in names if n[1].lower() == table.lower()]
    close = get_close_matches(table.lower(), {n[1].lower() for n in names}, n=5, cutoff=0.75)
    similar = sorted(
        (n for n in names if n not in same and n[1].lower() in close), key=lambda n: close.index(n[1].lower())
    )
    found = [quote_relation(n[0], n[1]) for n in (*same, *similar)][:5]
    wanted = quote_relation(schema, table) if table else "a table without a name"
    where = "" if schema else " in the search path"
    hint = f" Did you mean {', '.join(found)}?" if found else ""
    return RefusalError(
        f"there is no table {wanted}{where} (names are case-sensitive).{hint}",
        code="RIVET_SOURCE_TABLE_NOT_FOUND",
    )
