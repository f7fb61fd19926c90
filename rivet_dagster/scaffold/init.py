"""``init``: connect, look, choose, write. The URL is read from the environment and never written."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rivet_dagster.config.base import Context
from rivet_dagster.config.loader import parse_config
from rivet_dagster.config.resolved import is_local
from rivet_dagster.config.source import SourceConfig
from rivet_dagster.engine.errors import EnvironmentFault, InternalError, RefusalError, RivetError, UsageError
from rivet_dagster.engine.plan.sizing import MIB
from rivet_dagster.engine.sources.postgres.connect import PostgresConnector, SessionLimits
from rivet_dagster.engine.sources.postgres.survey import Survey, survey
from rivet_dagster.scaffold.choose import LARGE_MB, choose
from rivet_dagster.scaffold.text import Entry, named, render

_LIMITS: Final = SessionLimits(statement_timeout_ms=30_000, lock_timeout_ms=5_000)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which tables are proposed: all of the user's schemas unless something is named.

    tables: ``schema.table`` or ``table``. include, exclude: shell patterns over the same two forms.
    """

    schemas: Sequence[str] = ()
    tables: Sequence[str] = ()
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()

    def __call__(self, schema: str, table: str) -> bool:
        forms = (table, f"{schema}.{table}")
        if self.schemas and schema not in self.schemas:
            return False
        if self.tables and not set(forms) & set(self.tables):
            return False
        if self.include and not _matches(forms, self.include):
            return False
        return not _matches(forms, self.exclude)


def _matches(forms: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(form, pattern) for form in forms for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Scaffold:
    """A config that loads. entries: live and commented-out exports. skipped: what has none."""

    text: str
    entries: tuple[Entry, ...]
    survey: Survey

    @property
    def modes(self) -> Counter[str]:
        """Live exports by how they are read."""
        return Counter(_mode(entry) for entry in self.entries if entry.off is None)


def _mode(entry: Entry) -> str:
    keys = entry.choice.keys
    return "chunked by key" if "chunk_by_key" in keys else str(keys["mode"])


def scaffold(
    path: Path,
    *,
    url_env: str,
    wanted: Wanted,
    tls: str | None = None,
    ca_file: str | None = None,
    file_format: str = "parquet",
    destination: str = "./out/{export}",
    large_mb: int = LARGE_MB,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Scaffold:
    """The text of a config for ``path``, which is not written. tell: see ``survey``.

    Raises as connecting does, and UsageError RIVET_INIT_NOTHING_FOUND without a readable table.
    """
    keys, source = _source(path.parent, url_env, tls, ca_file)
    connector = PostgresConnector(source.resolve().conninfo_kwargs(), _LIMITS)
    seen = survey(connector, wanted, span_from_bytes=large_mb * MIB, tell=tell)
    entries = named((found.relation, choose(found, large_mb=large_mb)) for found in seen.tables)
    if not any(entry.off is None for entry in entries):
        raise UsageError(_nothing(seen, entries), code="RIVET_INIT_NOTHING_FOUND")
    text = render(_head(seen, url_env), keys, entries, file_format=file_format, path=destination)
    try:
        parse_config(text, path)
    except RivetError as error:
        raise InternalError(f"the proposed config does not load: {error}") from error
    return Scaffold(text, tuple(entries), seen)


def write_new(path: Path, text: str) -> None:
    """Write ``text`` to a file that must not exist. Raises RIVET_INIT_FILE_EXISTS."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise exists(path) from None
    except OSError as error:
        raise EnvironmentFault(
            f"{path} cannot be written: {error.strerror}", code="RIVET_CLI_OUTPUT_UNWRITABLE"
        ) from error


def exists(path: Path) -> UsageError:
    return UsageError(f"{path} is there already and is left as it is", code="RIVET_INIT_FILE_EXISTS")


def _source(
    folder: Path, url_env: str, tls: str | None, ca_file: str | None
) -> tuple[dict[str, Any], SourceConfig]:
    """Keys of ``source:`` and the model of them; a host elsewhere gets a ``tls:`` block."""
    keys: dict[str, Any] = {"type": "postgres", "url_env": url_env}
    block = {key: value for key, value in (("mode", tls), ("ca_file", ca_file)) if value}
    if not block:
        try:
            resolved = _model(keys, folder).resolve()
            if all(is_local(host) for host, _ in resolved.hosts):
                keys["environment"] = "local"
        except RefusalError:
            block = {"mode": "verify-full"}
    if block:
        keys["tls"] = block
    return keys, _model(keys, folder)


def _model(keys: dict[str, Any], folder: Path) -> SourceConfig:
    context = Context(folder)
    source = SourceConfig.model_validate(keys, context=context)
    source._dir = folder
    for problem in source.problems(context):
        raise UsageError(f"{problem.message}. {problem.fix}", field=".".join(map(str, problem.path)))
    return source


def _head(seen: Survey, url_env: str) -> list[str]:
    server = seen.server
    lines = [
        f"Proposed by `rivet-dagster init` on {datetime.now(UTC):%Y-%m-%d} for database {server.database}",
        f"(PostgreSQL {server.version // 10_000}). Read the lines that begin with Review, then change what",
        "you like: docs/config.md has every key. `rivet-dagster check` judges the file as it stands.",
        f"The URL with its password is read from {url_env} and is nowhere in this file.",
    ]
    if seen.skipped:
        lines.append("Not proposed; export one with `query:` or `table:` if you want it:")
        lines += [f"  {one.name}: {one.reason}" for one in seen.skipped]
    return lines


def _nothing(seen: Survey, entries: Sequence[Entry]) -> str:
    where = f"database {seen.server.database} as {seen.server.user}"
    if not entries:
        return f"{where}: no table is there that matches"
    reasons = "; ".join(f"{e.relation.schema}.{e.relation.name}: {e.off}" for e in entries[:5])
    return f"{where}: none of {len(entries)} tables can be read ({reasons})"
