"""Exports that are killed, and what a reader of their folder may see at each instant."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import xxhash
import yaml

from rivet_dagster.config import load_config
from rivet_dagster.engine.run.engine import Engine
from tests.crash.mirror import Mirror
from tests.services import hosts
from tests.services.postgres import TestDatabase

EXPORT: Final = "orders"
WAIT_S: Final = 90.0
#: Columns as the files have them, not as the names of their folders say.
_READ: Final = "read_parquet($files, hive_partitioning=false)"
LEAVES: Final = 4
ROWS: Final = 4800
COLUMNS: Final = ("id", "slot", "amount", "made", "paid", "note")

#: Per-unit points are reached once a part or a unit; the others once a run.
_FAULTS: Final = ("RIVET_TEST_CRASH_AT", "RIVET_TEST_PAUSE_AT")


@dataclass(frozen=True, slots=True)
class Mode:
    """How an export reads. ``export``: its keys of rivet.yaml."""

    name: str
    export: Mapping[str, Any]

    @property
    def below(self) -> str:
        """Of the prefix, where the parts are."""
        return "{partition}" if "partition_by" in self.export else ""

    @property
    def incremental(self) -> bool:
        return bool(self.export["mode"] == "incremental")


_RANGE: Final = {"mode": "chunked", "chunk_column": "slot", "chunk_size": 25}
FULL: Final = Mode("full", {"mode": "full", "parallel": 2})
RANGE: Final = Mode("range", {**_RANGE, "chunk_checkpoint": True})
RANGE_ANEW: Final = Mode("range_anew", {**_RANGE, "parallel": 2})
KEY: Final = Mode(
    "key",
    {"mode": "chunked", "chunk_by_key": "id", "chunk_size": 1200, "chunk_checkpoint": True, "parallel": 2},
)
FOLDERS: Final = Mode(
    "folders", {"mode": "full", "partition_by": "made", "chunk_checkpoint": True, "parallel": 2}
)
FOLDERS_INCREMENTAL: Final = Mode(
    "folders_incremental", {"mode": "incremental", "cursor_column": "id", "partition_by": "made"}
)
INCREMENTAL: Final = Mode("incremental", {"mode": "incremental", "cursor_column": "id"})


def on_stores(local: Iterable[Mode | str], s3: Iterable[Mode | str]) -> pytest.MarkDecorator:
    """Runs a test with these modes, or at these points, on each kind of destination."""
    cases = [*(("local", case) for case in local), *(("s3", case) for case in s3)]
    named = [(where, case if isinstance(case, str) else case.name) for where, case in cases]
    what = "at" if isinstance(cases[0][1], str) else "mode"
    return pytest.mark.parametrize(
        ("where", what), cases, indirect=["where"], ids=["-".join(name) for name in named]
    )


#: Runs a test on each kind of destination.
ON_STORES: Final = pytest.mark.parametrize("where", ["local", "s3"], indirect=True)
MODES: Final = (FULL, RANGE, RANGE_ANEW, KEY, INCREMENTAL)


def create_table(db: TestDatabase, name: str, *, seed: int = 0, rows: int = ROWS, pad: int = 1) -> None:
    """A table of four leaves, hence several units in each mode; some rows have no range key."""
    step = ROWS // LEAVES
    bounds = [("MINVALUE", step), *((step * i, step * (i + 1)) for i in range(1, LEAVES - 1))]
    leaves = [*bounds, (step * (LEAVES - 1), "MAXVALUE")]
    db.execute(
        f"CREATE TABLE {name} (id bigint PRIMARY KEY, slot int, amount numeric(12,2), made timestamp,"
        f" paid boolean, note text) PARTITION BY RANGE (id)",
        *(
            f"CREATE TABLE {name}_{i} PARTITION OF {name} FOR VALUES FROM ({low}) TO ({high})"
            for i, (low, high) in enumerate(leaves)
        ),
    )
    add_rows(db, name, 0, rows, seed=seed, pad=pad)
    db.execute(f"ANALYZE {name}")


def add_rows(db: TestDatabase, table: str, first: int, count: int, *, seed: int = 0, pad: int = 1) -> None:
    """Rows ``first`` to ``first + count - 1``. pad: their length, in steps of about 100 bytes."""
    db.execute(
        f"INSERT INTO {table} SELECT n, CASE WHEN n % 40 > 0 THEN (n * 7 + {seed}) % 100 END,"
        f" ((n * 37 + {seed}) % 90001) / 100.0, timestamp '2024-01-01' + n * interval '137 s',"
        f" CASE n % 3 WHEN 0 THEN true WHEN 1 THEN false END,"
        f" repeat(md5(n::text || '{seed}') || md5({seed}::text || n) || md5(n || 'x{seed}'), {pad})"
        f" FROM generate_series({first}, {first + count - 1}) n"
    )


def table_rows(db: TestDatabase, table: str) -> pa.Table:
    """The rows as the server's own text."""
    select = ", ".join(f"{c}::text" for c in COLUMNS)
    with psycopg.connect(db.dsn) as connection:
        found = connection.execute(f"SELECT {select} FROM {table}".encode()).fetchall()
    columns = list(zip(*found, strict=True)) if found else [()] * len(COLUMNS)
    return pa.table([pa.array(c, pa.string()) for c in columns], names=list(COLUMNS))


