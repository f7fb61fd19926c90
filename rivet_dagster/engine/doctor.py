"""Looks at everything that a run needs, and says of each whether it is there and what to do if not.

Nothing is changed: no state is made or migrated, no folder is left behind.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct

from rivet_dagster.engine.destinations.local import destination_faults
from rivet_dagster.engine.errors import (
    REGISTRY,
    ConfigError,
    EnvironmentFault,
    RivetError,
    error_object,
)
from rivet_dagster.engine.names import NameMatcher
from rivet_dagster.engine.plan.sizing import GIB, MIB, shown_bytes

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig, RivetConfig
    from rivet_dagster.engine.run.engine import Engine
    from rivet_dagster.engine.sources.base import SourceFacts

Status = Literal["ok", "warn", "fail"]

_PACKAGES: Final = ("dagster", "pyarrow", "psycopg", "sqlalchemy", "alembic", "pydantic", "click")
_CONNECTIONS: Final = 4
_EXPIRES_SOON: Final = timedelta(minutes=60)
_SKEW_S: Final = 2.0
_LOW_SPACE: Final = GIB
_NO_SPACE: Final = 64 * MIB


class Check(Struct, frozen=True):
    """name: what was looked at. fix: what to do, None when it is well. error: of a failed check."""

    name: str
    status: Status
    detail: str
    fix: str | None = None
    error: RivetError | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ok": self.status != "fail",
            "status": self.status,
            "detail": self.detail,
            "hint": self.fix,
            "code": self.error and self.error.code,
            "error": self.error and error_object(self.error),
        }


def failed(name: str, error: RivetError) -> Check:
    own = error.fix if isinstance(error, ConfigError) else None
    detail = str(error).removesuffix(f" Fix: {own}")
    return Check(name, "fail", detail, own or REGISTRY[error.code].action, error)


def environment() -> Iterator[Check]:
    """The interpreter, the packages, the kernel, Dagster's home."""
    yield Check("python", "ok", f"{sys.version.split()[0]} at {sys.executable}")
    yield _packages()
    try:
        from rivet_dagster.engine.sources.postgres import kernel

        kernel.load()
        kernel.libpq()
        yield Check("kernel", "ok", "the native decoder is loaded")
    except RivetError as error:
        yield failed("kernel", error)
    yield _dagster_home()


def _packages() -> Check:
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    listed = ", ".join(f"{name} {version}" for name, version in found.items())
    if missing := [name for name in _PACKAGES if name not in found]:
        fault = EnvironmentFault(f"missing: {', '.join(missing)}", code="RIVET_PACKAGE_MISSING")
        return failed("packages", fault)
    return Check("packages", "ok", listed)


def _dagster_home() -> Check:
    home = os.environ.get("DAGSTER_HOME")
    if not home:
        return Check(
            "DAGSTER_HOME", "warn", "not set: Dagster forgets its runs, and the reaper finds none",
            "set it to a folder with a dagster.yaml; `rivet-dagster run` does without",
        )  # fmt: skip
    if not Path(home).is_absolute() or not Path(home).is_dir():
        return Check(
            "DAGSTER_HOME",
            "warn",
            f"{home} is no absolute path of a folder",
            "make the folder, or correct it",
        )
    return Check("DAGSTER_HOME", "ok", home)


def config(load: Callable[[], RivetConfig]) -> tuple[Check, RivetConfig | None]:
    """Whether the config loads; every problem of it is named."""
    try:
        loaded = load()
    except ConfigError as error:
        first = failed("config", error)
        more = "".join(f"; {other.message}" for other in error.others)
        return Check("config", "fail", first.detail + more, first.fix, error), None
    except RivetError as error:
        return failed("config", error), None
    return Check("config", "ok", f"{loaded.path}, {len(loaded.exports)} exports"), loaded


