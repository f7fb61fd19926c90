"""Connecting to the source while the rest of the engine is still being imported.

Imports no Arrow: a command that runs one export calls this first, and the server opens sessions and reads
its catalog on a core of its own while this process loads what it will read the rows with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rivet_dagster.engine.errors import RivetError
from rivet_dagster.engine.sources.postgres import catalog_sql
from rivet_dagster.engine.sources.postgres.connect import PostgresConnector, SessionLimits

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig, RivetConfig

#: Sessions for workers that are opened while the source is planned.
READERS_AHEAD: Final = 1


def connector_of(config: RivetConfig, export: ExportConfig) -> PostgresConnector:
    """Nothing is opened yet. Raises ConfigError when the source's address is not known here."""
    tuning = config.tuning_for(export)
    limits = SessionLimits(tuning.statement_timeout_s * 1000, tuning.lock_timeout_s * 1000)
    return PostgresConnector(config.source.resolve().conninfo_kwargs(), limits)


def connect_early(config: RivetConfig, exports: Sequence[str]) -> dict[str, PostgresConnector]:
    """By export, the connector of the only one, with what its run needs first being opened in a thread.

    Nothing for several, of which the first one's start weighs nothing, and nothing for an export or an
    address that is not known: whoever runs it says so.
    """
    export = next((e for e in config.exports if [e.name] == list(exports)), None)
    if export is None:
        return {}
    try:
        connector = connector_of(config, export)
    except RivetError:
        return {}
    warm = None
    if export.relation is not None:
        schema, table = export.relation
        warm = (catalog_sql.RELATION, {"schema": schema, "table": table})
    connector.prepare(1 + READERS_AHEAD, warm=warm)
    return {export.name: connector}
