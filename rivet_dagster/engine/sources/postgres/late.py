"""Row versions by the transaction that made them: what a watermark alone would miss.

A run reads the versions made by transactions whose 64-bit ids lie in [low, high): ``high`` is the oldest
transaction that was open in the run's snapshot, so all in the range have ended, and ``low`` is the run
before's ``high``. The ranges of successive runs touch, hence each committed version is in exactly one.
The rule needs no list of open transactions, which would not name subtransactions, under whose ids
savepoints write their rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rivet_dagster.engine.errors import ConfigError, RefusalError
from rivet_dagster.engine.sources.base import Cursor, LateBounds, SourceFacts
from rivet_dagster.engine.sources.postgres.bounds import Ask, cursor_type
from rivet_dagster.engine.sources.postgres.catalog import Relation, ServerFacts
from rivet_dagster.engine.sources.postgres.predicate import cursor_sql, version_sql
from rivet_dagster.engine.sources.postgres.quote import quote_literal


def require_versions(relation: Relation | None, server: ServerFacts) -> None:
    """Raise ConfigError unless rows carry the id of their transaction, as heaps of a primary do."""
    if relation is None or relation.kind not in "rp":
        raise _refused("it needs a table: a view or query does not say which transaction wrote a row")
    if not all(leaf.kind == "r" and leaf.is_heap for leaf in relation.leaves):
        raise _refused(f"{relation.sql} is not stored in plain heaps")
    if server.in_recovery:
        raise _refused("a standby does not know the transactions that are open on its primary")


def late_bounds(
    ask: Ask,
    source: str,
    facts: SourceFacts,
    server: ServerFacts,
    cursor: Cursor,
    watermark: str | None,
    seconds: int,
    seen: Mapping[str, Any] | None,
) -> LateBounds:
    """seen: ``versions`` of the run that left the watermark; None when that run did not ask for them."""
    native = cursor_type(ask, source, facts, cursor)
    edge = watermark
    found = ask("SELECT txid_snapshot_xmin(s), txid_snapshot_xmax(s) FROM txid_current_snapshot() AS t (s)")
    assert found is not None
    high, following = int(found[0]), int(found[1])
    versions: dict[str, Any] = {"high": high, "next": following, "cluster": server.system_identifier}
    lookback = _lookback(ask, native, watermark, seconds, cursor)
    if seen is not None:
        _require_same_cluster(seen, versions)
        versions["low"] = int(seen["high"])
        edge = lookback
    key = cursor_sql(cursor.column, cursor.fallback)
    past = f"{key} IS NOT NULL" if edge is None else f"{key} > {quote_literal(edge)}"
    newer = "TRUE" if watermark is None else f"k > {quote_literal(watermark)}"
    row = ask(
        f"SELECT k::text, {newer} FROM (SELECT {key} AS k FROM {source}"
        f" WHERE {past} AND {version_sql(versions)} ORDER BY 1 DESC LIMIT 1) AS q"
    )
    if row is not None and str(row[0]) == "infinity":
        raise RefusalError(
            f"the cursor {cursor.identity} holds infinity, past which no row could ever be found",
            code="RIVET_SOURCE_VALUE_UNREPRESENTABLE",
            field="cursor_column",
        )
    top = None if row is None else str(row[0]) if row[1] else watermark
    return LateBounds(native, edge, top, versions)


def _lookback(ask: Ask, native: str, watermark: str | None, seconds: int, cursor: Cursor) -> str | None:
    if not native.startswith(("timestamp", "date")):
        raise _refused(f"it needs a date or timestamp as cursor, and {cursor.identity} is {native}")
    if watermark is None:
        return None
    back = f"CAST({quote_literal(watermark)} AS {native}) - interval '{int(seconds)} seconds'"
    row = ask(f"SELECT (({back})::date - 1)::text" if native == "date" else f"SELECT ({back})::text")
    assert row is not None
    return str(row[0])


def _require_same_cluster(seen: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    clusters = {seen.get("cluster"), now["cluster"]} - {None}
    if len(clusters) > 1 or int(seen["high"]) > int(now["next"]):
        raise RefusalError(
            "the last run read from another server, whose transaction ids mean nothing on this one; run a "
            "whole pass",
            code="RIVET_STATE_CURSOR_OWNER_MISMATCH",
            field="late_rows",
        )


def _refused(why: str) -> ConfigError:
    return ConfigError(
        f"`late_rows` does not work here: {why}",
        code="RIVET_CONFIG_INVALID",
        field="late_rows",
        fix="use `settle` instead",
    )
