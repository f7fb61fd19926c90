"""The one type decision: what a source column becomes, and how faithful that is."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import pyarrow as pa
from msgspec import Struct


class Fidelity(StrEnum):
    """How much of a source value survives.

    ``exact``: every value, natively. ``compatible``: every value, another but equal native type.
    ``text``: every value, as the canonical text named in the type table. ``lossy``: declared by an
    override. ``unsupported``: no honest form exists; planning refuses the column by name.
    """

    EXACT = "exact"
    COMPATIBLE = "compatible"
    TEXT = "text"
    LOSSY = "lossy"
    UNSUPPORTED = "unsupported"


class Column(Struct, frozen=True):
    """One column of an export, decided from the catalog before the first row.

    name: as the source spells it. native_type: the source's name of the type, e.g. ``numeric``.
    arrow: type in the file (extension types included). select: SQL expression that the read puts in
    its SELECT list, already quoted. wire: how the kernel decodes the value (source specific code).
    scale: target scale of a decimal, else 0. nullable: the catalog does not rule NULL out; where it
    does, the file says so too (``required``).
    distinct: distinct values, estimated (None: unknown); the writer chooses encodings with it.
    integer: the source's values are integers, whatever the file's type is. declared: an override of
    the export decided the type, and found is what it would be without. parses: the source parses text
    on the way and may refuse a value. nulls_unfit: values that the type cannot hold become NULL,
    counted. added: it is ours, not the source's. random: no encoding makes its values smaller.
    """

    name: str
    native_type: str
    arrow: pa.DataType
    select: str
    wire: int
    scale: int = 0
    fidelity: Fidelity = Fidelity.EXACT
    logical_type: str | None = None
    text_form: str | None = None
    nullable: bool = True
    distinct: float | None = None
    avg_width: int | None = None
    integer: bool = False
    found: pa.DataType | None = None
    declared: bool = False
    parses: bool = False
    nulls_unfit: bool = False
    added: bool = False
    random: bool = False

    @property
    def source_arrow(self) -> pa.DataType:
        """The type that stands for the source's own, whatever an override writes: planning asks it."""
        return self.arrow if self.found is None else self.found

    @property
    def required(self) -> bool:
        """Whether no cell of the file can be NULL: the source promises it, and no policy breaks it."""
        return not (self.nullable or self.nulls_unfit)

    def field(self) -> pa.Field:
        """The Arrow field with provenance metadata (T3) and the source's NOT NULL (ADR-0019)."""
        metadata = {"rivet.native_type": self.native_type, "rivet.fidelity": str(self.fidelity)}
        if self.logical_type:
            metadata["rivet.logical_type"] = self.logical_type
        if self.text_form:
            metadata["rivet.text_form"] = self.text_form
        return pa.field(self.name, self.arrow, nullable=not self.required, metadata=metadata)

    def as_json(self) -> dict[str, Any]:
        """What the state keeps as the accepted schema."""
        found: dict[str, Any] = {"name": self.name, "type": str(self.arrow), "native": self.native_type}
        marks = ("declared", "nulls_unfit", "added")
        return found | {mark: True for mark in marks if getattr(self, mark)}


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    return pa.schema([c.field() for c in columns])


def type_report(columns: Iterable[Column]) -> list[dict[str, Any]]:
    """What becomes of each column: name, type of the source and of the file, fidelity, text form.

    declared: the export says so itself. required: no cell of the file is NULL. note: who reads it wrong.
    """
    return [
        {
            "column": c.name,
            "source": c.native_type,
            "file": str(c.arrow),
            "fidelity": str(c.fidelity),
            "text_form": c.text_form or "",
            "declared": c.declared,
            "required": c.required,
            "note": "DuckDB takes it for a DOUBLE" if pa.types.is_decimal256(c.arrow) else "",
        }
        for c in columns
    ]
