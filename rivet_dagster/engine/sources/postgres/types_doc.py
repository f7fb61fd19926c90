"""The type table for people: docs/types.md, written by ``python -m`` of this module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from rivet_dagster.engine.sources.postgres import types
from rivet_dagster.engine.sources.postgres.types import Rule

DOCS_FILE: Final = Path(__file__).parents[4] / "docs" / "types.md"

_NAMES: Final = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "bpchar": "char(n)",
    "varchar": "varchar, varchar(n)",
    "varbit": "bit varying",
    "char": '"char"',
}

#: Text form -> what it looks like.
TEXT_FORMS: Final = {
    "ArrayText": "The array literal: `{{1,2},{3,NULL}}`.",
    "BitString": "`101`.",
    "CompositeText": 'The row literal: `(1,"a b",)`.',
    "DecimalPlain": "Digits without exponent, `-0.0010`; `NaN`, `Infinity`, `-Infinity`.",
    "GeometricText": "`(1.5,-2)`, `<(0,0),1.5>`; coordinates as the shortest text that reads back equal.",
    "HexWkb": "Extended well-known binary in hexadecimal.",
    "InetText": "Address and mask: `10.0.0.1/32`, `fe80::1/64`.",
    "Iso8601Duration": "`P1M-1DT0.000001S`: each part with its own sign; `infinity` since 17.",
    "MacText": "`08:00:2b:01:02:03`.",
    "RangeText": "`[1,5)`, `empty`, `{[1,2),[5,6)}`; times in ISO form and UTC.",
    "ServerText": "What the server's cast to text gives.",
    "TimeOfDayOffset": "`23:59:59.999999+15:59`.",
    "XmlText": "The document as stored.",
}

_INTRO: Final = """# Types

How a column of PostgreSQL is written. This page is generated:
`python -m rivet_dagster.engine.sources.postgres.types_doc`.

The type of each column is decided from the catalog before the first row is read, never from values. The
decision stands in the file: each field's metadata holds `rivet.native_type`, `rivet.fidelity`, for text
forms `rivet.text_form`, and for json, uuid and enum `rivet.logical_type`.

- **exact**: the file's type holds every value. **compatible**: so does another type than the source's.
- **text**: the file holds the server's canonical text, which no session setting changes: time zone, date
  style, interval style and float digits are pinned for the read.
- **lossy**: an override has text parsed; the value is whole, its spelling is not kept.
- **unsupported**: no honest form exists. Planning refuses such columns, all by name.

A value that its column's file type cannot hold stops its work unit with
`RIVET_SOURCE_VALUE_UNREPRESENTABLE`, the column and the row; nothing is rounded, and nothing is turned
into NULL that no `value_policy` asked for.
These are: `NaN` in a declared numeric, infinite dates and timestamps, timestamps past 294246,
`24:00:00`, and arrays of several dimensions (or not starting at 1) in a column declared with one.

**NOT NULL** is carried into the file where the server keeps it for every row
([ADR 19](adr/0019-not-null-is-carried-where-the-server-keeps-it.md)); the columns of a query may be NULL.
"""

_OUTRO: Final = """
A **domain** is decided as its base type, with the modifier that it fixes. An **array** declared with one
dimension is `list<item: ...>` of what its element type is decided as; one declared with several (`int[][]`)
is `ArrayText` as a whole. The server keeps declared dimensions for tables alone: in a view or query it is a
list. Types of extensions and your own base types are read by their cast to text. A pseudo-type is
unsupported, except `record`, which a query can return.

## Overrides

`columns:` declares the type of a column, `name: type` or `"table.name": type`. An override widens, names a
precision, or takes text; it never rounds. Domains are overridden as their base type.

| declared | from |
|---|---|
| `text`, `string`, `varchar`, `char` | every type: the server's canonical text of the value |
| `decimal(p,s)`, p <= 76 | `numeric`, held value by value; integers and numerics with room; `money`; text |
| `int2`, `int4`, `int8` | smaller integers; `numeric(p,0)` of at most 4, 9 and 18 digits |
| `float4`, `float8` | `real` as float8; integers that the float holds exactly |
| `timestamp`, `timestamp_tz` | each other (the zone is UTC), and `date` |
| `timestamp_ns`, `timestamp_tz_ns` | `timestamp`, `timestamptz` and `date`, from 1677-09-21 to 2262-04-11 |
| `json` | text that is JSON, byte for byte |
| `uuid` | text that is a uuid, in any spelling that PostgreSQL reads |
| `bool`, `date`, `binary` | that type itself |

Everything else is refused before the first row with `RIVET_TYPE_UNSAFE_MAPPING`, the column and a way out.
A value that does not fit its declared type (too many digits, text that cannot be parsed) stops its unit with
`RIVET_SOURCE_VALUE_UNREPRESENTABLE` and the column's name.

