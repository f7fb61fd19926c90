"""Pool limits: one run of an export at a time, or as many in a shared pool as its limit says.

A pool is only a queue; the engine's lease is the authority. But a pool without an explicit limit
queues nothing, and a default limit makes two first runs collide on PostgreSQL (dagster 33552), so the
limits are set one by one: by ``rivet-dagster setup``, or by a run for the runs after it.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

import dagster as dg
from sqlalchemy.exc import IntegrityError

from rivet_dagster.assets._internal import pool_limits, set_pool_limit, supports_pools
from rivet_dagster.assets.naming import ExportNames
from rivet_dagster.config import ExportConfig, RivetConfig


def pool_of(export: ExportConfig) -> str:
    """The pool that the export's steps queue in: ``dagster.pool``, else one of its own."""
    return export.dagster.pool or ExportNames.of(export).own_pool


def ensure_pools(
    instance: dg.DagsterInstance,
    config: RivetConfig,
    *,
    exports: Collection[str] | None = None,
    limit: int = 1,
) -> list[str]:
    """Give the pools of ``config`` (of the named exports) a limit unless someone set one already.

    Returns the pools that were set now. Does nothing on an instance without pools (an ephemeral one).
    """
    if not supports_pools(instance):
        return []
    chosen = [e for e in config.exports if exports is None or e.name in exports]
    known = pool_limits(instance)
    fresh = [pool for pool in dict.fromkeys(map(pool_of, chosen)) if pool not in known]
    for pool in fresh:
        with suppress(IntegrityError):  # another process set it between the two statements
            set_pool_limit(instance, pool, limit)
    return fresh
