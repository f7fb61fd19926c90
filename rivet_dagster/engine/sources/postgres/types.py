"""The type decision of PostgreSQL: one table, from the catalog's facts to a column of the file.

Three kinds of decision:

* *native*: Arrow holds every value of the type; COPY's binary form is decoded as it stands.
* *text*: the SELECT list casts to ``text``, the server's canonical form. The form is named in the
  column's metadata (``rivet.text_form``). Forms that a session setting could change hold because the
  reader pins the settings in ``connect.TEXT_SETTINGS``.
* *unsupported*: no honest form exists; planning refuses the column by name (``require_supported``).

Domains are decided as their base type. An array of one declared dimension is a list of what its
element type is decided as; the kernel refuses a value of more dimensions, which no catalog rules out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa

from rivet_dagster.engine.errors import UsageError
from rivet_dagster.engine.sources.postgres.kernel import Wire
from rivet_dagster.engine.sources.postgres.overrides import Override, overridden
from rivet_dagster.engine.sources.postgres.quote import quote_ident
from rivet_dagster.engine.sources.postgres.rule import PgType, Rule, text_rule
from rivet_dagster.engine.types.decision import Column, Fidelity

MAX_PRECISION: Final = 38
_INTEGERS: Final = frozenset({Wire.INT16, Wire.INT32, Wire.INT64})


_US: Final = "us"
SERVER_TEXT: Final = text_rule("ServerText")
_UNSUPPORTED: Final = Rule(pa.null(), Wire.TEXT, fidelity=Fidelity.UNSUPPORTED)
_ENUM: Final = Rule(pa.string(), Wire.TEXT, fidelity=Fidelity.COMPATIBLE, logical="enum", note="the label")
_COMPOSITE: Final = text_rule("CompositeText", "the row literal")
_RANGE: Final = text_rule("RangeText")
_OF_OID: Final = Rule(
    pa.int64(),
    Wire.OID,
    ("oid",),
    fidelity=Fidelity.COMPATIBLE,
    note="the object's OID: its name would depend on search_path and on later renames",
)

_OID_TYPES: Final = (
    *("regclass", "regcollation", "regconfig", "regdatabase", "regdictionary", "regnamespace"),
    *("regoper", "regoperator", "regproc", "regprocedure", "regrole", "regtype"),
)
_SERVER_TEXT_TYPES: Final = (
    *("aclitem", "cid", "jsonpath", "pg_lsn", "pg_snapshot", "refcursor", "tid"),
    *("tsquery", "tsvector", "txid_snapshot", "xid", "xid8"),
)

#: Types of pg_catalog by pg_type.typname. What is missing here is ``ServerText``.
BUILTIN: Final[Mapping[str, Rule]] = {
    "bool": Rule(pa.bool_(), Wire.BOOL),
    "int2": Rule(pa.int16(), Wire.INT16),
    "int4": Rule(pa.int32(), Wire.INT32),
    "int8": Rule(pa.int64(), Wire.INT64),
    "oid": Rule(pa.int64(), Wire.OID, fidelity=Fidelity.COMPATIBLE, note="unsigned 32 bit"),
    "float4": Rule(pa.float32(), Wire.FLOAT32),
    "float8": Rule(pa.float64(), Wire.FLOAT64),
    "date": Rule(pa.date32(), Wire.DATE),
    "timestamp": Rule(pa.timestamp(_US), Wire.TIMESTAMP),
    "timestamptz": Rule(pa.timestamp(_US, tz="UTC"), Wire.TIMESTAMP),
    "time": Rule(pa.time64(_US), Wire.TIME),
    "text": Rule(pa.string(), Wire.TEXT),
    "varchar": Rule(pa.string(), Wire.TEXT),
    # never cast: char(n)::text strips the padding that COPY sends
    "bpchar": Rule(pa.string(), Wire.TEXT, note="padding kept, as the server sends it"),
    "name": Rule(pa.string(), Wire.TEXT, fidelity=Fidelity.COMPATIBLE),
    "bytea": Rule(pa.binary(), Wire.BYTES),
    "uuid": Rule(pa.uuid(), Wire.UUID, logical="uuid"),
    "json": Rule(pa.json_(), Wire.TEXT, logical="json", note="byte for byte"),
    "jsonb": Rule(pa.json_(), Wire.JSONB, logical="json", note="the server's text of the value"),
    "interval": text_rule("Iso8601Duration", "months, days and microseconds apart; `P1M-1DT0.000001S`"),
    "timetz": text_rule("TimeOfDayOffset", "`23:59:59.999999+15:59`"),
    "money": text_rule("DecimalPlain", "without currency, scale of lc_monetary", via=("numeric",)),
    "bit": text_rule("BitString"),
    "varbit": text_rule("BitString"),
    "inet": text_rule("InetText", "always with the mask: `10.0.0.1/32`"),
    "cidr": text_rule("InetText"),
    "macaddr": text_rule("MacText"),
    "macaddr8": text_rule("MacText"),
    "xml": text_rule("XmlText", "as stored, its declaration included"),
    "char": text_rule("ServerText", "one byte"),
    "point": text_rule("GeometricText"),
    "line": text_rule("GeometricText"),
    "lseg": text_rule("GeometricText"),
    "box": text_rule("GeometricText"),
    "path": text_rule("GeometricText"),
    "polygon": text_rule("GeometricText"),
    "circle": text_rule("GeometricText"),
    "int2vector": text_rule("ServerText", "numbers with spaces between"),
    "oidvector": text_rule("ServerText", "numbers with spaces between"),
    **dict.fromkeys(_OID_TYPES, _OF_OID),
    **dict.fromkeys(_SERVER_TEXT_TYPES, SERVER_TEXT),
}

#: Types that are not base types by pg_type.typtype.
BY_KIND: Final[Mapping[str, Rule]] = {"e": _ENUM, "c": _COMPOSITE, "r": _RANGE, "m": _RANGE}

#: Pseudo-types that a query can return and whose text is whole.
PSEUDO: Final[Mapping[str, Rule]] = {"record": _COMPOSITE, "anyarray": text_rule("ArrayText")}

#: Types of extensions by (extension, typname), in whichever schema it was installed.
EXTENSION: Final[Mapping[tuple[str, str], Rule]] = {
    ("citext", "citext"): text_rule("ServerText", "case as stored"),
    ("postgis", "geometry"): text_rule("HexWkb", "EWKB, upper-case hex"),
    ("postgis", "geography"): text_rule("HexWkb", "EWKB, upper-case hex"),
    ("hstore", "hstore"): text_rule("ServerText"),
    ("ltree", "ltree"): text_rule("ServerText"),
    ("vector", "vector"): text_rule("ServerText", "`[1,2,3]`"),
}


def numeric_modifier(typmod: int) -> tuple[int, int] | None:
    """(precision, scale) of a numeric's modifier; None when it has none.

    The scale is a signed 11-bit number since PostgreSQL 15: numeric(3,-2) and numeric(2,5) are legal.
    """
    if typmod < 4:
        return None
    packed = typmod - 4
    scale = packed & 0x7FF
    return packed >> 16 & 0xFFFF, (scale ^ 1024) - 1024


def numeric_rule(typmod: int) -> Rule:
    """decimal128 where every value of the declared type fits 38 digits, exact plain text elsewhere."""
    modifier = numeric_modifier(typmod)
    if modifier is None:
        return text_rule("DecimalPlain", "no declared precision: up to 131072 digits, NaN, Infinity")
    precision, scale = modifier
    digits, places = max(precision, scale), max(scale, 0)
    if scale < 0:
        digits = precision - scale
    if digits > MAX_PRECISION:
        return text_rule("DecimalPlain", "more than 38 digits; `columns:` makes it decimal256, up to 76")
    same = (digits, places) == (precision, scale)
    return Rule(
        pa.decimal128(digits, places),
        Wire.DECIMAL128,
        scale=places,
        fidelity=Fidelity.EXACT if same else Fidelity.COMPATIBLE,
    )


def rule_for(t: PgType) -> Rule:
    """The decision for a type, whatever column it stands in."""
    if t.base is not None:
        return rule_for(_resolved(t))
    if t.elem is not None:
        return _list_rule(t, t.elem)
    if t.kind != "b":
        return BY_KIND.get(t.kind) or PSEUDO.get(t.name, _UNSUPPORTED)
    if t.schema != "pg_catalog":
        return EXTENSION.get((t.extension or "", t.name), SERVER_TEXT)
    return numeric_rule(t.typmod) if t.name == "numeric" else BUILTIN.get(t.name, SERVER_TEXT)


def decide(
    name: str,
    t: PgType,
    *,
    expression: str | None = None,
    nullable: bool = True,
    distinct: float | None = None,
    avg_width: int | None = None,
    override: Override | None = None,
) -> Column:
    """The column of the file for source column ``name`` of type ``t``.

    expression: SQL to read it from, default the quoted name. override: what the export says about
    it. A column without an honest form comes back with fidelity UNSUPPORTED; ``require_supported``
    refuses all of them at once. Raises UsageError for an override that could lose something.
    """
    found = rule_for(t)
    rule = found if override is None else overridden(name, _resolved(t), found, override)
    source = expression or quote_ident(name)
    return Column(
        name=name,
        native_type=t.native,
        arrow=rule.arrow,
        select=source + "".join(f"::{cast}" for cast in rule.casts),
        wire=int(rule.wire),
        scale=rule.scale,
        fidelity=rule.fidelity,
        logical_type=rule.logical,
        text_form=rule.text_form,
        nullable=nullable,
        distinct=distinct,
        avg_width=avg_width,
        integer=_is_integer(found),
        found=None if rule is found else found.arrow,
        declared=rule.declared,
        parses=rule.parses,
        nulls_unfit=rule.nulls_unfit,
    )


def _is_integer(found: Rule) -> bool:
    """Whether every value is a whole number of 64 bits; NaN aside, whose bounds are refused."""
    whole = pa.types.is_decimal128(found.arrow) and found.arrow.scale == 0
    return found.wire in _INTEGERS or (whole and found.arrow.precision <= 18)


def require_supported(columns: Iterable[Column], *, what: str) -> None:
    """Refuse, naming all of them, the columns that have no honest form. ``what``: table or query."""
    bad = [c for c in columns if c.fidelity is Fidelity.UNSUPPORTED]
    if bad:
        listed = ", ".join(f"{c.name} ({c.native_type})" for c in bad)
        raise UsageError(
            f"{what}: no file type holds the values of: {listed}. Cast them in a query, or leave them out.",
            code="RIVET_TYPE_UNSAFE_MAPPING",
            field=bad[0].name,
        )


def _resolved(t: PgType) -> PgType:
    """The base of a domain, with the modifier that the domain fixes."""
    typmod = t.typmod
    while t.base is not None:
        t = t.base
        if typmod < 0:
            typmod = t.typmod
    return PgType(t.oid, t.schema, t.name, t.kind, t.native, typmod, t.ndims, t.extension, None, t.elem)


def _list_rule(t: PgType, elem: PgType) -> Rule:
    if t.ndims > 1:
        return text_rule("ArrayText", "declared with several dimensions: the array literal")
    scalar = elem if elem.base is not None else _with_typmod(elem, t.typmod)
    base = _resolved(scalar)
    if base.elem is not None:  # an array of a domain over arrays
        return text_rule("ArrayText")
    rule = rule_for(base)
    if rule.fidelity is Fidelity.UNSUPPORTED:
        return rule
    casts = tuple(f"{cast}[]" for cast in rule.casts)
    if not casts and (elem.base is not None or base.kind == "e"):
        # the array's header names the element's own type; the cast names what the kernel knows
        casts = ("text[]",) if base.kind == "e" else (f"{base.name}[]",)
    return Rule(
        pa.list_(pa.field("item", rule.arrow)),
        Wire.LIST | rule.wire,
        casts,
        rule.scale,
        rule.fidelity,
        None,
        rule.text_form,
        rule.note,
    )


def _with_typmod(t: PgType, typmod: int) -> PgType:
    return PgType(t.oid, t.schema, t.name, t.kind, t.native, typmod, 0, t.extension, t.base, t.elem)


__all__ = [
    "BUILTIN",
    "BY_KIND",
    "EXTENSION",
    "MAX_PRECISION",
    "PSEUDO",
    "SERVER_TEXT",
    "PgType",
    "Rule",
    "decide",
    "numeric_modifier",
    "numeric_rule",
    "require_supported",
    "rule_for",
]
