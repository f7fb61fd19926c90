"""The shape of a read as the server's parser sees it: types of its columns, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import psycopg
from msgspec import Struct, field
from psycopg import pq
from psycopg.pq.abc import PGconn

from rivet_dagster.engine.errors import TransientError
from rivet_dagster.engine.sources.postgres.quote import quote_ident
from rivet_dagster.engine.types.decision import Column

_MOST_OUTPUTS: Final = 1_600  # of a SELECT list; the server's own limit is 1664


def select_list(columns: Sequence[Column]) -> str:
    """SELECT list of a read. A converted value goes by another name: ORDER BY must mean the column."""
    return ", ".join(
        c.select if c.select == quote_ident(c.name) else f'{c.select} AS "_rivet_{i}"'
        for i, c in enumerate(columns)
    )


class Shape(Struct, frozen=True):
    """types: OIDs. places: (oid of the table, number of its column) where a value comes from, (0, 0)
    when from none. attnums: (oid of a table, index of the column) -> its number there, for every table
    that the plan names: a column that took the place of a dropped one has its name and another number."""

    types: tuple[int, ...]
    places: tuple[tuple[int, int], ...]
    attnums: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def require(self, found: Shape, columns: Sequence[Column]) -> None:
        """Raise TransientError RIVET_SOURCE_SCHEMA_CHANGED unless ``found`` is what was planned."""
        for i, column in enumerate(columns):
            table, number = found.places[i]
            if found.types[i] != self.types[i]:
                what = "changed its type"
            elif self.attnums.get((table, i), number) != number:
                what = "was dropped, and another one of its name added,"
            else:
                continue
            raise TransientError(
                f"column '{column.name}' {what} after planning",
                code="RIVET_SOURCE_SCHEMA_CHANGED",
                field=column.name,
            )


def described(pgconn: PGconn, columns: Sequence[Column], source: str) -> Shape:
    """Shape of a read of ``columns`` FROM ``source``. Its parsing takes the locks that the read takes."""
    # the value of a converted column comes from nowhere, so the column is asked for as well
    plain = [i for i, c in enumerate(columns) if c.select != quote_ident(c.name)]
    plain = plain[: max(0, _MOST_OUTPUTS - len(columns))]
    outputs = [select_list(columns), *(quote_ident(columns[i].name) for i in plain)]
    prepared = pgconn.prepare(b"", f"SELECT {', '.join(filter(None, outputs))} FROM {source}".encode())
    if prepared.status != pq.ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(prepared)
    shown = pgconn.describe_prepared(b"")
    places = [(shown.ftable(i), shown.ftablecol(i)) for i in range(shown.nfields)]
    for at, i in enumerate(plain, len(columns)):
        places[i] = places[at]
    count = len(columns)
    return Shape(tuple(shown.ftype(i) for i in range(count)), tuple(places[:count]))