@dataclass(slots=True)
class Project:
    """One export, its config, state and destination folder; ``table`` is what it reads now."""

    folder: Path
    db: TestDatabase
    mode: Mode
    table: str = "orders"
    extra: dict[str, Any] = field(default_factory=dict)
    state_url: str | None = None
    bucket: Mirror | None = None
    source_options: str = ""

    def __post_init__(self) -> None:
        self.write()

    @property
    def prefix(self) -> Path:
        """What the prefix holds now: its folder, or a copy of the bucket's."""
        return self.folder / "out" if self.bucket is None else self.bucket.refreshed()

    @property
    def config(self) -> Path:
        return self.folder / "rivet.yaml"

    def write(self) -> None:
        export = {
            "name": EXPORT,
            "table": f"public.{self.table}",
            "format": "parquet",
            "parquet": {"row_group_rows": 250},
            "max_file_size": "48KB",
            "destination": self._destination(),
            **self.mode.export,
            **self.extra,
        }
        url = f"{self.db.url}?{self.source_options}" if self.source_options else self.db.url
        source = {"type": "postgres", "url": url, "tls": {"mode": "disable"}}
        self.config.write_text(yaml.safe_dump({"source": source, "exports": [export]}))

    def _destination(self) -> dict[str, Any]:
        if self.bucket is None:
            return {"type": "local", "path": str(self.folder / "out" / self.mode.below)}
        return self.bucket.destination(self.mode.below)

    def lose(self, part: Path) -> None:
        """What somebody else's clean-up does to one of the files in ``prefix``."""
        if self.bucket is None:
            part.unlink()
        else:
            self.bucket.lose(part)

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k not in _FAULTS and not k.startswith("RIVET_")}
        if self.state_url is not None:
            kept["RIVET_STATE_URL"] = self.state_url
        return kept | more

    def run_here(self) -> str:
        """A complete run in this process; its run id."""
        with (
            Engine(load_config(self.config), state_url=self.state_url or "") as engine,
            engine.session(EXPORT, holder="test") as session,
        ):
            session.plan()
            for _ in session.execute():
                pass
            return session.finalize().run_id

    def start(self, *arguments: str, **environment: str) -> Child:
        """``rivet-dagster run``, in a process forked from one that has imported everything."""
        return Child(self, arguments, environment)

    def run(self, *arguments: str, **environment: str) -> Child:
        child = self.start(*arguments, **environment)
        child.wait()
        return child

    def succeed(self) -> Child:
        child = self.run()
        assert child.code == 0, child.log
        return child

    def crash(self, at: str) -> Child:
        child = self.run(RIVET_TEST_CRASH_AT=at)
        assert child.code == -signal.SIGKILL, f"not killed at {at}: {child.code}\n{child.log}"
        return child

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """From the state, past our own code."""
        if self.state_url is not None:
            with psycopg.connect(self.state_url) as pg:
                return pg.execute(statement.encode()).fetchall()
        with contextlib.closing(sqlite3.connect(self.folder / "rivet_state.db")) as lite:
            return lite.execute(statement).fetchall()


