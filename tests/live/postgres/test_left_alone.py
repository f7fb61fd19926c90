"""A process that was stopped within a run holds no snapshot for ever; one that is at work keeps its own."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from rivet_dagster.engine.run import early
from rivet_dagster.engine.sources.postgres.connect import IDLE_TIMEOUT_MS, SessionLimits
from tests.live.postgres.rig import Rig, source_rows

LIMIT_MS: Final = 1_000
#: The program with a shorter limit than anybody would wait for.
PROGRAM: Final = f"""
import functools
from rivet_dagster import cli
from rivet_dagster.engine.sources.postgres.connect import PostgresConnector
from rivet_dagster.engine.run import early
from tests.live.postgres.sockets import open_narrow
early.SessionLimits = functools.partial(early.SessionLimits, idle_timeout_ms={LIMIT_MS})
PostgresConnector._open = open_narrow  # else the socket holds the large rows too
cli.main()
"""
READS: Final = "query LIKE 'COPY%' AND backend_xmin IS NOT NULL"
#: Bytes of a row: what lies between server and reader takes all of the small rows, and few of the large.
WIDTHS: Final = {"sent": 10, "sending": 5_000}


@contextlib.contextmanager
def running(rig: Rig) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", PROGRAM, "run", "-c", str(rig.config)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def backends(rig: Rig, condition: str = "true") -> int:
    """Sessions of the database, this look aside, that hold a snapshot or a transaction."""
    with rig.db.server.connect() as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity"
            f" WHERE datname = '{rig.db.name}' AND xact_start IS NOT NULL AND {condition}".encode()
        ).fetchone()
    assert row is not None
    return int(row[0])


def until(true: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def things(rig: Rig, width: int) -> None:
    """A table, and a view of it whose last rows take their time."""
    rig.db.execute(
        "CREATE TABLE things (id int, pad text)",
        "ALTER TABLE things ALTER pad SET STORAGE PLAIN",
        f"INSERT INTO things SELECT g, repeat('x', {width}) FROM generate_series(1, 6000) g",
        "CREATE FUNCTION slow(int) RETURNS int LANGUAGE plpgsql STABLE AS"
        " $$ BEGIN IF $1 = 5900 THEN PERFORM pg_sleep(2); END IF; RETURN $1; END $$",
        "CREATE VIEW crawl AS SELECT slow(id) AS id, pad FROM things",
    )


@pytest.mark.timeout(60)
@pytest.mark.parametrize("state", WIDTHS)
def test_a_stopped_process_loses_its_transactions(rig: Rig, state: str) -> None:
    things(rig, WIDTHS[state])
    rig.export("crawl")
    with running(rig) as process:
        assert until(lambda: backends(rig, READS) == 1, 30)
        os.kill(process.pid, signal.SIGSTOP)
        assert until(lambda: backends(rig) == 0, 20)


@pytest.mark.timeout(60)
def test_a_healthy_run_outlives_the_limit(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every statement takes the run's snapshot up again, which somebody has to hold meanwhile."""
    monkeypatch.setattr(early, "SessionLimits", functools.partial(SessionLimits, idle_timeout_ms=LIMIT_MS))
    things(rig, 5_000)
    rig.tuning = {"throttle_ms": 50, "batch_size": 100}
    began = time.monotonic()
    rig.export(parallel=1).run()
    assert time.monotonic() - began > 2.5 * LIMIT_MS / 1000
    assert rig.read() == source_rows(rig.db)


def test_nobody_is_left_alone_for_longer_than_ten_minutes(rig: Rig) -> None:
    rig.db.execute("CREATE TABLE things (id int)", f"ALTER DATABASE {rig.db.name} SET log_statement = 'all'")
    rig.export().run()
    text = rig.db.server.log.read_text(errors="replace")
    begun = [line for line in text.splitlines() if "BEGIN ISOLATION" in line]
    assert IDLE_TIMEOUT_MS == 600_000
    for name in ("idle_in_transaction_session_timeout", "tcp_user_timeout"):
        assert f"SET LOCAL {name} = '600000'" in begun[-1]
        assert not [line for line in begun if f"SET LOCAL {name} = '0'" in line]
