"""What a cursor cannot promise, said where a plan is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from rivet_dagster.engine.plan.incremental import cursor_of
from rivet_dagster.engine.sources.base import SourceFacts

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig

_WHERE: Final = "docs/guarantees.md, 'What an incremental run can miss'"


def cursor_notes(export: ExportConfig, facts: SourceFacts) -> tuple[str, ...]:
    """Which rows a run with a cursor can miss for ever, and what finds them; nothing when none are.

    None are when the server numbers the rows and shows who is about to.
    """
    if not export.accumulates or export.late_rows_s is not None or export.settle is not None:
        return ()
    cursor = cursor_of(export)
    missed = f"rows whose {cursor.identity} is at or below the last one when they are committed are missed"
    if not export.waits_for_writers:
        why = ": `open_transactions: ignore`"
    elif facts.unseen is not None:
        why = f": {facts.unseen}"
    elif facts.draws(cursor) and not cursor.more:
        return ()
    else:
        why = " if the value is older than their transaction, as one of the application's clock can be"
    return (f"{missed}{why}; {_remedy(export, facts)} ({_WHERE})",)


def _remedy(export: ExportConfig, facts: SourceFacts) -> str:
    if export.keyset_incremental:
        return "`mode: incremental` with `settle: {after: ..., column: ...}` waits for them"
    cursor = cursor_of(export)
    found = facts.column(cursor.column)
    kind = found.source_arrow if found else pa.null()
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        return "`settle: {after: ..., column: ...}` with a time column waits for them"
    settle = "`settle: {after: ...}` waits for them"
    return f"`late_rows` finds them, {settle}" if facts.table is not None and not facts.unseen else settle
