"""Fixtures of the whole suite: one server a version and process, one database a test."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from rivet_dagster.demo.install import ServerNotInstalledError
from tests.services.postgres import TestDatabase, TestServer, database, postgres_server


def can_install_system_packages() -> bool:
    """Whether ``make setup`` could have installed a Debian package here: as root, or by sudo."""
    if shutil.which("apt-get") is None:
        return False
    if os.geteuid() == 0:
        return True
    sudo = shutil.which("sudo")
    return (
        sudo is not None
        and subprocess.run([sudo, "-n", "true"], check=False, capture_output=True).returncode == 0
    )


def without(what: str) -> str:
    """Skip for the one allowed reason: a system package that this user cannot install. Else fail."""
    if can_install_system_packages():
        pytest.fail(f"{what} is missing: run `make setup`")
    pytest.skip(f"NOT TESTED, {what} is missing and this user cannot install it")


def _session_server(version: int) -> Iterator[TestServer]:
    try:
        with postgres_server(version) as server:
            yield server
    except ServerNotInstalledError:
        without(f"PostgreSQL {version}")


@pytest.fixture(scope="session")
def pg15() -> Iterator[TestServer]:
    yield from _session_server(15)


@pytest.fixture(scope="session")
def pg17() -> Iterator[TestServer]:
    yield from _session_server(17)


@pytest.fixture(scope="session")
def pg18() -> Iterator[TestServer]:
    yield from _session_server(18)


@pytest.fixture(scope="session")
def pg(pg17: TestServer) -> TestServer:
    return pg17


@pytest.fixture
def db(pg: TestServer) -> Iterator[TestDatabase]:
    """An empty database of PostgreSQL 17."""
    with database(pg) as fresh:
        yield fresh


@pytest.fixture(params=["pg15", "pg17", "pg18"])
def every_db(request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    """An empty database of each version in turn."""
    with database(request.getfixturevalue(request.param)) as fresh:
        yield fresh


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    holes = {
        report.longrepr[2]
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and "NOT TESTED" in report.longrepr[2]
    }
    for hole in sorted(holes):
        terminalreporter.write_line(f"HOLE IN THIS RUN: {hole}", red=True, bold=True)
