"""The demo's two commands over the sample shop."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rivet_dagster.config import load_config
from rivet_dagster.demo.check import check
from rivet_dagster.demo.errors import DemoError
from rivet_dagster.demo.install import ServerNotInstalledError
from rivet_dagster.demo.job import dagster_environment, run_job
from rivet_dagster.demo.progress import Progress
from rivet_dagster.demo.report import report
from rivet_dagster.demo.server import ServerStartError
from rivet_dagster.demo.shop import DemoFiles, load, row_count, shop_server
from rivet_dagster.demo.ui import serve_ui
from rivet_dagster.demo.watch import Standing, Watch
from rivet_dagster.engine.run.engine import Engine

_LOADED, _STARTED = 0.25, 0.3  # where the bar stands after these steps
_INTERRUPTED: Final = 130


def main(arguments: Sequence[str]) -> int:
    """Exit status of ``run`` or ``ui``."""
    commands = {"run": run, "ui": serve_ui}
    if len(arguments) != 1 or arguments[0] not in commands:
        print("usage: python -m rivet_dagster.demo run | ui", file=sys.stderr)
        return 2
    # SIGINT too: what a script starts in the background begins with it ignored
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
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
            os.environ.update(dagster_environment(files, server))
            config = load_config(files.config)
            rows = {export.name: row_count(server, export.name) for export in config.exports}
            with Engine(config) as engine:
                watch = Watch(engine, rows)
                progress.update(_LOADED, "starting Dagster")
                run_job(files, config, watch, lambda standing: _show(progress, watch, standing))
                progress.update(1.0, "checking the files")
                results = [check(export, rows[export.name], since) for export in config.exports]
                resumed = {name: left for name in rows if (left := watch.resumed(name))}
        progress.close()
        print(report(results, resumed, files.out, progress.seconds))
    if not all(result.ok for result in results):
        raise DemoError("the files do not hold what the tables hold")


def _show(progress: Progress, watch: Watch, standing: Standing) -> None:
    if standing.begun:
        share = standing.rows / watch.total
        done = f"{standing.finished} of {len(watch.rows)} exports"
        detail = f"{standing.rows:,} of {watch.total:,} rows, {done}"
        progress.update(_STARTED + share * (1 - _STARTED), "exporting", detail)


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


def _as_interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
