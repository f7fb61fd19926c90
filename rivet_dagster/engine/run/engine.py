"""The engine: config, state and sources of one rivet.yaml, and sessions that run its exports."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rivet_dagster.engine.destinations.base import Store
from rivet_dagster.engine.destinations.place import open_store, prefix_of
from rivet_dagster.engine.errors import ConfigError, RivetError, UsageError
from rivet_dagster.engine.plan.incremental import cursor_of, settle_of
from rivet_dagster.engine.run.early import connector_of
from rivet_dagster.engine.run.options import lease_ttl_s
from rivet_dagster.engine.run.resume import versions_read
from rivet_dagster.engine.run.session import Session
from rivet_dagster.engine.sources.postgres.connect import PostgresConnector
from rivet_dagster.engine.sources.postgres.overrides import ColumnRules
from rivet_dagster.engine.sources.postgres.predicate import Origin
from rivet_dagster.engine.sources.postgres.source import PostgresSource
from rivet_dagster.engine.state.location import StateLocation
from rivet_dagster.engine.state.patience import Patience
from rivet_dagster.engine.state.store import StateStore

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig, RivetConfig
    from rivet_dagster.engine.run.drift import Drift
    from rivet_dagster.engine.run.quality import QualityReport
    from rivet_dagster.engine.verify.reconcile import ReconcileDepth, ReconcileReport
    from rivet_dagster.engine.verify.report import Depth, ValidationReport


class Engine:
    """Runs the exports of one config. Cheap to make: nothing is opened before it is needed.

    state_url: see ``StateLocation``; by default ``RIVET_STATE_URL``, else a file beside the config,
    so that the state does not depend on who starts the run or from where. connectors: by export, of
    ``connect_early``; each is for the first who connects.
    """

    def __init__(
        self,
        config: RivetConfig,
        *,
        state_url: str | None = None,
        connectors: Mapping[str, PostgresConnector] | None = None,
    ) -> None:
        self.config = config
        self._connectors = dict(connectors or {})
        self._state_url = state_url if state_url is not None else os.environ.get("RIVET_STATE_URL")
        self._state: StateStore | None = None
        self._stores: dict[tuple[str, str], Store] = {}
        self._opening = threading.Lock()
        self._lock = threading.Lock()

    @property
    def state(self) -> StateStore:
        with self._lock:
            if self._state is None:
                self._state = StateStore.open(
                    self.state_location, source_identity=self._identity(), lease_s=lease_ttl_s()
                )
            return self._state

    @property
    def patient_state(self) -> StateStore:
        """``state`` for a run, which can wait where it is away: for as long as a lease would live."""
        patience = Patience(lease_ttl_s())
        return patience.ask(lambda: self.state).patient(patience)

    def _identity(self) -> str:
        """Which source this is; "" where its address is not known here: what needs no source says nothing."""
        with contextlib.suppress(ConfigError):
            return self.config.source.identity()
        return ""

    @property
    def state_location(self) -> StateLocation:
        """Where the state is, opened or not. Raises as ``StateLocation.parse`` does."""
        return StateLocation.parse(self._state_url, self.config.dir)

    def close(self) -> None:
        with self._lock:
            if self._state is not None:
                self._state.close()
                self._state = None
        with self._opening:
            for store in self._stores.values():
                store.close()
            self._stores.clear()
            while self._connectors:
                self._connectors.popitem()[1].close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def export(self, name: str) -> ExportConfig:
        """Raises UsageError RIVET_CLI_EXPORT_UNKNOWN for a name that the config does not have."""
        names = [e.name for e in self.config.exports]
        if name not in names:
            raise UsageError(
                f"there is no export '{name}'; the config has: {', '.join(names)}",
                code="RIVET_CLI_EXPORT_UNKNOWN",
            )
        return self.config.export(name)

    def source(self, export: ExportConfig) -> PostgresSource:
        relation = export.relation
        origin = Origin(*relation) if relation else Origin(query=export.query_text())
        rules = ColumnRules(export.column_types, export.value_policies, export.default_policy)
        return PostgresSource(export.name, origin, lambda: self._connector(export), rules)

    def _connector(self, export: ExportConfig) -> PostgresConnector:
        return self._connectors.pop(export.name, None) or connector_of(self.config, export)

    def prefix(self, export: ExportConfig) -> str:
        """See ``place.prefix_of``."""
        return prefix_of(export.destination, export.name)

    def store(self, export: ExportConfig, prefix: str) -> Store:
        """The store of one of the export's prefixes; one client for all who ask."""
        with self._opening:
            key = (export.name, prefix)
            if key not in self._stores:
                self._stores[key] = open_store(export.destination, prefix)
            return self._stores[key]

    def session(self, name: str, *, holder: str, lock_wait: float | None = None) -> Session:
        """A session of one export; entering it takes the export's lease.

        Raises BusyError when another run keeps the lease for ``lock_wait`` seconds.
        """
        export = self.export(name)
        if export.destination.type not in ("local", "stdout"):
            # a store's client takes a second to import, which the source's planning may as well take
            threading.Thread(target=self._open_early, args=(export,), daemon=True).start()
        wait = self.config.lock_wait_for(export) if lock_wait is None else lock_wait
        return Session(self, export, holder=holder, lock_wait=wait)

    def _open_early(self, export: ExportConfig) -> None:
        with contextlib.suppress(RivetError):  # told to whoever needs the store
            self.store(export, self.prefix(export))

    def lease_key(self, name: str) -> str:
        return f"chunk-run:{name}"

    def reconcile(self, name: str, *, depth: ReconcileDepth = "sums") -> ReconcileReport:
        """See ``audit.reconcile``."""
        from rivet_dagster.engine.run import audit

        return audit.reconcile(self, name, depth=depth)

    def validate(self, name: str, *, depth: Depth = "full") -> ValidationReport:
        """See ``audit.validate``."""
        from rivet_dagster.engine.run import audit

        return audit.validate(self, name, depth=depth)

    def quality(self, name: str) -> QualityReport:
        """See ``audit.quality``."""
        from rivet_dagster.engine.run import audit

        return audit.quality(self, name)

    def drift(self, name: str) -> Drift:
        """See ``audit.drift``."""
        from rivet_dagster.engine.run import audit

        return audit.drift(self, name)

    def source_moved(self, name: str) -> str | None:
        """A token that changes when an incremental export has rows past its watermark, else None.

        One indexed ``max`` on the source; None also for modes without a watermark.
        """
        export = self.export(name)
        if not export.accumulates:
            return None
        cursor = self.state.cursor(name, self.prefix(export))
        with self.source(export).planner(snapshot=False) as planner:
            walked, after = cursor_of(export), cursor.value if cursor else None
            if export.late_rows_s is None:
                return planner.cursor_bounds(walked, after, settle_of(export)).high
            seen = versions_read(self.state, cursor)
            found = planner.late_bounds(walked, after, export.late_rows_s, seen)
            # rows that came late leave the watermark where it is
            return None if found.high is None else f"{found.high} {seen['high'] if seen else ''}"
