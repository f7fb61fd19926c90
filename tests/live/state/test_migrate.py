from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

from rivet_dagster.engine.errors import EnvironmentFault, RefusalError
from rivet_dagster.engine.state.alchemy import alchemy
from rivet_dagster.engine.state.database import Database
from rivet_dagster.engine.state.location import StateLocation
from rivet_dagster.engine.state.migrate import REVISIONS, SCRIPTS, VERSION_TABLE, Ladder, migrate
from rivet_dagster.engine.state.schema import metadata
from rivet_dagster.engine.state.store import StateStore
from tests.live.state.helpers import KEY, begin, open_only, spawn
from tests.services.postgres import TestDatabase

NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "r9999"
down_revision = {before!r}
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("export_state", sa.Column("note", sa.Text()))
{more}
"""


@pytest.fixture
def database(location: StateLocation) -> Any:
    opened = Database(location)
    yield opened
    opened.close()


def longer_ladder(tmp_path: Path, more: str = "") -> Ladder:
    """Our ladder with one more revision, as a later version has it."""
    scripts = tmp_path / "scripts"
    shutil.copytree(SCRIPTS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    (scripts / "versions" / "r9999_next.py").write_text(NEXT.format(before=REVISIONS[-1], more=more))
    return Ladder((*REVISIONS, "r9999"), scripts)


def test_empty_state_opened_by_eight_processes_at_once(location: StateLocation) -> None:
    processes = [spawn(open_only, location) for _ in range(8)]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 8
    with StateStore.open(location) as store:
        begin(store)


def test_migrations_make_what_the_schema_says(database: Database) -> None:
    migrate(database)
    with database.single() as lent, alchemy(lent) as connection:
        options = {"version_table": VERSION_TABLE, "compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []


def test_tables_columns_and_indexes_are_those_of_the_schema(database: Database) -> None:
    """Alembic's comparison leaves partial indexes and keys out; this names them, for both backends."""
    migrate(database)
    with database.single() as lent, alchemy(lent) as connection:
        found = inspect(connection)
        assert set(found.get_table_names()) == {*metadata.tables, VERSION_TABLE}
        for name, table in metadata.tables.items():
            columns = {c["name"]: c["nullable"] for c in found.get_columns(name)}
            assert columns == {c.name: bool(c.nullable) for c in table.columns}
            assert found.get_pk_constraint(name)["constrained_columns"] == [c.name for c in table.primary_key]
            assert {i["name"] for i in found.get_indexes(name) if not i.get("duplicates_constraint")} == {
                index.name for index in table.indexes
            }
            where = f"{connection.dialect.name}_where"
            partial = {i["name"] for i in found.get_indexes(name) if where in i.get("dialect_options", {})}
            declared = (
                i for i in table.indexes if i.dialect_options[connection.dialect.name]["where"] is not None
            )
            assert partial == {index.name for index in declared}
            foreign = {tuple(k["constrained_columns"]) for k in found.get_foreign_keys(name)}
            assert foreign == {tuple(k.column_keys) for k in table.foreign_key_constraints}


def test_revisions_are_those_of_the_scripts() -> None:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.set_main_option("path_separator", "os")
    walked = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert tuple(reversed(walked)) == REVISIONS


