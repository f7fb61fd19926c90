"""Names of tables and columns in rivet.yaml: as they are, or in double quotes as in SQL.

A name is exact: case is kept with and without quotes, nothing is folded. A part of a dotted name that
holds anything but letters, digits, ``_`` and ``$`` stands in double quotes, a quote in it twice:
``public."Odd.Name"``. A column alone may hold anything without quotes too.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator

from rivet_dagster.config.base import Name, read_list

_QUOTED: Final = r'"(?:[^"]|"")+"'
_PART: Final = re.compile(rf"({_QUOTED})|([^\W\d][\w$]*)")
_LOOSE: Final = re.compile(rf'({_QUOTED})|([^".]+)')
_ONE: Final = re.compile(_QUOTED)


def _split(text: str, part: re.Pattern[str]) -> tuple[str, ...] | None:
    """The parts between the dots of ``text``, unquoted; None where it is not parts with dots between."""
    found: list[str] = []
    at = 0
    while match := part.match(text, at):
        found.append(_unquoted(match[1]) if match[1] else match[2])
        at = match.end()
        if at == len(text):
            return tuple(found)
        if text[at] != ".":
            break
        at += 1
    return None


def _unquoted(quoted: str) -> str:
    return quoted[1:-1].replace('""', '"')


def table_parts(text: str) -> tuple[str, ...]:
    """``schema.table`` or ``table`` as (schema, table) or (table,). Raises ValueError for anything else."""
    parts = _split(text, _PART)
    if parts is None or not all(parts):
        raise ValueError("the table is not a name: quote parts that are not letters, digits and `_`")
    if len(parts) > 2:
        raise ValueError("a table has at most two parts")
    return parts


def column_key(text: str) -> tuple[tuple[str, ...], str]:
    """A key of ``columns:`` as (parts of the table, column); no parts where it names a column alone."""
    parts = _split(text, _LOOSE)
    if parts is None:  # quotes that are part of the name
        table, _, column = text.rpartition(".")
        return ((table,) if table else ()), column
    return parts[:-1], parts[-1]


def column_name(text: str) -> str:
    """The column that ``text`` names, with or without quotes around all of it."""
    return _unquoted(text) if _ONE.fullmatch(text) else text


ColumnName = Annotated[Name, AfterValidator(column_name)]
ColumnList = Annotated[tuple[ColumnName, ...], BeforeValidator(read_list)]
