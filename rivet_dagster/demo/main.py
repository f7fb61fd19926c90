"""The demo's two commands over the sample shop."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rivet_dagster.config import load_config
from rivet_dagster.demo.check import check
from rivet_dagster.demo.install import ServerNotInstalledError
from rivet_dagster.demo.process import own_group
from rivet_dagster.demo.progress import Progress
from rivet_dagster.demo.report import report
from rivet_dagster.demo.server import PostgresServer, ServerStartError, free_port
from rivet_dagster.demo.shop import DATABASE, DemoFiles, load, row_count, shop_server
from rivet_dagster.demo.watch import Standing, Watch, look_calmly
from rivet_dagster.engine.run.engine import Engine

_JOB: Final = "export_all"
_LOADED, _STARTED = 0.25, 0.3  # where the bar stands after these steps
_UI_PORT: Final = 3000
_INTERRUPTED: Final = 130


class DemoError(RuntimeError):
    """Something a person has to look at; printed without a traceback."""


def main(arguments: Sequence[str]) -> int:
    """Exit status of ``run`` or ``ui``."""
    commands = {"run": run, "ui": serve_ui}
    if len(arguments) != 1 or arguments[0] not in commands:
        print("usage: python -m rivet_dagster.demo run | ui", file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _as_interrupt)
    files = DemoFiles(Path.cwd())
    if not files.config.is_file():
        print(f"demo: run it in the checkout: there is no {files.config}", file=sys.stderr)
        return 1
    try:
        commands[arguments[0]](files)
    except KeyboardInterrupt:
        print("Stopped. Run it again to go on.", file=sys.stderr)
        return _INTERRUPTED
    except (DemoError, ServerStartError, ServerNotInstalledError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


def run(files: DemoFiles) -> None:
    """Load the shop unless it is there, export it by one Dagster job, check and report."""
    since = datetime.now(UTC)
    with _alone(files), Progress() as progress:
        progress.update(0.0, "starting PostgreSQL")
        with shop_server(files) as server:
            if load(server, lambda part, table: progress.update(part * _LOADED, f"loading {table}")):
                files.forget_exports()  # of the data that was there before
            environment = job_environment(files, server)
            os.environ.update(environment)  # the config names them
            config = load_config(files.config)
            rows = {export.name: row_count(server, export.name) for export in config.exports}
            with Engine(config) as engine:
                watch = Watch(engine, rows)
                _run_job(files, environment, watch, progress)
                progress.update(1.0, "checking the files")
                results = [check(export, rows[export.name], since) for export in config.exports]
                resumed = {name: left for name in rows if (left := watch.resumed(name))}
        progress.close()
        print(report(results, resumed, files.out, progress.seconds))
    if not all(result.ok for result in results):
        raise DemoError("the files do not hold what the tables hold")


def _run_job(files: DemoFiles, environment: Mapping[str, str], watch: Watch, progress: Progress) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "dagster", "job", "execute"]
    command += ["-m", "rivet_dagster.definitions", "-j", _JOB]
    standing = Standing(0, 0, begun=False)
    progress.update(_LOADED, "starting Dagster")
    with own_group(
        command, folder=files.root, environment=environment, log=files.run_log, death=signal.SIGKILL
    ) as job:
        while job.poll() is None:
            standing = look_calmly(watch, standing)
            if standing.begun:
                share = standing.rows / watch.total
                done = f"{standing.finished} of {len(watch.rows)} exports"
                detail = f"{standing.rows:,} of {watch.total:,} rows, {done}"
                progress.update(_STARTED + share * (1 - _STARTED), "exporting", detail)
            time.sleep(0.2)
    if job.returncode != 0:
        progress.close()
        tail = files.run_log.read_text(errors="replace").splitlines()[-25:]
        raise DemoError(
            "\n".join(["the Dagster job failed; its log ends with", *tail, f"all of it: {files.run_log}"])
        )


def serve_ui(files: DemoFiles) -> None:
    """Dagster's web interface over the shop until Ctrl-C."""
    port = _ui_port()
    command = [sys.executable, "-W", "ignore", "-m", "dagster", "dev", "-m", "rivet_dagster.definitions"]
    command += ["-h", "127.0.0.1", "-p", str(port)]
    log = files.home / "ui.log"
    with Progress() as progress, shop_server(files) as server:
        load(server, lambda part, table: progress.update(part / 2, f"loading {table}"))
        environment = job_environment(files, server)
        with own_group(
            command, folder=files.root, environment=environment, log=log, death=signal.SIGTERM
        ) as ui:
            url = f"http://127.0.0.1:{port}"
            while not _answers(url):
                if ui.poll() is not None:
                    progress.close()
                    tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
                    raise DemoError(f"Dagster did not start:\n{tail}")
                progress.update(0.5 + min(progress.seconds, 45) / 100, "starting Dagster")
                time.sleep(0.3)
            progress.close()
            print(f"Dagster is at  {url}/asset-groups\nCtrl-C ends it. Its log: {log}", flush=True)
            ui.wait()
            raise DemoError(f"Dagster ended by itself; see {log}")


def job_environment(files: DemoFiles, server: PostgresServer) -> dict[str, str]:
    """The caller's environment with what the demo's Dagster needs."""
    return {
        **os.environ,
        "DAGSTER_HOME": str(files.dagster_home),
        "RIVET_CONFIG": str(files.config),
        "RIVET_DEMO_URL": server.url_for(DATABASE),
    }


@contextlib.contextmanager
def _alone(files: DemoFiles) -> Iterator[None]:
    """One ``make demo`` at a time; its process id is in ``.demo/pid`` meanwhile."""
    files.home.mkdir(exist_ok=True)
    with (files.home / "pid").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError("another make demo runs in this checkout") from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _ui_port() -> int:
    wanted = int(os.environ.get("RIVET_DEMO_UI_PORT", _UI_PORT))
    return wanted if not _answers(f"http://127.0.0.1:{wanted}") else free_port()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/server_info", timeout=2):  # noqa: S310 - http to this machine
            return True
    except OSError:
        return False


def _as_interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
