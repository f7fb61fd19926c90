"""The web interface in a real browser: materialize an export by a click, see its chunks and checks.

``RIVET_UI_SCREENSHOTS=1`` also writes the pages to docs/img.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Any

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.services.postgres import TestDatabase, TestServer, database

IMAGES = Path(__file__).parents[2] / "docs" / "img"
URL_ENV = "RIVET_TEST_SOURCE_URL"

CONFIG = f"""
source:
  type: postgres
  url_env: {URL_ENV}
  tls: {{mode: disable}}
  environment: local
exports:
  - name: orders
    table: public.orders
    mode: chunked
    chunk_column: id
    chunk_size: 1000
    chunk_checkpoint: true
    format: parquet
    destination: {{type: local, path: ./out/orders}}
    dagster:
      group: shop
      owners: ["team:data"]
      description: What customers ordered.
      schedule: "0 3 * * *"
  - name: customers
    table: public.customers
    format: parquet
    destination: {{type: local, path: ./out/customers}}
    dagster: {{group: shop, owners: ["team:data"], description: Who our customers are.}}
  - name: visits
    table: public.visits
    mode: chunked
    chunk_column: id
    chunk_size: 1
    parallel: 2
    chunk_checkpoint: true
    format: parquet
    destination: {{type: local, path: ./out/visits}}
    dagster: {{group: web}}
