"""Fixtures of the whole suite: one server a version and process, one database a test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

import pytest
from hypothesis import settings

from rivet_dagster.demo.install import ServerNotInstalledError
from tests.services.azurite import AzureServer, azurite
from tests.services.fake_gcs import GcsServer, fake_gcs
from tests.services.postgres import TestDatabase, TestServer, database, postgres_server
from tests.services.seaweed import S3Server, seaweed

# two busy cores make any deadline a coin toss; speed is measured in benchmarks/
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

_HOLE: Final = "NOT TESTED:"
_CHROMIUM: Final = Path("/usr/bin/chromium")


def without(package: str) -> NoReturn:
    """Skip a test whose system package ``make setup`` noted as not installable here; else fail it."""
    note = Path(sys.prefix) / "missing" / package
    if not note.exists():
        pytest.fail(f"{package} is missing: run `make setup`")
    pytest.skip(f"{_HOLE} {note.read_text().strip()}")


def server_of(version: int) -> Iterator[TestServer]:
    """A server of one of the versions; a test that needs it is skipped where setup could not get it."""
    try:
        with postgres_server(version) as server:
            yield server
    except ServerNotInstalledError:
        without(f"postgresql-{version}")


@pytest.fixture(scope="session")
def pg15() -> Iterator[TestServer]:
    yield from server_of(15)


@pytest.fixture(scope="session")
def pg17() -> Iterator[TestServer]:
    yield from server_of(17)


@pytest.fixture(scope="session")
def pg18() -> Iterator[TestServer]:
    yield from server_of(18)


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


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3 server; its secrets are in the environment for as long as it runs."""
    with seaweed() as server, server.named():
        yield server


@pytest.fixture(scope="session")
def gcs() -> Iterator[GcsServer]:
    with fake_gcs() as server:
        yield server


@pytest.fixture(scope="session")
def azure() -> Iterator[AzureServer]:
    """A Blob Storage server; its key is in the environment for as long as it runs."""
    try:
        with azurite() as server, server.named():
            yield server
    except ServerNotInstalledError:
        without("azurite")


@pytest.fixture(scope="session")
def chromium() -> Path:
    """The system's browser, for Playwright's ``executable_path``."""
    if not _CHROMIUM.exists():
        without("chromium")
    return _CHROMIUM


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    holes = {
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and _HOLE in report.longrepr[2]
    }
    for hole in sorted(holes):
        terminalreporter.write_line(f"A HOLE IN THIS RUN: {hole}", red=True, bold=True)
