"""The state of all runs: one object over SQLite or PostgreSQL."""

from __future__ import annotations

import copy
from types import TracebackType

from rivet_dagster.engine.errors import RefusalError
from rivet_dagster.engine.state.connection import Connection
from rivet_dagster.engine.state.database import Database
from rivet_dagster.engine.state.exports import ExportStore
from rivet_dagster.engine.state.lease import DEFAULT_TTL_S, LeaseStore
from rivet_dagster.engine.state.location import StateLocation
from rivet_dagster.engine.state.migrate import migrate
from rivet_dagster.engine.state.models import Claim
from rivet_dagster.engine.state.patience import Patience
from rivet_dagster.engine.state.runs import RunStore
from rivet_dagster.engine.state.sharing import SharingStore
from rivet_dagster.engine.state.unit_statements import UnitStatements
from rivet_dagster.engine.state.units import UnitStore


class StateStore(LeaseStore, UnitStore, RunStore, ExportStore, SharingStore):
    """Leases, units, runs and what outlives them. Threads share one; each process opens its own.

    Every method raises the error tree only: TransientError (RIVET_STATE_UNAVAILABLE) when the state
    cannot be reached now (of a ``patient`` one: for too long), EnvironmentFault
    (RIVET_STATE_NOT_WRITABLE, RIVET_STATE_CORRUPT), and BusyError (RIVET_STATE_LEASE_LOST) from
    whatever writes under a lease that has passed on.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        self._statements = UnitStatements(database.dialect)
        #: another source that a SQLite state beside a config belongs to as well, None without one
        self.shared_with: str | None = None

    @classmethod
    def open(
        cls, location: StateLocation, *, source_identity: str = "", lease_s: float = DEFAULT_TTL_S
    ) -> StateStore:
        """Open the state and bring it to this version's schema.

        source_identity: ``engine://host:port/database``; a SQLite directory that somebody named
        and that another source uses is refused (RIVET_STATE_FOREIGN) before anything is changed. "":
        nobody knows here, so nothing is compared. lease_s: how long leases live here; a server that says
        nothing is not waited for longer.
        """
        database = Database(location, lease_s=lease_s)
        other = None
        try:
            if location.backend == "sqlite" and source_identity:
                other = _other_source(database, source_identity)
            if other is not None and location.declared:
                raise RefusalError(
                    f"state {location.display} belongs to {other}, not to {source_identity}",
                    code="RIVET_STATE_FOREIGN",
                )
            migrate(database)
        except BaseException:
            database.close()
            raise
        store = cls(database)
        store.shared_with = other
        return store

    def patient(self, patience: Patience) -> StateStore:
        """The same state, on the same connections, asked with ``patience``."""
        other = copy.copy(self)
        other.patience = patience
        return other

    @property
    def location(self) -> StateLocation:
        """Where it is; another process opens the same state from it."""
        return self._db.location

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> StateStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"StateStore({self._db.location.display})"


def _other_source(database: Database, source_identity: str) -> str | None:
    """Whose state it is, when the last run in it was of another source."""
    # plain SQL on the oldest columns: this is read before the migration
    with database.single() as connection:
        if not _has_runs(connection):
            return None
        named = "SELECT source_identity FROM chunk_run WHERE source_identity <> ''"
        known: str | None = connection.scalar(f"{named} ORDER BY created_at DESC LIMIT 1")
    return None if known == source_identity else known


def _has_runs(connection: Connection) -> bool:
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'chunk_run'"
    return connection.first(query) is not None


__all__ = ["Claim", "StateStore"]
