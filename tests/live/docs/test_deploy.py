"""The files of examples/deploy: they agree with each other, with the package and the docs, and they run.

No container is started: what Compose would start is started here, with its commands and settings.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from socket import socket
from typing import Any, Final

import dagster as dg
import pytest
import yaml

from rivet_dagster.config import load_config
from tests.live.docs.pages import ROOT
from tests.live.docs.reader import SHOP
from tests.services.postgres import TestServer, postgres_server
from tests.ui.test_ui import until

DEPLOY: Final = ROOT / "examples" / "deploy"
UNITS: Final = sorted((DEPLOY / "systemd").glob("*.service"))
PASSWORDS: Final = {"DAGSTER_PG_PASSWORD": "daPassword1", "RIVET_STATE_PASSWORD": "stPassword2"}


def text(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load(text("compose.yaml")))


def variables() -> dict[str, str]:
    """What .env.example asks for."""
    found = re.findall(r"^(\w+)=(.*)$", text(".env.example"), flags=re.MULTILINE)
    return dict(found)


def test_the_example_of_env_names_what_compose_needs_and_holds_no_secret() -> None:
    asked = set(re.findall(r"\$\{(\w+)", text("compose.yaml")))
    assert set(variables()) == asked
    assert set(variables().values()) == {""}


def test_only_the_code_server_gets_the_source() -> None:
    services = compose()["services"]
    assert set(services) == {"postgres", "code", "daemon", "webserver"}
    holders = [name for name, service in services.items() if "DATABASE_URL" in service.get("environment", {})]
    assert holders == ["code"]
    assert services["webserver"]["ports"] == ["127.0.0.1:3000:3000"]
    for service in services.values():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            assert source in compose()["volumes"] or (DEPLOY / source).is_file(), mount


def test_settings_name_the_variables_that_are_set() -> None:
    needed = set(re.findall(r"\{env: (\w+)\}", text("dagster.yaml") + text("workspace.yaml")))
    needed |= {str(yaml.safe_load(text("rivet.yaml"))["source"]["url_env"])}
    assert needed <= set(compose()["services"]["code"]["environment"])


def test_the_image_is_built_from_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    dockerfile = text("Dockerfile")
    extras = re.search(r"^ARG EXTRAS=(.+)$", dockerfile, flags=re.MULTILINE)
    assert extras is not None
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])
    wheel = re.search(r"pip install .*/wheels/(\w+)-\*\.whl", dockerfile)
    assert wheel is not None
    assert wheel[1] == project["name"].replace("-", "_")
    least = tuple(int(part) for part in project["requires-python"].removeprefix(">=").split("."))
    for version in re.findall(r"^FROM python:(\d+)\.(\d+)", dockerfile, flags=re.MULTILINE):
        assert tuple(map(int, version)) >= least
    sent = {line[1:] for line in text("Dockerfile.dockerignore").splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, flags=re.MULTILINE)
    assert sent == {name for names in copied for name in names.split()}
    assert all((ROOT / name).exists() for name in sent)


def test_the_example_config_is_valid() -> None:
    assert load_config(DEPLOY / "rivet.yaml").exports


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_units_start_what_compose_starts(unit: Path) -> None:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    started = [Path(word).name for word in parser["Service"]["ExecStart"].split()]
    service = {"rivet-code": "code"}.get(unit.stem, unit.stem.removeprefix("dagster-"))
    there = compose()["services"][service]["command"]
    places = {"0.0.0.0": "127.0.0.1"}
    assert started == [places.get(word, word) for word in there]
    secret = "source.env" in unit.read_text(encoding="utf-8")
    assert secret == (service == "code"), "only the code server reads the source's password"


# --- started for real -----------------------------------------------------------------------------


def free_port() -> int:
    with closing(socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(command: list[str], folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """A service of compose.yaml as a process group of this machine."""
    with (folder / f"{command[0]}.log").open("wb") as log:
        arguments = [sys.executable, "-W", "ignore", "-m", command[0], *command[1:]]
        process = subprocess.Popen(
            arguments, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def server() -> Iterator[TestServer]:
    """A PostgreSQL as databases.sh leaves it, with the shop beside it."""
    with postgres_server(17) as server:
        with server.connect() as connection:
            script = text("databases.sh")
            for name, variable in re.findall(r'-v (\w+)="\$(\w+)"', script):
                script = script.replace(f":'{name}'", f"'{PASSWORDS[variable]}'")
            for statement in re.findall(r"^CREATE .*;$", script, flags=re.MULTILINE):
                connection.execute(statement.encode())
            connection.execute("CREATE DATABASE shop")
        with server.connect("shop") as connection:
            for statement in SHOP:
                connection.execute(statement.encode())
        yield server


def test_daemon_and_web_server_wait_for_the_code_server() -> None:
    services = compose()["services"]
    for name in ("daemon", "webserver"):
        assert services[name]["depends_on"]["code"] == {"condition": "service_healthy"}
    assert "healthcheck" in services["code"]


def test_a_run_goes_through_daemon_and_code_server(
    server: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    for name, here in (
        ("dagster.yaml", {"port: 5432": f"port: {server.port}", "/opt/dagster/logs": f"{tmp_path}/logs"}),
        ("workspace.yaml", {"port: 4000": f"port: {port}"}),
        ("rivet.yaml", {"/data/": f"{tmp_path}/data/", "verify-full": "disable"}),
    ):
        content = text(name)
        for old, new in here.items():
            assert old in content
            content = content.replace(old, new)
        (tmp_path / name).write_text(content, encoding="utf-8")
    home = tmp_path / "home"
    home.mkdir()
    shutil.move(tmp_path / "dagster.yaml", home)
    common = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("RIVET_", "DAGSTER_"))},
        "PYTHONPATH": str(ROOT),
        "DAGSTER_HOME": str(home),
        "DAGSTER_PG_HOST": server.host,
        "DAGSTER_PG_PASSWORD": PASSWORDS["DAGSTER_PG_PASSWORD"],
        "CODE_HOST": "127.0.0.1",
    }
    state = f"postgresql://rivet:{PASSWORDS['RIVET_STATE_PASSWORD']}@{server.host}:{server.port}/rivet"
    code = common | {
        "DATABASE_URL": server.url_for("shop"),
        "RIVET_CONFIG": str(tmp_path / "rivet.yaml"),
        "RIVET_STATE_URL": f"{state}?sslmode=disable",
    }
    services = compose()["services"]
    grpc = [str(port) if word == "4000" else word for word in services["code"]["command"]]
    daemon = ["dagster._daemon", *services["daemon"]["command"][1:]]
    for name in ("DAGSTER_PG_HOST", "DAGSTER_PG_PASSWORD"):
        monkeypatch.setenv(name, common[name])
    with (
        dg.DagsterInstance.from_config(str(home)) as instance,
        started(grpc, tmp_path, code),
        contextlib.ExitStack() as later,
    ):
        # as Compose waits for it: a daemon that finds no code server fails the first run
        until(lambda: answers(port), 60, "the code server")
        later.enter_context(started(daemon, tmp_path, common))
        launch = ["job", "launch", "-w", "workspace.yaml", "-j", "export_all"]
        command = [sys.executable, "-W", "ignore", "-m", "dagster", *launch]
        done = subprocess.run(
            command, cwd=tmp_path, env=common, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        until(lambda: any(run.is_finished for run in instance.get_runs()), 120, "the run")
        assert [run.status for run in instance.get_runs()] == [dg.DagsterRunStatus.SUCCESS]
    assert (tmp_path / "data" / "orders" / "_SUCCESS").exists()
    with server.connect("rivet") as connection:
        assert connection.execute("SELECT count(*) FROM export_metrics").fetchone() == (1,)


def answers(port: int) -> bool:
    with closing(socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