A decimal of more than 38 digits is `decimal256`. Declare it only for readers that know it: pyarrow does,
DuckDB 1.5 takes the column for a DOUBLE and shows other numbers, so the default is text. Nanoseconds hold
what PostgreSQL counts in microseconds, nothing finer, and end in 2262: a `9999-12-31` has no form in them.
In a CSV a nanosecond timestamp has nine digits behind the point.
How a CSV is taken apart stands in its manifest (`rivet_dagster.csv`: delimiter, quote, NULL, line end,
encoding), and so do the columns that the server fills (`rivet_dagster.column_origins`).

A name of a column may stand in double quotes as in SQL, in every key that names one; a key of `columns:`
needs them where the name holds a dot: `'"a.b"': text`, `'orders."a.b"': text`.

## Values without a form

`value_policy:` says, by column or `"*"`, what becomes of a value that the file's type cannot hold:

- `error` (default): the unit stops, with the column and the row.
- `null`: the cell is NULL. How many there were stands in the manifest (`rivet_dagster.policies`), in the
  run's figures and on the materialization (`values_nulled`). Reconciliation leaves such a column out.
- `text`: the whole column is the server's text, decided before the first row.

`"*"` means the columns whose type can meet such a value; all others stay as they are.

## Added columns

`meta_columns:` adds columns behind the source's, never NULL:

- `exported_at`: `_rivet_exported_at`, `timestamp[us, tz=UTC]`. The time at which the run began, the same
  in all of its rows, also when it was continued later. Units that a run carries over keep the time of
  their own run.
- `row_hash`: `_rivet_row_hash`, `int64`. XXH3-64 over the row's cells as the file holds them (`true`:
  all of the source's, or the named ones in their order). For each cell: a zero byte for NULL, or a one
  byte, the length in bytes (8 bytes, little-endian) and the bytes of [the value
  checksum](adr/0010-manifest-and-value-checksum.md); list elements carry tag and length too, so no two
  rows share their bytes. The manifest names columns and render (`xxh3-64-i64-arrow-cells-v1`). A CSV
  holds some values as text, so its hashes are not those of a Parquet file.
"""


class TypeRow(Struct, frozen=True):
    """One line of the documented table."""

    source: str
    file: str
    fidelity: str
    form: str
    note: str


def type_table() -> tuple[TypeRow, ...]:
    """Every decision, in the order of the code's table; types that share one decision share a line."""
    lines: dict[tuple[str, str, str, str], list[str]] = {}
    for name, rule in decisions():
        key = (str(rule.arrow), str(rule.fidelity), rule.text_form or "", rule.note)
        lines.setdefault(key, []).append(name)
    return tuple(TypeRow(", ".join(names), *key) for key, names in lines.items())


def decisions() -> Iterator[tuple[str, Rule]]:
    """(name, rule) of every type of the code's table."""
    for name, rule in types.BUILTIN.items():
        yield _NAMES.get(name, name), rule
        if name == "float8":
            yield from _NUMERIC.items()
    yield "an enum", types.BY_KIND["e"]
    yield "a composite type", types.BY_KIND["c"]
    yield "a range or multirange", types.BY_KIND["r"]
    for (extension, name), rule in types.EXTENSION.items():
        yield name if extension == name else f"{name} ({extension})", rule
    yield "any other base type", types.SERVER_TEXT


def _note(rule: Rule, note: str) -> Rule:
    return Rule(rule.arrow, rule.wire, fidelity=rule.fidelity, text_form=rule.text_form, note=note)


def _modifier(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


_NUMERIC: Final = {
    "numeric(p,s)": _note(types.numeric_rule(_modifier(10, 2)), "shown for (10,2); 0 <= s <= p <= 38"),
    "numeric(p,-s)": _note(types.numeric_rule(_modifier(3, -2)), "shown for (3,-2); p+s <= 38"),
    "numeric(p,s), s > p": _note(types.numeric_rule(_modifier(2, 5)), "shown for (2,5); s <= 38"),
    "numeric(p,s) of more digits": types.numeric_rule(_modifier(39, 0)),
    "numeric": types.numeric_rule(-1),
}


def render() -> str:
    """docs/types.md as it must be."""
    out = [
        _INTRO,
        "## PostgreSQL\n",
        "| source | file (Arrow) | fidelity | text form | |",
        "|---|---|---|---|---|",
    ]
    out += [f"| {r.source} | `{r.file}` | {r.fidelity} | {r.form} | {r.note} |" for r in type_table()]
    out += [
        _OUTRO,
        "## Text forms\n",
        "| form | |",
        "|---|---|",
        *(f"| {name} | {text} |" for name, text in TEXT_FORMS.items()),
    ]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    DOCS_FILE.write_text(render(), encoding="utf-8")
