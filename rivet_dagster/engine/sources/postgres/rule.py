"""What a PostgreSQL type is, and what it becomes: the records that decisions are made of."""

from __future__ import annotations

import pyarrow as pa
from msgspec import Struct

from rivet_dagster.engine.sources.postgres.kernel import Wire
from rivet_dagster.engine.types.decision import Fidelity


class PgType(Struct, frozen=True):
    """A type as the catalog has it. ``kind``: pg_type.typtype. ``native``: its name for people.

    typmod: modifier of the column (or of the domain that fixes it), -1 for none. base: what a domain
    stands on. elem: element type of a true array, else None. ndims: dimensions as declared.
    """

    oid: int
    schema: str
    name: str
    kind: str
    native: str
    typmod: int = -1
    ndims: int = 0
    extension: str | None = None
    base: PgType | None = None
    elem: PgType | None = None


class Rule(Struct, frozen=True):
    """What one type becomes. ``casts``: applied in order in the SELECT list.

    declared: an override of the export decided. parses: the server parses text on the way, so a value
    may be refused by it. nulls_unfit: values without a form become NULL, counted.
    """

    arrow: pa.DataType
    wire: int
    casts: tuple[str, ...] = ()
    scale: int = 0
    fidelity: Fidelity = Fidelity.EXACT
    logical: str | None = None
    text_form: str | None = None
    note: str = ""
    declared: bool = False
    parses: bool = False
    nulls_unfit: bool = False


def text_rule(form: str, note: str = "", *, via: tuple[str, ...] = ()) -> Rule:
    return Rule(pa.string(), Wire.TEXT, (*via, "text"), fidelity=Fidelity.TEXT, text_form=form, note=note)


__all__ = ["PgType", "Rule", "text_rule"]
