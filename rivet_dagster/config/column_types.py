"""The type names that ``columns:`` takes, and value policies. Only the spelling is checked here."""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator


def _policy(value: Any) -> Any:
    # an unquoted `null` is how YAML spells nothing, and here it is a word
    return "null" if value is None else str(value)


ValuePolicy = Annotated[Literal["error", "null", "text"], BeforeValidator(_policy)]

_NAMES = """
bool boolean int2 int4 int8 smallint int integer bigint int16 int32 int64 float4 float8 real double
float32 float64 date timestamp timestamp_ns timestamp_tz timestamp_tz_ns timestamptz text string
varchar char bpchar name binary bytea blob varbinary json jsonb uuid
"""
TYPE_NAMES: Final = frozenset(_NAMES.split())
_DECIMAL = re.compile(r"(?:decimal|numeric)\s*(?:\(\s*([0-9]+)\s*(?:,\s*([0-9]+)\s*)?\))?", re.IGNORECASE)


def type_fault(declared: str) -> tuple[str, str] | None:
    """(what is wrong, fix) of a declared type; None if it is one."""
    text = declared.strip()
    if text.lower() in TYPE_NAMES:
        return None
    if found := _DECIMAL.fullmatch(text):
        if found[1] is None or found[2] is None:
            return "a decimal needs precision and scale", "write `decimal(18,2)`"
        if not 1 <= int(found[1]) <= 76 or int(found[2]) > int(found[1]):
            return (
                "a decimal has 1 to 76 digits, and not more after the point than in all",
                "write `decimal(18,2)`",
            )
        return None
    near = difflib.get_close_matches(text.lower(), [*sorted(TYPE_NAMES), "decimal", "numeric"], 1)
    return (
        "the type is not known",
        f"did you mean `{near[0]}`?" if near else "use a type of the reference, e.g. `text`",
    )