def source(engine: Engine, *, clock: Callable[[], float] = time.time) -> Iterator[Check]:
    """The server: reached, its version and role, connections left, and its clock against ours."""
    from rivet_dagster.engine.sources.postgres import catalog
    from rivet_dagster.engine.sources.postgres.connect import PostgresConnector, SessionLimits, close

    try:
        resolved = engine.config.source.resolve()
        connector = PostgresConnector(resolved.conninfo_kwargs(), SessionLimits(10_000, 5_000))
        connection = connector.connect()
    except RivetError as error:
        yield failed("source", error)
        return
    try:
        with connector.transaction(connection, search_path=None):
            server = catalog.server_facts(connection)
            before = clock()
            row = connection.execute(_SERVER).fetchone()
            after = clock()
        with connector.transaction(connection, search_path=None):
            again = connection.execute("SELECT pg_backend_pid()").fetchone()
    finally:
        close(connection)
    assert row is not None
    assert again is not None
    version = server.version
    detail = f"{resolved.identity()}, PostgreSQL {version // 10_000}.{version % 10_000}, role {server.user}"
    if version < 120_000:
        fault = EnvironmentFault(f"{detail} is too old", code="RIVET_SOURCE_VERSION_UNSUPPORTED")
        yield failed("source", fault)
    elif server.in_recovery:
        yield Check(
            "source", "warn", f"{detail}, a standby",
            "raise max_standby_streaming_delay there, or set hot_standby_feedback, for long reads",
        )  # fmt: skip
    else:
        yield Check("source", "ok", detail)
    if row[0] != again[0]:
        yield Check(
            "pooler", "warn", "each transaction gets another server process: a pooler stands between",
            "connect to the server itself for exports under one snapshot",
        )  # fmt: skip
    yield _connections(engine.config, int(row[1]))
    yield _skew(float(row[2]), before, after)


_SERVER: Final = """
SELECT pg_backend_pid(), current_setting('max_connections')::int
  - current_setting('superuser_reserved_connections')::int
  - (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::int,
  extract(epoch FROM clock_timestamp())::float8
"""


def _connections(config: RivetConfig, free: int) -> Check:
    wanted = max(export.parallel for export in config.exports) + 1
    detail = f"{free} are free, the largest export takes {wanted}"
    if free < wanted:
        return Check("connections", "warn", detail, "lower `parallel`, or raise max_connections")
    return Check("connections", "ok", detail)


def _skew(server: float, before: float, after: float) -> Check:
    """The server's answer was made between the two readings of our clock."""
    off = max(before - server, server - after, 0.0)
    if off > _SKEW_S:
        return Check(
            "clock", "warn", f"the source's clock is {off:.0f} s off this machine's",
            "synchronize both (NTP); days, `settle` and `late_rows` go by the source's clock",
        )  # fmt: skip
    return Check("clock", "ok", f"within {max(off, after - before):.1f} s of the source's")


def exports(engine: Engine) -> Iterator[tuple[Check, SourceFacts | None]]:
    """Each export's table or query: found, readable in every column and row, and of known types.

    A few connections at a time: with many exports most of the time is spent on connecting.
    """
    with ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="doctor") as pool:
        yield from pool.map(lambda export: _export(engine, export), engine.config.exports)


def _export(engine: Engine, export: ExportConfig) -> tuple[Check, SourceFacts | None]:
    name = f"export {export.name}"
    try:
        with engine.source(export).planner(snapshot=False) as planner:
            facts = planner.facts
    except RivetError as error:
        return failed(name, error), None
    what = facts.stream if facts.table else "the query"
    if facts.table and not facts.analysed:
        return Check(name, "warn", f"{what} was never analysed", f"run ANALYZE {what}"), facts
    rows = f", about {facts.est_rows} rows" if facts.est_rows else ""
    return Check(name, "ok", f"{what} can be read{rows}, {len(facts.columns)} columns"), facts


def destinations(engine: Engine, size: int) -> Iterator[Check]:
    """The prefixes can be written, and the disks below have room. size: bytes of the tables."""
    disks: dict[int, Path] = {}
    written = 0
    for export in engine.config.exports:
        try:
            if export.destination.type == "local":
                standing = _probe(Path(engine.prefix(export)))
                disks.setdefault(standing.stat().st_dev, standing)
            elif export.destination.type != "stdout":
                yield from _probe_objects(export, engine.prefix(export))
        except RivetError as error:
            yield failed(f"destination {export.name}", error)
            continue
        written += 1
    if written:
        yield Check("destination", "ok", f"{written} prefixes can be written")
    for place in disks.values():
        yield _space(place, size)


