"""Exports of one database through the engine: written as a config, run, failed, and read back."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest
import yaml

from rivet_dagster import cli
from rivet_dagster.config import load_config
from rivet_dagster.engine.errors import RivetError
from rivet_dagster.engine.run.engine import Engine
from rivet_dagster.engine.run.events import RunEvent, RunOutcome, RunPlan
from rivet_dagster.engine.run.session import Session
from tests.services.postgres import TestDatabase

EXPORT: Final = "things"
_GONE_S: Final = 10.0


@dataclass(slots=True)
class Rig:
    """A folder with a rivet.yaml over ``db``. ``url``: the source of the config, by default a superuser's.

    ``events`` are those of the last run.
    """

    db: TestDatabase
    root: Path
    url: str = ""
    tuning: dict[str, Any] = field(default_factory=lambda: {"profile": "fast", "retry_backoff_ms": 1})
    events: list[RunEvent] = field(default_factory=list)
    _engine: Engine | None = None

    @property
    def config(self) -> Path:
        return self.root / "rivet.yaml"

    @property
    def engine(self) -> Engine:
        assert self._engine is not None, "configure() comes first"
        return self._engine

    def configure(self, *exports: dict[str, Any], source: dict[str, Any] | None = None) -> Rig:
        """Write the config and open an engine over it; the state stays."""
        source = source or {"url": self.url or self.db.url}
        body = {
            "source": {"type": "postgres", "tls": {"mode": "disable"}, "tuning": self.tuning, **source},
            "exports": [self._complete(e) for e in exports],
        }
        self.config.write_text(yaml.safe_dump(body))
        self.close()
        self._engine = Engine(load_config(self.config), state_url=f"sqlite:{self.root}")
        return self

    def export(self, table: str | None = EXPORT, mode: str = "full", **options: Any) -> Rig:
        """``configure`` with one export named ``things``."""
        return self.configure({"table": table, "mode": mode, **options})

    def _complete(self, export: dict[str, Any]) -> dict[str, Any]:
        name = export.get("name", EXPORT)
        whole = {
            "name": name,
            "format": "parquet",
            "destination": {"type": "local", "path": f"./out/{name}"},
            **export,
        }
        return {k: v for k, v in whole.items() if v is not None}

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    @contextlib.contextmanager
    def planned(self, name: str = EXPORT, **how: Any) -> Iterator[tuple[Session, RunPlan]]:
        """A session that has planned."""
        with self.engine.session(name, holder="test", lock_wait=0) as session:
            yield session, session.plan(**how)

    def run(
        self, name: str = EXPORT, *, between: Callable[[], object] | None = None, **how: Any
    ) -> RunOutcome:
        """A whole run; ``between`` is called after planning. Raises as the engine does."""
        self.events = []
        with self.planned(name, **how) as (session, _):
            if between is not None:
                between()
            for event in session.execute():
                self.events.append(event)
            return session.finalize()

    def failure(
        self, name: str = EXPORT, *, between: Callable[[], object] | None = None, **how: Any
    ) -> RivetError:
        """The error of a run that fails; it names the export, and no connection is left."""
        with pytest.raises(RivetError) as caught:
            self.run(name, between=between, **how)
        assert caught.value.export == name
        self.assert_no_connections()
        return caught.value

    def folder(self, name: str = EXPORT) -> Path:
        return self.root / "out" / name

    def files(self, name: str = EXPORT) -> list[str]:
        """Names in the destination folder, at any depth."""
        folder = self.folder(name)
        return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())

    def parts(self, name: str = EXPORT) -> list[Path]:
        """The data files that a reader of the folder sees."""
        return sorted(p for p in self.folder(name).iterdir() if re.search(r"\.(parquet|csv)$", p.name))

    def manifest(self, name: str = EXPORT) -> dict[str, Any]:
        return dict(json.loads((self.folder(name) / "manifest.json").read_bytes()))

    def read(self, select: str = "*", name: str = EXPORT) -> list[tuple[Any, ...]]:
        """Rows of the folder's Parquet files, sorted, as DuckDB reads them."""
        return read_parquet(self.parts(name), select)

    def connections(self) -> list[tuple[Any, ...]]:
        """(pid, state, query) of what is connected to the database, this look aside."""
        with self.db.server.connect() as connection:
            return connection.execute(
                "SELECT pid, state, query FROM pg_stat_activity WHERE datname = %s", [self.db.name]
            ).fetchall()

    def assert_no_connections(self) -> None:
        deadline = time.monotonic() + _GONE_S
        while (found := self.connections()) and time.monotonic() < deadline:
            time.sleep(0.05)  # a backend ends a moment after its client
        assert not found


def read_parquet(parts: list[Path], select: str = "*") -> list[tuple[Any, ...]]:
    """Rows of the files, sorted."""
    with duckdb.connect() as duck:
        duck.execute("SET TimeZone = 'UTC'")
        names = [str(p) for p in parts]
        return sorted(duck.execute(f"SELECT {select} FROM read_parquet(?)", [names]).fetchall(), key=repr)


def source_rows(db: TestDatabase, select: str = "*", table: str = EXPORT) -> list[tuple[Any, ...]]:
    """Rows of the table, sorted as ``read_parquet`` sorts them."""
    with db.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return sorted(connection.execute(f"SELECT {select} FROM {table}".encode()).fetchall(), key=repr)


def run_cli(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    """``rivet-dagster`` with ``args`` in this process. Returns its exit code."""
    monkeypatch.setattr("sys.argv", ["rivet-dagster", *args])
    monkeypatch.delenv("RIVET_STATE_URL", raising=False)
    try:
        cli.main()
    except SystemExit as done:
        return int(done.code or 0)
    return 0
