"""Brings a state to the schema that this version knows; safe when many processes do it at once.

One transaction holds everything: the lock (SQLite: the write lock; PostgreSQL: an advisory lock),
the look at the recorded revision, the backup and the whole ladder. Who comes second finds it done.
Alembic and SQLAlchemy are imported only when there is something to do; they cost more than a run's whole
state work.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msgspec import Struct

from rivet_dagster.engine.errors import EnvironmentFault, RefusalError
from rivet_dagster.engine.state.connection import Connection
from rivet_dagster.engine.state.database import Database

VERSION_TABLE: Final = "rivet_schema_version"
#: Every revision that was ever released, oldest first; the last one is what ``schema.py`` describes.
REVISIONS: Final = ("r0001", "r0002")
SCRIPTS: Final = Path(__file__).parent / "migrations"

_ADVISORY_KEY: Final = 0x7269765F73746174  # 'riv_stat'
_LOCK_WAIT: Final = "60s"
_SILENCE_S: Final = 3600.0  # a statement that copies a large state says nothing before its end


class Ladder(Struct, frozen=True):
    """The revisions, oldest first, and the folder with their scripts."""

    revisions: tuple[str, ...] = REVISIONS
    scripts: Path = SCRIPTS

    @property
    def head(self) -> str:
        return self.revisions[-1]


def migrate(database: Database, ladder: Ladder | None = None) -> None:
    """Bring ``database`` to the head of ``ladder`` (ours unless given).

    Raises RefusalError (RIVET_STATE_SCHEMA_NEWER, RIVET_STATE_BACKUP_FAILED, RIVET_STATE_FOREIGN),
    EnvironmentFault (RIVET_STATE_MIGRATION_LOCKED, RIVET_STATE_NOT_WRITABLE) or TransientError.
    """
    ladder = ladder or Ladder()
    with database.single() as connection:
        if _at_head(_recorded(connection), ladder):
            return
    with database.transaction() as connection:
        _lock(connection, database)
        recorded = _recorded(connection)
        if _at_head(recorded, ladder):
            return
        if recorded is None:
            _refuse_foreign_tables(connection, database)
        else:
            _back_up(connection, database, recorded)
        _climb(connection, ladder)


def standing(database: Database, ladder: Ladder | None = None) -> tuple[str | None, str]:
    """(recorded revision or None, head), without changing anything. Raises RIVET_STATE_SCHEMA_NEWER."""
    ladder = ladder or Ladder()
    with database.single() as connection:
        recorded = _recorded(connection)
    _at_head(recorded, ladder)
    return recorded, ladder.head


def _at_head(recorded: str | None, ladder: Ladder) -> bool:
    if recorded is not None and recorded not in ladder.revisions:
        raise RefusalError(
            f"the state has schema {recorded}; this version knows {ladder.revisions[0]} to {ladder.head}",
            code="RIVET_STATE_SCHEMA_NEWER",
        )
    return recorded == ladder.head


def _recorded(connection: Connection) -> str | None:
    """The revision in the version table, None for a state without one."""
    if not _existing(connection, [VERSION_TABLE]):
        return None
    version: str | None = connection.scalar(f"SELECT version_num FROM {VERSION_TABLE}")
    return version


def _our_tables(connection: Connection) -> list[str]:
    from rivet_dagster.engine.state.schema import metadata

    return _existing(connection, [*metadata.tables, VERSION_TABLE])


def _existing(connection: Connection, names: Collection[str]) -> list[str]:
    """Those of ``names`` that exist as tables where an unqualified name would be looked up, in order."""
    query, array = connection.dialect.existing_tables, connection.dialect.array
    return sorted(str(row.name) for row in connection.rows(query, names=array(names)))


def _lock(connection: Connection, database: Database) -> None:
    if database.backend == "sqlite":
        return  # BEGIN IMMEDIATE has it
    connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_WAIT}'")
    # a long ladder must not end because its session looks idle while Alembic is imported
    connection.execute("SET LOCAL idle_in_transaction_session_timeout = '120s'")
    connection.raw.silence_s = _SILENCE_S
    try:
        connection.execute(f"SELECT pg_advisory_xact_lock({_ADVISORY_KEY})")
    except database.dialect.errors as error:
        if getattr(error, "sqlstate", None) != "55P03":
            raise
        raise EnvironmentFault(
            f"another process has been migrating the state for {_LOCK_WAIT}",
            code="RIVET_STATE_MIGRATION_LOCKED",
        ) from error


def _refuse_foreign_tables(connection: Connection, database: Database) -> None:
    foreign = _our_tables(connection)
    if foreign:
        raise RefusalError(
            f"{database.location.display} has tables of other software under our names: {', '.join(foreign)}",
            code="RIVET_STATE_FOREIGN",
        )


def _climb(connection: Connection, ladder: Ladder) -> None:
    from alembic import command
    from alembic.config import Config

    from rivet_dagster.engine.state.alchemy import alchemy

    config = Config()
    config.set_main_option("script_location", str(ladder.scripts).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    with alchemy(connection) as lent:
        config.attributes["connection"] = lent
        command.upgrade(config, ladder.head)


def _back_up(connection: Connection, database: Database, recorded: str) -> None:
    """Copy the whole state aside; without a copy there is no migration."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    with _backup_failures(database):
        if database.location.path is not None:
            _back_up_file(database.location.path, f"{recorded}.{stamp}")
        else:
            _back_up_schema(connection, recorded, stamp)


@contextlib.contextmanager
def _backup_failures(database: Database) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error, database.dialect.errors) as error:
        code = getattr(error, "sqlstate", None) or getattr(error, "sqlite_errorname", None) or ""
        reason = f"{type(error).__name__} {code}".rstrip()
        raise RefusalError(
            f"state {database.location.display}: no backup could be made ({reason})",
            code="RIVET_STATE_BACKUP_FAILED",
        ) from error


def _back_up_file(path: Path, suffix: str) -> None:
    """``<name>.<revision>.<stamp>.bak`` beside ``path``; complete or absent.

    A second connection reads what is committed, which is everything: we hold the write lock and
    have written nothing yet.
    """
    target = path.with_name(f"{path.name}.{suffix}.bak")
    staged = target.with_name(f".{target.name}.tmp")
    source = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        copy = sqlite3.connect(staged)
        try:
            source.backup(copy)
        finally:
            copy.close()
        shutil.copymode(path, staged)
        with staged.open("rb") as file:
            os.fsync(file.fileno())
        staged.replace(target)
    finally:
        source.close()
        staged.unlink(missing_ok=True)


def _back_up_schema(connection: Connection, recorded: str, stamp: str) -> None:
    """Copies of our tables in a schema of their own, in the migration's own transaction."""
    schema = f"rivet_state_backup_{recorded}"
    taken = connection.scalar("SELECT to_regnamespace(:name)", name=schema)
    if taken is not None:  # of an earlier migration that somebody took back
        schema = f"{schema}_{stamp.lower()}"
    connection.execute(f'CREATE SCHEMA "{schema}"')
    for table in _our_tables(connection):
        connection.execute(f'CREATE TABLE "{schema}"."{table}" AS TABLE "{table}"')
