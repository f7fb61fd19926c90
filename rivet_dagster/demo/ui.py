"""Dagster's web interface over the shop."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Final

from rivet_dagster.demo.errors import DemoError
from rivet_dagster.demo.job import dagster_environment
from rivet_dagster.demo.process import own_group
from rivet_dagster.demo.progress import Progress
from rivet_dagster.demo.server import free_port
from rivet_dagster.demo.shop import DemoFiles, load, shop_server

_PORT: Final = 3000
_USUAL_SECONDS: Final = 30  # from the start to the first page, for the bar


def serve_ui(files: DemoFiles) -> None:
    """Serve until Ctrl-C. ``RIVET_DEMO_UI_PORT`` asks for a port; a taken one is replaced by a free one."""
    port = _free(int(os.environ.get("RIVET_DEMO_UI_PORT", _PORT)))
    url = f"http://127.0.0.1:{port}"
    log = files.home / "ui.log"
    command = [sys.executable, "-W", "ignore", "-m", "dagster", "dev", "-m", "rivet_dagster.definitions"]
    command += ["-h", "127.0.0.1", "-p", str(port)]
    with Progress() as progress, shop_server(files) as server:
        if load(server, lambda part, table: progress.update(part / 2, f"loading {table}")):
            files.forget_exports()
        os.environ.update(dagster_environment(files, server))
        with own_group(command, folder=files.root, log=log, death=signal.SIGTERM) as ui:
            _await(ui, url, log, progress)
            print(f"Dagster is at  {url}/asset-groups\nCtrl-C ends it. Its log: {log}", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                ui.wait()
                raise DemoError(f"Dagster ended by itself; see {log}")
    print("Stopped.", file=sys.stderr)


def _await(ui: subprocess.Popen[bytes], url: str, log: Path, progress: Progress) -> None:
    while not _answers(url):
        if ui.poll() is not None:
            progress.close()
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
            raise DemoError(f"Dagster did not start:\n{tail}")
        progress.update(0.5 + progress.seconds / _USUAL_SECONDS / 2, "starting Dagster")
        time.sleep(0.3)
    progress.close()


def _free(wanted: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return free_port()
    return wanted


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/server_info", timeout=2):  # noqa: S310 - http to this machine
            return True
    except OSError:
        return False