def _space(place: Path, size: int) -> Check:
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    detail = f"{shown_bytes(free)} free at {place}, the tables have {shown_bytes(size)}"
    fix = "free space, or name another destination"
    if free < _NO_SPACE:
        return failed("disk", EnvironmentFault(detail, code="RIVET_DEST_FULL"))
    return Check("disk", "warn", detail, fix) if free < max(_LOW_SPACE, size) else Check("disk", "ok", detail)


def _probe(folder: Path) -> Path:
    """Write and remove a file in ``folder``, or in the folder above it that exists; that one is returned."""
    standing = folder
    while not standing.exists() and standing != standing.parent:
        standing = standing.parent
    with destination_faults(folder), tempfile.TemporaryFile(dir=standing):
        return standing


def _probe_objects(export: ExportConfig, prefix: str) -> Iterator[Check]:
    """Write, read and remove an object of the prefix; say what will not last."""
    from rivet_dagster.engine.destinations.place import open_objects

    name = f"destination {export.name}"
    with contextlib.closing(open_objects(export.destination, prefix)) as store:
        store.probe()
        begun = len(store.staged(NameMatcher(export.name)))
        left = None if store.expires is None else store.expires - datetime.now(UTC)
    if begun:
        detail = f"{begun} uploads are unfinished: of a run under way, or of one that was killed"
        yield Check(name, "warn", detail, "nothing: the next run aborts them")
    if left is not None and left < _EXPIRES_SOON:
        detail = f"the token ends in {max(0, int(left.total_seconds() // 60))} minutes"
        yield Check(name, "warn", detail, "give the process a token that outlives its runs")


def state(engine: Engine) -> Check:
    """The state can be reached and written, and how its schema stands to this version's."""
    from rivet_dagster.engine.state.database import Database
    from rivet_dagster.engine.state.migrate import standing

    try:
        location = engine.state_location
        if location.path is not None and not location.path.exists():
            _probe(location.path.parent)
            return Check("state", "ok", f"{location.display} is made by the first run")
        if location.path is not None and not os.access(location.path, os.W_OK):
            raise EnvironmentFault(f"{location.display} is read-only", code="RIVET_STATE_NOT_WRITABLE")
        database = Database(location)
        try:
            recorded, head = standing(database)
            if recorded is None and location.backend == "postgresql":
                _require_create(database)
        finally:
            database.close()
    except RivetError as error:
        if error.code == "RIVET_DEST_NOT_WRITABLE":
            error = EnvironmentFault(error.message, code="RIVET_STATE_NOT_WRITABLE")
        return failed("state", error)
    if recorded is None:
        return Check("state", "ok", f"{location.display} is empty; the first run makes its tables")
    if recorded != head:
        return Check(
            "state", "warn", f"{location.display} has schema {recorded}; the next run makes it {head}",
            "end runs of older versions first; a backup is made beside it",
        )  # fmt: skip
    return Check("state", "ok", f"{location.display}, schema {recorded}")


def _require_create(database: Any) -> None:
    with database.single() as connection:
        may = connection.scalar("SELECT has_schema_privilege(current_schema(), 'CREATE')")
    if not may:
        raise EnvironmentFault(
            f"{database.location.display}: the role may not create tables there",
            code="RIVET_STATE_NOT_WRITABLE",
        )


def examine(load: Callable[[], RivetConfig], new_engine: Callable[[RivetConfig], Engine]) -> Iterator[Check]:
    """Every check, in an order in which the first failure explains the later ones."""
    yield from environment()
    check, loaded = config(load)
    yield check
    if loaded is None:
        return
    with new_engine(loaded) as engine:
        reached = True
        for check in source(engine):
            reached = reached and not (check.name == "source" and check.status == "fail")
            yield check
        size = 0
        if reached:
            for check, facts in exports(engine):
                size += (facts.bytes or 0) if facts else 0
                yield check
        yield from destinations(engine, size)
        yield state(engine)