"""
#: Of the export ``visits``. docs/dagster.md has the figures of 10,000.
UNITS = int(os.environ.get("RIVET_UI_UNITS", "600"))
MOST_PARTITIONS = 500

SOURCE = (
    "CREATE TABLE orders"
    " (id bigint PRIMARY KEY, customer_id bigint, amount numeric(12,2), placed timestamptz)",
    "INSERT INTO orders SELECT g, g % 700, g * 1.25, timestamptz '2026-01-01' + g * interval '1 min'"
    " FROM generate_series(1, 7500) g",
    "CREATE TABLE customers (id bigint PRIMARY KEY, name text)",
    "INSERT INTO customers SELECT g, 'customer ' || g FROM generate_series(1, 700) g",
    "CREATE TABLE visits (id bigint PRIMARY KEY, page text)",
    f"INSERT INTO visits SELECT g, 'page ' || g FROM generate_series(0, {UNITS - 1}) g",
    "ANALYZE",
)

INSTANCE = """
telemetry: {enabled: false}
nux: {enabled: false}
concurrency: {pools: {granularity: op}}
"""


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.5)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


@dataclass
class Deployment:
    """A running ``dagster dev`` on a small project."""

    url: str
    folder: Path
    source: TestDatabase

    def query(self, text: str, **variables: Any) -> Any:
        request = urllib.request.Request(
            f"{self.url}/graphql",
            json.dumps({"query": text, "variables": variables}).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)["data"]

    def ready(self) -> bool:
        """The web server answers and the code location is loaded."""
        try:
            data = self.query("{repositoriesOrError {... on RepositoryConnection {nodes {name}}}}")
        except (urllib.error.URLError, OSError):
            return False
        return bool(data["repositoriesOrError"].get("nodes"))

    def runs(self) -> list[str]:
        """Status of each run, newest first."""
        data = self.query("{runsOrError {... on Runs {results {status}}}}")
        return [run["status"] for run in data["runsOrError"]["results"]]

    def launch(self, job: str) -> str:
        """Launch a job without config; its run id."""
        selector = {
            "repositoryName": "__repository__",
            "repositoryLocationName": "rivet_dagster.definitions",
            "jobName": job,
        }
        data = self.query(
            "mutation($p: ExecutionParams!) {launchRun(executionParams: $p)"
            " {__typename ... on LaunchRunSuccess {run {runId}}}}",
            p={"selector": selector, "runConfigData": {}},
        )
        return str(data["launchRun"]["run"]["runId"])

    def events(self, run_id: str) -> int:
        """How many events the run left."""
        count, cursor = 0, None
        while True:
            data = self.query(
                "query($r: ID!, $c: String) {logsForRun(runId: $r, afterCursor: $c, limit: 1000)"
                " {... on EventConnection {events {__typename} cursor hasMore}}}",
                r=run_id,
                c=cursor,
            )["logsForRun"]
            count, cursor = count + len(data["events"]), data["cursor"]
            if not data["hasMore"]:
                return count

    def last_run(self) -> str | None:
        """Status of the newest run once it has ended."""
        runs = self.runs()
        return runs[0] if runs and runs[0] in {"SUCCESS", "FAILURE", "CANCELED"} else None


@pytest.fixture(scope="module")
def source(pg: TestServer) -> Iterator[TestDatabase]:
    with database(pg) as fresh:
        fresh.execute(*SOURCE)
        yield fresh


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Its path is in the pictures of the docs, so it is a short one."""
    with tempfile.TemporaryDirectory(prefix="shop-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def deployment(source: TestDatabase, folder: Path) -> Iterator[Deployment]:
    home = folder / "dagster_home"
    home.mkdir()
    (home / "dagster.yaml").write_text(INSTANCE)
    (folder / "rivet.yaml").write_text(CONFIG)
    with closing(socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", "dagster", "dev", "-m", "rivet_dagster.definitions"]
    with (folder / "dagster.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "-h", "127.0.0.1", "-p", str(port)],
            cwd=folder,
            env={
                **os.environ,
                "DAGSTER_HOME": str(home),
                "RIVET_CONFIG": str(folder / "rivet.yaml"),
                URL_ENV: source.url,
            },
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        deployment = Deployment(f"http://127.0.0.1:{port}", folder, source)
        try:
            until(deployment.ready, 180, f"dagster dev, see {folder / 'dagster.log'}")
            yield deployment
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture(scope="module")
def page(chromium: Path) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(chromium), args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport={"width": 1500, "height": 950})
        page.set_default_timeout(60_000)
        yield page
        browser.close()


def picture(page: Page, name: str) -> None:
    if os.environ.get("RIVET_UI_SCREENSHOTS") == "1":
        page.wait_for_timeout(2_500)
        IMAGES.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=IMAGES / f"{name}.png")


def test_an_export_is_materialized_by_a_click_and_shows_its_chunks_and_checks(
    deployment: Deployment, page: Page
) -> None:
    page.goto(f"{deployment.url}/assets/rivet/orders", wait_until="domcontentloaded")
    page.get_by_text("What customers ordered.").first.wait_for()
    page.get_by_role("button", name="Materialize").first.click()
    # before its first run the table has an upstream without a materialization: its own chunks
    page.get_by_role("button", name="Confirm").click()
    assert until(deployment.last_run, 180, "the run") == "SUCCESS"

    page.goto(f"{deployment.url}/assets/rivet/orders?view=overview", wait_until="domcontentloaded")
    page.get_by_text("7,500").first.wait_for()
    page.get_by_text("source type numeric(12,2), fidelity exact").first.wait_for()
    picture(page, "table")

    page.goto(f"{deployment.url}/assets/rivet/orders/chunks?view=partitions", wait_until="domcontentloaded")
    page.get_by_text("Materialized (8)").first.wait_for()
    page.get_by_text("000000007000").first.click()
    page.get_by_text("[7000..7500]").first.wait_for()
    picture(page, "chunks")

    page.goto(f"{deployment.url}/assets/rivet/orders?view=checks", wait_until="domcontentloaded")
    for check in ("validate", "reconcile"):
        page.get_by_text(check, exact=True).first.wait_for()
    assert page.get_by_text("Succeeded").count() >= 2
    picture(page, "checks")

    group = "locations/rivet_dagster.definitions/asset-groups/shop/lineage"
    page.goto(f"{deployment.url}/{group}", wait_until="domcontentloaded")
    page.get_by_text("100% filled").first.wait_for()
    picture(page, "lineage")


def test_reconcile_runs_alone_from_its_button_and_finds_a_difference(
    deployment: Deployment, page: Page
) -> None:
    before = len(deployment.runs())
    deployment.source.execute("DELETE FROM orders WHERE id = 4321")
    page.goto(
        f"{deployment.url}/assets/rivet/orders?view=checks&checkDetail=reconcile",
        wait_until="domcontentloaded",
    )
    page.get_by_role("button").filter(has_text="Execute").last.click()
    until(lambda: len(deployment.runs()) > before and deployment.last_run(), 90, "the check's run")
    page.reload(wait_until="domcontentloaded")
    page.get_by_text("chunk 4 [4000..4999]").or_(page.get_by_text("differing")).first.wait_for()
    picture(page, "reconcile")
    page.goto(f"{deployment.url}/assets/rivet/orders/chunks?view=checks", wait_until="domcontentloaded")
    page.get_by_text("reconcile_chunks").first.wait_for()


def test_a_table_of_many_units_stays_usable(
    deployment: Deployment, page: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    """Events and partitions are bounded: pages are as fast with ten thousand units as with five hundred."""
    started = time.monotonic()
    run_id = deployment.launch("export_visits")
    until(lambda: deployment.runs()[0] == "STARTED" or deployment.last_run(), 120, "the run begins")
    assert until(deployment.last_run, 500, "the run") == "SUCCESS"
    ran = time.monotonic() - started
    events = deployment.events(run_id)
    shared = 1  # units of a partition: a power of two, so that keys stay what they are as a table grows
    while shared * MOST_PARTITIONS < UNITS:
        shared *= 2
    partitions = -(-UNITS // shared)
    assert partitions <= events <= partitions + 40

    loads = {}
    for view, sign in (
        ("visits/chunks?view=partitions", f"Materialized ({partitions})"),
        ("visits/chunks?view=events", "Materialized"),
        ("visits?view=overview", f"{UNITS:,}"),
    ):
        begun = time.monotonic()
        page.goto(f"{deployment.url}/assets/rivet/{view}", wait_until="domcontentloaded")
        page.get_by_text(sign).first.wait_for(timeout=60_000)
        loads[view] = time.monotonic() - begun
    begun = time.monotonic()
    page.goto(f"{deployment.url}/runs/{run_id}", wait_until="domcontentloaded")
    page.get_by_text("RUN_SUCCESS").first.wait_for(timeout=60_000)
    loads["the run"] = time.monotonic() - begun
    with capsys.disabled():
        pages = ", ".join(f"{view} {seconds:.1f} s" for view, seconds in loads.items())
        print(f"\n{UNITS} units: {partitions} partitions, {events} events, run {ran:.0f} s; pages: {pages}")
    assert max(loads.values()) < 30
