"""One export run here, and the rows that its folder holds."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import yaml

from rivet_dagster.config import load_config
from rivet_dagster.engine.destinations.local import LocalStore
from rivet_dagster.engine.run.engine import Engine
from rivet_dagster.engine.run.events import RunEvent, RunNote, RunOutcome, RunPlan, UnitCommitted
from rivet_dagster.engine.verify.manifest import MAX_MANIFEST_BYTES, Manifest
from rivet_dagster.engine.verify.manifest_reader import parse_manifest
from rivet_dagster.engine.verify.reconcile import ReconcileDepth, ReconcileReport
from rivet_dagster.engine.verify.repair import plan_repair
from rivet_dagster.engine.verify.report import ValidationReport
from tests.services.postgres import TestDatabase


@dataclass(frozen=True, slots=True)
class Ran:
    plan: RunPlan
    events: tuple[RunEvent, ...]
    outcome: RunOutcome

    @property
    def units(self) -> list[UnitCommitted]:
        """In plan order."""
        found = [e for e in self.events if isinstance(e, UnitCommitted)]
        return sorted(found, key=lambda e: e.unit.index)

    @property
    def notes(self) -> str:
        return "\n".join(e.text for e in self.events if isinstance(e, RunNote))


@dataclass(slots=True)
class Project:
    """The export ``o`` of table ``t``; ``keys`` are its keys of rivet.yaml.

    url: the source of the config, by default a superuser's.
    """

    folder: Path
    db: TestDatabase
    keys: dict[str, Any] = field(default_factory=dict)
    url: str = ""

    @property
    def prefix(self) -> Path:
        return self.folder / "out"

    @property
    def parts(self) -> list[Path]:
        """Data files in the prefix and in the folders of ``partition_by``, by name."""
        files = (*self.prefix.glob("*"), *self.prefix.glob("*=*/*"))
        return sorted(p for p in files if p.suffix in (".parquet", ".csv"))

    def engine(self) -> Engine:
        where = self.prefix / "{partition}" if "partition_by" in self.keys else self.prefix
        export = {
            "name": "o",
            "format": "parquet",
            "destination": {"type": "local", "path": str(where)},
            **({} if {"query", "query_file"} & self.keys.keys() else {"table": "t"}),
            **self.keys,
        }
        source = {"type": "postgres", "url": self.url or self.db.url, "tls": {"mode": "disable"}}
        path = self.folder / "rivet.yaml"
        path.write_text(yaml.safe_dump({"source": source, "exports": [export]}))
        return Engine(load_config(path), state_url="")

    def engine_with(self, **keys: Any) -> Engine:
        self.keys |= keys
        return self.engine()

    def run(self, between: Callable[[], None] | None = None, **keys: Any) -> Ran:
        """One run. ``between``: called when the units are planned and none is read."""
        with self.engine_with(**keys) as engine, engine.session("o", holder="test", lock_wait=0) as session:
            plan = session.plan()
            if between is not None:
                between()
            events = tuple(session.execute())
            return Ran(plan, events, session.finalize())

    def killed_run(self, point: str, verb: str = "run", *options: str) -> None:
        """A run (or another command) in a process of its own that is killed at the fault point ``point``."""
        self.engine().close()
        command = [
            sys.executable,
            "-m",
            "rivet_dagster.cli",
            verb,
            *options,
            "-c",
            str(self.folder / "rivet.yaml"),
            "-e",
            "o",
        ]
        environment = os.environ | {"RIVET_TEST_CRASH_AT": point}
        done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60)
        assert done.returncode == -signal.SIGKILL, done.stderr

    def rows(self, *columns: str) -> Counter[Any]:
        """Values of ``columns`` over all parts in the folder, with how often each was written."""
        found: Counter[Any] = Counter()
        for path in self.parts:
            with pq.ParquetFile(path) as file:
                table = file.read(list(columns)).to_pydict()
            found.update(zip(*table.values(), strict=True))
        return Counter({k[0]: n for k, n in found.items()}) if len(columns) == 1 else found

    def manifest(self) -> Manifest:
        data = LocalStore(self.prefix).read_bytes("manifest.json", MAX_MANIFEST_BYTES)
        assert data is not None
        return parse_manifest(data)

    def reconcile(self) -> str:
        return self.reconciled().status

    def reconciled(self, depth: ReconcileDepth = "sums") -> ReconcileReport:
        with self.engine() as engine:
            return engine.reconcile("o", depth=depth)

    def validate(self) -> ValidationReport:
        with self.engine() as engine:
            return engine.validate("o")

    def repair(self, depth: ReconcileDepth = "sums") -> Ran:
        """Run again what a reconcile finds wrong, as the repair job does."""
        with self.engine() as engine:
            wanted = plan_repair(engine.reconcile("o", depth=depth))
            assert wanted.actions or wanted.fresh_run
            only = None if wanted.fresh_run else wanted.partitions
            with engine.session("o", holder="repair", lock_wait=0) as session:
                plan = session.plan(only=only, repair=True)
                events = tuple(session.execute())
                return Ran(plan, events, session.finalize())


@contextlib.contextmanager
def background(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """``work`` in a thread for as long as the block lasts; what it raises is raised at the end."""
    stop = threading.Event()
    errors: list[Exception] = []

    def run() -> None:
        try:
            work(stop)
        except (psycopg.Error, AssertionError) as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
    if errors:
        raise errors[0]
