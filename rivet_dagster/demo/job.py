"""One Dagster job over the shop, run as a process of its own, as a user would run it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rivet_dagster.config import RivetConfig
from rivet_dagster.demo.errors import DemoError
from rivet_dagster.demo.process import own_group
from rivet_dagster.demo.server import PostgresServer
from rivet_dagster.demo.shop import DATABASE, DemoFiles
from rivet_dagster.demo.watch import Standing, Watch, look_calmly

_JOB: Final = "export_all"
_LOG_LINES: Final = 25


def dagster_environment(files: DemoFiles, server: PostgresServer) -> dict[str, str]:
    """Variables that the instance, the code location and the config read."""
    return {
        "DAGSTER_HOME": str(files.dagster_home),
        "RIVET_CONFIG": str(files.config),
        "RIVET_DEMO_URL": server.url_for(DATABASE),
    }


def run_job(files: DemoFiles, config: RivetConfig, watch: Watch, show: Callable[[Standing], None]) -> None:
    """Run every export; ``show`` hears several times a second how far it is. Raises DemoError."""
    marker = files.home / "unfinished"
    if marker.exists() or watch.interrupted:
        _end_killed_runs(config)
    marker.touch()
    command = [sys.executable, "-W", "ignore", "-m", "dagster", "job", "execute"]
    command += ["-m", "rivet_dagster.definitions", "-j", _JOB]
    standing = Standing(0, 0, begun=False)
    with own_group(command, folder=files.root, log=files.run_log, death=signal.SIGKILL) as job:
        while job.poll() is None:
            standing = look_calmly(watch, standing)
            show(standing)
            time.sleep(0.2)
    if job.returncode != 0:
        raise DemoError(
            "\n".join(["the Dagster job failed", *_reasons(files.run_log), f"log: {files.run_log}"])
        )
    marker.unlink()


def _reasons(log: Path) -> list[str]:
    """What the engine said, each line once; the end of the log when it said nothing."""
    lines = log.read_text(errors="replace").splitlines()
    said = dict.fromkeys(line for line in lines if line.startswith("rivet: ["))
    return list(said)[:_LOG_LINES] or lines[-_LOG_LINES:]


def _end_killed_runs(config: RivetConfig) -> None:
    """Dagster takes a run whose process was killed for running, and keeps its place in the queue."""
    import dagster as dg

    from rivet_dagster.assets.build import load_export_assets
    from rivet_dagster.assets.resources import RivetResource
    from rivet_dagster.assets.sensors import reap_stale_runs

    with dg.DagsterInstance.get() as instance:
        reap_stale_runs(instance, config, load_export_assets(config), RivetResource(), min_age_s=0)