def test_alembic_stays_out_of_a_state_that_is_up_to_date(
    location: StateLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    StateStore.open(location).close()
    monkeypatch.setitem(__import__("sys").modules, "alembic", None)
    StateStore.open(location).close()


def test_newer_schema_is_refused_and_left_alone(database: Database, tmp_path: Path) -> None:
    migrate(database, longer_ladder(tmp_path))
    with pytest.raises(RefusalError) as caught:
        migrate(database)
    assert caught.value.code == "RIVET_STATE_SCHEMA_NEWER"
    with database.single() as connection:
        assert connection.scalar(f"SELECT version_num FROM {VERSION_TABLE}") == "r9999"


def test_older_state_is_backed_up_then_migrated(fresh: StateStore, tmp_path: Path) -> None:
    begin(fresh, 5)
    migrate(fresh._db, longer_ladder(tmp_path))
    with fresh._db.single() as lent, alchemy(lent) as connection:
        assert "note" in {c["name"] for c in inspect(connection).get_columns("export_state")}
    if fresh.location.path is not None:
        (backup,) = fresh.location.path.parent.glob(f"rivet_state.db.{REVISIONS[-1]}.*.bak")
        with sqlite3.connect(backup) as copy:
            assert copy.execute("SELECT count(*) FROM chunk_task").fetchone() == (5,)
            assert copy.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone() == (REVISIONS[-1],)
        copy.close()
        assert not list(fresh.location.path.parent.glob(".*tmp*"))
    else:
        with fresh._db.single() as lent, alchemy(lent) as connection:
            schema = f"rivet_state_backup_{REVISIONS[-1]}"
            assert lent.scalar(f"SELECT count(*) FROM {schema}.chunk_task") == 5
            names = set(inspect(connection).get_table_names(schema=schema))
            assert names == {*metadata.tables, VERSION_TABLE}


def test_second_backup_of_a_revision_keeps_the_first(fresh: StateStore, tmp_path: Path) -> None:
    ladder = longer_ladder(tmp_path)
    for _ in range(2):
        migrate(fresh._db, ladder)
        with fresh._db.transaction() as connection:  # as somebody who takes the migration back
            connection.execute("ALTER TABLE export_state DROP COLUMN note")
            connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '{REVISIONS[-1]}'")
    if fresh.location.path is not None:
        assert len(list(fresh.location.path.parent.glob("*.bak"))) == 2
    else:
        with fresh._db.single() as lent, alchemy(lent) as connection:
            schemas = inspect(connection).get_schema_names()
        assert len([name for name in schemas if name.startswith("rivet_state_backup_")]) == 2


def test_failed_migration_changes_nothing(fresh: StateStore, tmp_path: Path) -> None:
    begin(fresh, 2)
    ladder = longer_ladder(tmp_path, more='    op.execute("SELECT 1 FROM no_such_table")')
    with pytest.raises(Exception, match="RIVET_INTERNAL"):
        migrate(fresh._db, ladder)
    migrate(fresh._db)
    with fresh._db.single() as lent, alchemy(lent) as connection:
        assert "note" not in {c["name"] for c in inspect(connection).get_columns("export_state")}
    assert len(fresh.units("r1")) == 2


def test_no_backup_no_migration_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with StateStore.open(StateLocation.parse(None, tmp_path / "state")) as store:
        ladder = longer_ladder(tmp_path)
        monkeypatch.setattr("rivet_dagster.engine.state.migrate.os.fsync", no_room)
        with pytest.raises(RefusalError) as caught:
            migrate(store._db, ladder)
        assert caught.value.code == "RIVET_STATE_BACKUP_FAILED"
        assert [p.name for p in (tmp_path / "state").iterdir() if "bak" in p.name] == []
        migrate(store._db)  # still ours, still at our head


def test_no_backup_no_migration_postgres(db: TestDatabase, tmp_path: Path) -> None:
    db.execute(
        "CREATE ROLE noschemas LOGIN PASSWORD 'noschemas-pw'",
        "GRANT CREATE, USAGE ON SCHEMA public TO noschemas",  # but not CREATE on the database
    )
    try:
        url = db.url.replace(db.url.split("://")[1].split("@")[0], "noschemas:noschemas-pw")
        with StateStore.open(StateLocation.parse(url, tmp_path)) as store:
            with pytest.raises(RefusalError) as caught:
                migrate(store._db, longer_ladder(tmp_path))
            assert caught.value.code == "RIVET_STATE_BACKUP_FAILED"
            migrate(store._db)
    finally:
        db.execute("DROP OWNED BY noschemas CASCADE", "DROP ROLE noschemas")


def test_tables_of_other_software_are_refused(database: Database) -> None:
    with database.transaction() as connection:
        connection.execute("CREATE TABLE file_log (mine text)")
    with pytest.raises(RefusalError) as caught:
        migrate(database)
    assert caught.value.code == "RIVET_STATE_FOREIGN"


def test_waiting_for_a_migration_ends(
    db: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rivet_dagster.engine.state import migrate as module

    monkeypatch.setattr(module, "_LOCK_WAIT", "200ms")
    with db.connect() as other:
        other.execute(f"SELECT pg_advisory_lock({module._ADVISORY_KEY})")
        with pytest.raises(EnvironmentFault) as caught:
            StateStore.open(StateLocation.parse(db.url, tmp_path))
    assert caught.value.code == "RIVET_STATE_MIGRATION_LOCKED"


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda p: p.parent.write_text("a file where a directory should be"), "RIVET_STATE_NOT_WRITABLE"),
        (lambda p: p.mkdir(parents=True), "RIVET_STATE_NOT_WRITABLE"),
        (lambda p: (p.parent.mkdir(), p.write_bytes(b"no database at all" * 999)), "RIVET_STATE_CORRUPT"),
    ],
    ids=["parent is a file", "is a directory", "not a database"],
)
def test_unusable_files(tmp_path: Path, make: Callable[[Path], object], code: str) -> None:
    location = StateLocation.parse(f"sqlite:{tmp_path}/state", tmp_path)
    assert location.path is not None
    make(location.path)
    with pytest.raises(EnvironmentFault) as caught:
        StateStore.open(location)
    assert caught.value.code == code


def test_postgres_without_rights(db: TestDatabase, tmp_path: Path) -> None:
    db.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC", "CREATE ROLE reader LOGIN PASSWORD 'reader-pw'")
    try:
        url = db.url.replace(db.url.split("://")[1].split("@")[0], "reader:reader-pw")
        with pytest.raises(EnvironmentFault) as caught:
            StateStore.open(StateLocation.parse(url, tmp_path))
        assert (caught.value.code, caught.value.sqlstate) == ("RIVET_STATE_NOT_WRITABLE", "42501")
    finally:
        db.execute("DROP OWNED BY reader CASCADE", "DROP ROLE reader")


def test_declared_directory_of_another_source_is_refused(tmp_path: Path) -> None:
    mine, other = "postgres://a:5432/shop", "postgres://b:5432/shop"
    declared = StateLocation.parse(f"sqlite:{tmp_path}", tmp_path)
    with StateStore.open(declared, source_identity=mine) as store:
        begin(store, source_identity=mine)
    StateStore.open(declared, source_identity=mine).close()
    with pytest.raises(RefusalError) as caught:
        StateStore.open(declared, source_identity=other)
    assert caught.value.code == "RIVET_STATE_FOREIGN"
    # the default file serves every code location of an instance
    with StateStore.open(StateLocation.parse(None, tmp_path), source_identity=other) as store:
        assert store.holder(KEY) is not None
