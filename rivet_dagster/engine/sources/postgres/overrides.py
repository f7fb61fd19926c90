"""What ``columns:`` and ``value_policy:`` make of a type decision.

An override changes the form, never the value: it widens, it names a precision that each value is held
against, it takes the server's text, or it has the server parse text. What could round, cut or guess is
refused before the first row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import pyarrow as pa
import pyarrow.types as t
from msgspec import Struct, field
from msgspec.structs import replace

from rivet_dagster.engine.errors import UsageError
from rivet_dagster.engine.plan.columns import require_column
from rivet_dagster.engine.sources.postgres.kernel import Wire
from rivet_dagster.engine.sources.postgres.rule import PgType, Rule, text_rule
from rivet_dagster.engine.types.decision import Fidelity

Policy = Literal["error", "null", "text"]

_ALIASES: Final = {
    **dict.fromkeys(("text", "string", "varchar", "char", "bpchar", "name"), "text"),
    **dict.fromkeys(("bool", "boolean"), "bool"),
    **dict.fromkeys(("int2", "smallint", "int16"), "int16"),
    **dict.fromkeys(("int4", "integer", "int", "int32"), "int32"),
    **dict.fromkeys(("int8", "bigint", "int64"), "int64"),
    **dict.fromkeys(("float4", "real", "float32"), "float32"),
    **dict.fromkeys(("float8", "double", "float64"), "float64"),
    **dict.fromkeys(("timestamp_tz", "timestamptz"), "timestamp_tz"),
    **dict.fromkeys(("binary", "bytea", "blob", "varbinary"), "binary"),
    **dict.fromkeys(("json", "jsonb"), "json"),
}
_DECIMAL: Final = re.compile(r"(?:decimal|numeric)\s*\(\s*([0-9]+)\s*,\s*([0-9]+)\s*\)", re.IGNORECASE)
_MAX_PRECISION: Final = 76  # of decimal256
_NATIVE_PRECISION: Final = 38  # of decimal128, which every reader knows

#: What a type of the file is read as, when an override names it.
_TARGETS: Final[dict[str, tuple[pa.DataType, Wire, str]]] = {
    "bool": (pa.bool_(), Wire.BOOL, "bool"),
    "int16": (pa.int16(), Wire.INT16, "int2"),
    "int32": (pa.int32(), Wire.INT32, "int4"),
    "int64": (pa.int64(), Wire.INT64, "int8"),
    "float32": (pa.float32(), Wire.FLOAT32, "float4"),
    "float64": (pa.float64(), Wire.FLOAT64, "float8"),
    "date": (pa.date32(), Wire.DATE, "date"),
    "timestamp": (pa.timestamp("us"), Wire.TIMESTAMP, "timestamp"),
    "timestamp_tz": (pa.timestamp("us", tz="UTC"), Wire.TIMESTAMP, "timestamp"),
    "timestamp_ns": (pa.timestamp("ns"), Wire.TIMESTAMP_NS, "timestamp"),
    "timestamp_tz_ns": (pa.timestamp("ns", tz="UTC"), Wire.TIMESTAMP_NS, "timestamp"),
    "binary": (pa.binary(), Wire.BYTES, "bytea"),
    "json": (pa.json_(), Wire.TEXT, "json"),
    "uuid": (pa.uuid(), Wire.UUID, "uuid"),
}
#: (type of the source, type of the file) whose every value is the same in both, cast by the server.
_WIDENING: Final = {
    *(("int2", "int32"), ("int2", "int64"), ("int4", "int64")),
    *(("int2", "float32"), ("int2", "float64"), ("int4", "float64"), ("float4", "float64")),
}
_STAMPS: Final = ("timestamp", "timestamp_tz", "timestamp_ns", "timestamp_tz_ns")
#: The same eight bytes on the wire. The zone is a matter of the file's type alone, and it is UTC; so is
#: the unit: what nanoseconds cannot count is a value without a form.
_SAME_WIRE: Final = {(source, wanted) for source in ("timestamp", "timestamptz") for wanted in _STAMPS}
_INTEGER_DIGITS: Final = {"int2": 5, "int4": 10, "int8": 19}
_HELD_DIGITS: Final = {"int16": 4, "int32": 9, "int64": 18}  # every number of so many digits fits


class Override(Struct, frozen=True):
    """What an export says about one column. declared: a type of the language, as written, or None.

    policy: for values without a form in the file's type. named: the policy names this very column.
    """

    declared: str | None = None
    policy: Policy = "error"
    named: bool = False


class ColumnRules(Struct, frozen=True):
    """What an export says about its columns: declared types and value policies, by column name.

    default: policy of every column that has none of its own.
    """

    declared: Mapping[str, str] = field(default_factory=dict)
    policies: Mapping[str, Policy] = field(default_factory=dict)
    default: Policy = "error"

    def overrides(self, names: Sequence[str]) -> dict[str, Override]:
        """One for each column that something is said about. Raises ConfigError for unknown columns."""
        for key, given in (("columns", self.declared), ("value_policy", self.policies)):
            for name in given:
                require_column(
                    names, None, f"{key}.{name}", name, case_code="RIVET_CONFIG_COLUMN_OVERRIDE_CASE"
                )
        return {
            name: Override(
                self.declared.get(name), self.policies.get(name, self.default), name in self.policies
            )
            for name in names
        }


def overridden(name: str, source: PgType, found: Rule, override: Override) -> Rule:
    """The rule of column ``name`` under its override. source: its type, domains resolved.

    Raises UsageError (RIVET_TYPE_UNSAFE_MAPPING) for an override that could lose something.
    """
    rule = found
    if override.declared is not None:
        rule = _declared(name, source, found, override.declared)
    if override.policy == "error" or not (override.named or may_not_fit(rule)):
        return rule
    if override.policy == "text":
        return replace(_as_text(source, found), declared=True)
    if not may_not_fit(rule):
        return rule
    return replace(rule, nulls_unfit=True)


def may_not_fit(rule: Rule) -> bool:
    """Whether the source's type has values that the file's type lacks (infinities, NaN, 24:00)."""
    kind = rule.arrow
    plain = t.is_decimal(kind) or t.is_date(kind) or t.is_timestamp(kind) or t.is_time(kind)
    return bool(plain or t.is_list(kind))


def _declared(name: str, source: PgType, found: Rule, declared: str) -> Rule:
    if found.fidelity is Fidelity.UNSUPPORTED:
        return found
    if decimal := _DECIMAL.fullmatch(declared.strip()):
        rule = _decimal(source, found, int(decimal[1]), int(decimal[2]))
    else:
        wanted = declared.strip().lower()
        wanted = _ALIASES.get(wanted, wanted)
        rule = _as_text(source, found) if wanted == "text" else _typed(source, found, wanted)
    if rule is None:
        raise UsageError(
            f"column '{name}' ({source.native}) cannot be written as {declared}: {_why(source, declared)}",
            code="RIVET_TYPE_UNSAFE_MAPPING",
            field=f"columns.{name}",
        )
    return replace(rule, declared=True)


def _why(source: PgType, declared: str) -> str:
    if declared.strip().lower().startswith(("decimal", "numeric")):
        return (
            f"not every {source.native} is such a decimal of at most {_MAX_PRECISION} digits. "
            "Declare more digits, or text"
        )
    return "values could be lost or would have to be guessed. Declare text, or cast it in `query:`"


def _as_text(source: PgType, found: Rule) -> Rule:
    """The server's canonical text; what is text already stays as it is."""
    if found.arrow == pa.string():
        return replace(found, logical=None)
    if _is(source, "numeric"):
        return text_rule("DecimalPlain")
    return text_rule("ArrayText" if source.elem is not None else "ServerText")


