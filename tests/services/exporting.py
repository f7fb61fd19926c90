"""Runs exports of a table of one test's database and reads back what they wrote."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rivet_dagster.config import load_config
from rivet_dagster.engine.run.engine import Engine
from rivet_dagster.engine.run.events import RunEvent, RunOutcome
from tests.services.postgres import TestDatabase
from tests.services.rivet_cli import write_config


@dataclass
class Exporter:
    """One config over a database. ``events``: of the last run."""

    db: TestDatabase
    root: Path
    events: list[RunEvent] = field(default_factory=list)

    @contextmanager
    def engine(self, **keys: Any) -> Iterator[Engine]:
        """An engine of one export ``o`` of table ``t`` with these keys."""
        entry: dict[str, Any] = {"name": "o", "table": "t", "mode": "full", "format": "parquet", **keys}
        if entry.get("query"):
            del entry["table"]
        entry.setdefault("destination", {"type": "local", "path": str(self.root / "out")})
        path = write_config(self.root / "rivet.yaml", self.db.url, [entry])
        with Engine(load_config(path), state_url=f"sqlite:{self.root}") as engine:
            yield engine

    def run(self, **keys: Any) -> RunOutcome:
        """One run from the plan to its end."""
        with self.engine(**keys) as engine, engine.session("o", holder="test") as session:
            session.plan()
            self.events = list(session.execute())
            return session.finalize()

    def stopped(self, events: int, **keys: Any) -> str:
        """A run that ends after so many events, unfinished; its id."""
        with self.engine(**keys) as engine, engine.session("o", holder="stopped") as session:
            run_id = session.plan().run_id
            stream = session.execute()
            assert isinstance(stream, Generator)
            for _ in range(events):
                next(stream)
            stream.close()
            return run_id

    def table(self) -> pa.Table:
        """The rows of the last run, by its manifest."""
        parts = [self.root / "out" / part["path"] for part in self.manifest()["parts"]]
        return pa.concat_tables([pq.read_table(part) for part in parts])

    def column(self, name: str) -> list[Any]:
        found: list[Any] = self.table().column(name).to_pylist()
        return found

    def text(self) -> str:
        """All CSV parts of the last run."""
        return "".join((self.root / "out" / p["path"]).read_text() for p in self.manifest()["parts"])

    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.root / "out" / "manifest.json").read_bytes())
        return found

    @property
    def marked(self) -> bool:
        return (self.root / "out" / "_SUCCESS").exists()