def _main(arguments: list[str], environment: dict[str, str], log: str) -> None:
    """In the child: what ``python -m rivet_dagster.cli`` does."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if network := environment.pop(hosts.ENTER, None):
        hosts.enter(network)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["rivet-dagster", *arguments]
    from rivet_dagster.cli import main

    main()


_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.crash.preload"])


class Child:
    """A run of the command line in a process of its own."""

    def __init__(
        self, project: Project, arguments: tuple[str, ...], environment: dict[str, str], *, verb: str = "run"
    ) -> None:
        self._log = project.folder / f"run-{time.monotonic_ns()}.log"
        command = [verb, "-c", str(project.config), "-e", EXPORT, *arguments]
        self.process: ForkServerProcess = _FORKS.Process(
            target=_main, args=(command, project.environment(**environment), str(self._log))
        )
        self.process.start()
        assert self.process.pid is not None
        self.pid: int = self.process.pid

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    @property
    def code(self) -> int | None:
        """Exit code, or minus the signal that ended it."""
        return self.process.exitcode

    def wait(self, seconds: float = WAIT_S) -> int:
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.kill()
            raise AssertionError(f"still running after {seconds} s:\n{self.log}")
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def await_stopped(self, seconds: float = WAIT_S) -> None:
        """Until it has stopped itself (RIVET_TEST_PAUSE_AT)."""
        deadline = time.monotonic() + seconds
        while process_state(self.pid) != "T":
            if self.process.exitcode is not None or time.monotonic() > deadline:
                raise AssertionError(f"did not stop itself, exit code {self.process.exitcode}:\n{self.log}")
            time.sleep(0.02)

    def await_text(self, text: str, seconds: float = WAIT_S) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.log:
            if self.process.exitcode is not None or time.monotonic() > deadline:
                raise AssertionError(
                    f"no {text!r} in the log, exit code {self.process.exitcode}:\n{self.log}"
                )
            time.sleep(0.02)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


def process_state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def real_command(project: Project, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program as a person starts it."""
    return subprocess.run(
        [sys.executable, "-m", "rivet_dagster.cli", "run", "-c", str(project.config), "-e", EXPORT],
        env=project.environment(**environment),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


class Reader:
    """Somebody else's reader: knows the manifest's format and the marker, and reads with DuckDB.

    of: a folder, or the project whose prefix is looked at anew each time.
    """

    def __init__(self, of: Path | Project) -> None:
        self._of = of

    @property
    def prefix(self) -> Path:
        return self._of if isinstance(self._of, Path) else self._of.prefix

    def now(self) -> Reader:
        """Of what is there at this moment."""
        return Reader(self.prefix)

    @property
    def marked(self) -> bool:
        return (self.prefix / "_SUCCESS").exists()

    @property
    def files(self) -> list[Path]:
        prefix = self.prefix
        return sorted([*prefix.glob("*.parquet"), *prefix.glob("*=*/*.parquet")])

    def day(self, rows: pa.Table) -> pa.Table:
        """Those of ``rows`` that belong into the folder of a day."""
        return rows.filter(pc.starts_with(rows["made"], self.prefix.name.partition("=")[2]))

    @property
    def folders(self) -> list[Reader]:
        """Of the partitions; each is read like a prefix."""
        return [Reader(path) for path in sorted(self.prefix.glob("*=*"))]

    def manifest(self, name: str = "manifest.json") -> dict[str, Any] | None:
        """None when there is none. Fails when a part is missing, of another size or not readable."""
        prefix = self.prefix
        path = prefix / name
        if not path.exists():
            return None
        found: dict[str, Any] = json.loads(path.read_bytes())
        rows = 0
        for part in found["parts"]:
            file = prefix / part["path"]
            assert file.exists(), f"{name} names {part['path']}, which is not there"
            assert file.stat().st_size == part["size_bytes"], f"size of {part['path']} in {name}"
            rows += part["rows"]
        assert rows == found["row_count"]
        return found

    def parts(self, manifest: Mapping[str, Any]) -> list[Path]:
        return [self.prefix / part["path"] for part in manifest["parts"]]

    def run_parts(self) -> list[Path]:
        """The parts that the manifests of all completed runs name."""
        found = []
        for path in sorted(self.prefix.glob("manifest-*.json")):
            manifest = self.manifest(path.name)
            assert manifest is not None
            found.extend(self.parts(manifest))
        return found

    def check_instant(self, *allowed: pa.Table) -> None:
        """No reader ever sees a half file, a missing part, or a marker over anything but exact rows."""
        now = self.now()
        manifest = now.manifest()
        for file in now.files:
            assert count([file]) >= 0
        if not now.marked:
            return
        assert manifest is not None, "a marker without a manifest"
        now.check_marker()
        assert any(difference(rows, now.files) is None for rows in allowed), "a marker over an inexact folder"

    def check_marker(self) -> None:
        digest = xxhash.xxh3_64((self.prefix / "manifest.json").read_bytes()).hexdigest()
        assert (self.prefix / "_SUCCESS").read_text() == f"xxh3:{digest}\n"

    def check_exact(self, rows: pa.Table, *, union: bool) -> None:
        """Each row once for a reader of the manifests (``union``: of all runs), and of the folder."""
        now = self.now()
        assert now.marked, "no marker after a complete run"
        now.check_marker()
        manifest = now.manifest()
        assert manifest is not None
        assert manifest["status"] == "success"
        parts = now.run_parts() if union else now.parts(manifest)
        assert difference(rows, parts) is None, f"manifest: {difference(rows, parts)}"
        assert difference(rows, now.files) is None, f"folder: {difference(rows, now.files)}"
        own = now.prefix / f"manifest-{manifest['run_id']}.json"
        assert own.read_bytes() == (now.prefix / "manifest.json").read_bytes()
        left = [p.name for p in now.prefix.iterdir() if p.name.startswith(".") or p.name.endswith(".tmp")]
        assert left == [], "staged files are left"

    def picture(self) -> dict[str, str]:
        """Every visible file and what is in it."""
        prefix = self.prefix
        return {
            str(path.relative_to(prefix)): xxhash.xxh3_64(path.read_bytes()).hexdigest()
            for path in sorted(prefix.rglob("*"))
            if path.is_file()
        }


def count(files: list[Path]) -> int:
    """Rows of Parquet files; fails on a file that is none."""
    row = duckdb.sql(
        "SELECT count(*) FROM read_parquet($files, hive_partitioning=false)", params={"files": _names(files)}
    ).fetchone()
    assert row is not None
    return int(row[0])


def difference(rows: pa.Table, files: list[Path]) -> str | None:
    """None when ``files`` hold exactly ``rows``, as a multiset; else what differs."""
    with duckdb.connect() as connection:
        connection.register("want", rows)
        if not files:
            return None if rows.num_rows == 0 else "no files"
        columns = ", ".join(f"{c}::varchar AS {c}" for c in COLUMNS)
        connection.execute(
            f"CREATE TABLE have AS SELECT {columns} FROM read_parquet($files, hive_partitioning=false)",
            {"files": _names(files)},
        )
        counts = [
            connection.execute(f"SELECT count(*), min(id), max(id) FROM ({query})").fetchone()
            for query in (
                "FROM want",
                "FROM have",
                "(FROM want) EXCEPT ALL (FROM have)",
                "(FROM have) EXCEPT ALL (FROM want)",
            )
        ]
    want, have, missing, extra = (row or (0,) for row in counts)
    if want[0] == have[0] and not missing[0] and not extra[0]:
        return None
    return f"{want[0]} rows wanted, {have[0]} there; missing {missing}, too many {extra}"


def _names(files: list[Path]) -> list[str]:
    return [str(file) for file in files]


@contextlib.contextmanager
def stopped(project: Project, at: str, **environment: str) -> Iterator[Child]:
    """A run that has stopped itself at ``at``, as a machine that hangs; killed at the end of the block."""
    child = project.start(RIVET_TEST_PAUSE_AT=at, **environment)
    try:
        child.await_stopped()
        yield child
    finally:
        child.kill()
