"""Pool limits: one run of an export at a time, or as many in a shared pool as its limit says.

An op queues in one pool. With ``dagster.source_pool_limit`` that is the source's, and the lease alone
keeps two runs of an export apart.

A pool is only a queue; the engine's lease is the authority. But a pool without an explicit limit
queues nothing, and a default limit makes two first runs collide on PostgreSQL (dagster 33552), so the
limits are set one by one: by ``rivet-dagster setup``, or by a run for the runs after it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress

import dagster as dg

from rivet_dagster.assets._internal import pool_limits, set_pool_limit, supports_pools
from rivet_dagster.assets.naming import ExportNames
from rivet_dagster.config import ExportConfig, RivetConfig

_UNSAFE = re.compile(r"[^A-Za-z0-9_./:-]")


def pool_of(config: RivetConfig, export: ExportConfig) -> str:
    """The pool that the export's steps queue in: the source's if it has a limit, ``dagster.pool``, else
    one of its own."""
    if config.dagster.source_pool_limit is not None:
        return source_pool(config)
    return export.dagster.pool or ExportNames.of(export).own_pool


def source_pool(config: RivetConfig) -> str:
    """Alike in every code location whose config names the source in the same words."""
    return f"rivet_source/{_UNSAFE.sub('_', config.source.label)}"


def ensure_pools(
    instance: dg.DagsterInstance,
    config: RivetConfig,
    *,
    exports: Collection[str] | None = None,
    renew: bool = False,
) -> list[str]:
    """Give the pools of ``config`` (of the named exports) a limit unless someone set one already.

    renew: the limit that the config names for the source's pool replaces another one. Returns the
    pools that were set now. Does nothing on an instance without pools (an ephemeral one).
    """
    if not supports_pools(instance):
        return []
    limit = config.dagster.source_pool_limit or 1
    named = config.dagster.source_pool_limit is not None
    chosen = [pool_of(config, e) for e in config.exports if exports is None or e.name in exports]
    known = pool_limits(instance)
    fresh = [
        pool
        for pool in dict.fromkeys(chosen)
        if pool not in known or (renew and named and known[pool] != limit)
    ]
    if fresh:
        from sqlalchemy.exc import IntegrityError
    for pool in fresh:
        with suppress(IntegrityError):  # another process set it between the two statements
            set_pool_limit(instance, pool, limit)
    return fresh
