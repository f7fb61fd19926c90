"""A unit's rows counted again at the source, long after they were read (RC2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import psycopg
from msgspec.structs import replace

from rivet_dagster.engine.plan.units import WorkUnit
from rivet_dagster.engine.sources.postgres.aggregate import aggregate_sql
from rivet_dagster.engine.sources.postgres.catalog import ServerFacts
from rivet_dagster.engine.sources.postgres.predicate import Origin, unit_from_where
from rivet_dagster.engine.sources.postgres.read import REWRITTEN
from rivet_dagster.engine.types.aggregates import Aggregates
from rivet_dagster.engine.types.decision import Column

_TURN: Final = 1 << 32  # transactions after which the 32 bits that a row keeps of an id mean another one


class RewrittenError(Exception):
    """A relation that was counted lost its rows to the transaction's snapshot; the next one sees them."""


def recount(
    connection: psycopg.Connection[Any],
    unit: WorkUnit,
    columns: tuple[Column, ...],
    origin: Origin,
    server: ServerFacts,
    digest: Sequence[str] = (),
) -> Aggregates | None:
    """Count and statistics of the unit's rows as they are now, by the SQL that reads them.

    Call it inside a transaction of its own. None: the server can no longer tell which rows they were.
    Raises RewrittenError when what was counted is not what the snapshot holds.
    """
    versions = unit.spec.get("versions")
    if versions is not None:
        now = _versions_now(connection, versions, server)
        if now is None:
            return None
        unit = replace(unit, spec={**unit.spec, "versions": now})
    source, condition, _ = unit_from_where(unit, origin)
    statement, shape = aggregate_sql(
        columns, f"FROM {source} WHERE {condition}", encoding=server.encoding, digest=digest
    )
    row = connection.execute(statement.encode()).fetchone()
    rewritten = connection.execute(REWRITTEN.encode()).fetchone()
    assert row is not None
    assert rewritten is not None
    if rewritten[0]:
        raise RewrittenError
    return shape.read(row)


def _versions_now(
    connection: psycopg.Connection[Any], versions: Mapping[str, Any], server: ServerFacts
) -> dict[str, Any] | None:
    """``versions`` as this snapshot has to ask for them: newer ids must not look like older ones.

    None on another cluster. None too for a first run, which has no lower bound, once the counter of ids has
    turned: rows that were there before the turn may look newer than the run.
    """
    clusters = {versions.get("cluster"), server.system_identifier} - {None}
    row = connection.execute("SELECT txid_snapshot_xmax(txid_current_snapshot())").fetchone()
    assert row is not None
    following = int(row[0])
    if len(clusters) > 1 or following < int(versions["next"]):
        return None
    if "low" not in versions and following >= _TURN:
        return None
    if following - int(versions.get("low", versions["high"])) >= _TURN // 2:
        return None
    return {**versions, "next": following}


__all__ = ["RewrittenError", "recount"]
