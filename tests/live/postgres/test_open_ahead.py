"""Connections that are opened while the server answers something else."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from psycopg.conninfo import conninfo_to_dict

from rivet_dagster.engine.sources.postgres import connect
from rivet_dagster.engine.sources.postgres.connect import PostgresConnector, SessionLimits
from tests.live.postgres.rig import Rig
from tests.services.postgres import TestDatabase

OURS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@pytest.fixture
def connector(db: TestDatabase) -> Iterator[PostgresConnector]:
    found = PostgresConnector(dict(conninfo_to_dict(db.url)), SessionLimits())
    with contextlib.closing(found):
        yield found


def pid(connector: PostgresConnector) -> int:
    with contextlib.closing(connector.connect()) as connection:
        return connection.info.backend_pid


def sessions(db: TestDatabase, wanted: int) -> int:
    """How many others there are, after waiting for ``wanted``: a server ends a session in its own time."""
    until = time.monotonic() + 10
    with db.connect() as connection:
        while (row := connection.execute(OURS).fetchone()) and row[0] != wanted:
            if time.monotonic() > until:
                break
            time.sleep(0.02)
    assert row is not None
    return int(row[0])


def test_what_was_opened_ahead_is_taken_first_and_once(
    connector: PostgresConnector, db: TestDatabase
) -> None:
    connector.open_ahead(1)
    assert sessions(db, 1) == 1
    with contextlib.closing(connector.connect()) as first:
        assert sessions(db, 1) == 1
        assert pid(connector) != first.info.backend_pid


def test_one_that_waited_too_long_is_closed_and_another_opened(
    connector: PostgresConnector, db: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "_SPARE_S", 0.0)
    connector.open_ahead(1)
    with contextlib.closing(connector.connect()) as taken:
        assert sessions(db, 1) == 1
        assert taken.execute("SELECT 1").fetchone() == (1,)


def test_what_nobody_took_is_closed(connector: PostgresConnector, db: TestDatabase) -> None:
    connector.open_ahead(2)
    assert sessions(db, 2) == 2
    connector.close()
    assert sessions(db, 0) == 0
    connector.open_ahead(1)  # a thread that was late
    assert sessions(db, 0) == 0


def test_a_server_that_refuses_is_told_by_the_one_who_needs_it(db: TestDatabase) -> None:
    wrong = PostgresConnector({**conninfo_to_dict(db.url), "dbname": "nothing_here"}, SessionLimits())
    wrong.open_ahead(2)
    with pytest.raises(Exception, match="nothing_here"):
        wrong.connect()


def test_a_run_without_rows_to_read_leaves_no_session(rig: Rig) -> None:
    rig.db.execute("CREATE TABLE things (id int PRIMARY KEY)", "INSERT INTO things VALUES (1)")
    rig.export(mode="incremental", cursor_column="id")
    rig.run()
    rig.run()
    assert sessions(rig.db, 0) == 0