def _typed(source: PgType, found: Rule, wanted: str) -> Rule | None:
    if wanted not in _TARGETS or source.elem is not None:
        return None
    arrow, wire, cast = _TARGETS[wanted]
    if found.arrow == arrow:  # as it is: json and jsonb, oid as int64
        return found
    logical = wanted if wanted in ("json", "uuid") else None
    rule = Rule(arrow, wire, fidelity=Fidelity.COMPATIBLE, logical=logical)
    if (source.name, wanted) in _SAME_WIRE and _builtin(source):
        return rule
    if (source.name, wanted) in _WIDENING and _builtin(source):
        return replace(rule, casts=(cast,))
    if source.name == "date" and wanted in _STAMPS and _builtin(source):
        # days past 294276 are refused by the cast
        return replace(rule, casts=(cast,), parses=True)
    if wanted in _HELD_DIGITS and _whole_digits(found) <= _HELD_DIGITS[wanted]:
        return replace(rule, casts=(cast,), parses=True)
    if _is_text(source) and wanted == "json":
        return replace(rule, casts=("text", "json"), parses=True)
    if _is_text(source) and wanted == "uuid":
        # several spellings of one uuid are one value afterwards
        return replace(rule, casts=("text", "uuid"), parses=True, fidelity=Fidelity.LOSSY)
    return None


def _whole_digits(found: Rule) -> int:
    """Digits of a numeric declared without places; more than any integer has for everything else."""
    kind = found.arrow
    return int(kind.precision) if t.is_decimal(kind) and kind.scale == 0 else _MAX_PRECISION + 1


def _decimal(source: PgType, found: Rule, precision: int, scale: int) -> Rule | None:
    if precision > _MAX_PRECISION or source.elem is not None:
        return None
    native = precision <= _NATIVE_PRECISION
    arrow = pa.decimal128(precision, scale) if native else pa.decimal256(precision, scale)
    wire = Wire.DECIMAL128 if native else Wire.DECIMAL256
    rule = Rule(arrow, wire, scale=scale, fidelity=Fidelity.COMPATIBLE)
    if _is(source, "numeric"):
        if not t.is_decimal(found.arrow):  # no declared precision: each value is held against this one
            return rule
        fits = found.arrow.scale <= scale and found.arrow.precision - found.arrow.scale <= precision - scale
        return rule if fits else None
    if _builtin(source) and source.name in _INTEGER_DIGITS:
        fits = precision - scale >= _INTEGER_DIGITS[source.name]
        return replace(rule, casts=("numeric",)) if fits else None
    if _is(source, "money"):
        return replace(rule, casts=("numeric",))
    if _is_text(source):
        # numeric without a modifier: the cast keeps every digit, the reader holds it against the type
        return replace(rule, casts=("text", "numeric"), parses=True, fidelity=Fidelity.LOSSY)
    return None


def _builtin(source: PgType) -> bool:
    return source.schema == "pg_catalog" and source.kind == "b"


def _is_text(source: PgType) -> bool:
    if source.kind == "b" and (source.extension, source.name) == ("citext", "citext"):
        return True
    return _builtin(source) and source.name in ("text", "varchar")


def _is(source: PgType, name: str) -> bool:
    return _builtin(source) and source.name == name


__all__ = ["ColumnRules", "Override", "Policy", "may_not_fit", "overridden"]
