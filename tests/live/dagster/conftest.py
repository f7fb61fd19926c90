"""A rivet project on a real PostgreSQL, its definitions, and a Dagster instance for each test."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest

from rivet_dagster import RivetResource, build_rivet_definitions
from rivet_dagster.assets._internal import step_errors
from rivet_dagster.config import RivetConfig, load_config
from tests.services.postgres import TestDatabase

URL_ENV = "RIVET_TEST_SOURCE_URL"

ORDERS = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, note text, amount numeric(10,2))",
    "INSERT INTO orders SELECT g, 'note ' || g, g FROM generate_series(1, 500) g",
    "CREATE TABLE events (at timestamptz NOT NULL, kind text)",
    "INSERT INTO events SELECT timestamptz '2026-01-01' + g * interval '1 s', 'k'"
    " FROM generate_series(1, 50) g",
    "CREATE INDEX ON events (at)",
    "ANALYZE",
)

HEAD = f"""
source:
  type: postgres
  url_env: {URL_ENV}
  tls: {{mode: disable}}
  environment: local
  tuning: {{max_retries: 1, retry_backoff_ms: 10}}
"""

EXPORTS = """
exports:
  - name: orders
    table: public.orders
    mode: chunked
    chunk_column: id
    chunk_size: 100
    chunk_checkpoint: true
    format: parquet
    destination: {type: local, path: ./out/orders}
    dagster: {group: shop, owners: ["team:data"], tags: {tier: gold}, deps: [erp/orders]}
  - name: events-log
    table: public.events
    mode: incremental
    cursor_column: at
    format: parquet
    destination: {type: local, path: ./out/events}
    dagster: {kinds: [log], description: Everything that happened.}
"""


@dataclass
class Project:
    """A folder with a rivet.yaml, its source database and a Dagster instance."""

    folder: Path
    db: TestDatabase
    instance: dg.DagsterInstance = field(repr=False)

    @property
    def path(self) -> Path:
        return self.folder / "rivet.yaml"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def rows(self, folder: str) -> int:
        """Rows that a reader of the folder's Parquet files sees."""
        return sum(pq.read_metadata(path).num_rows for path in (self.out / folder).glob("*.parquet"))

    @cached_property
    def config(self) -> RivetConfig:
        return load_config(self.path)

    @cached_property
    def defs(self) -> dg.Definitions:
        return build_rivet_definitions(self.path)

    def write(self, exports: str = EXPORTS, head: str = HEAD) -> Project:
        self.path.write_text(textwrap.dedent(head) + textwrap.dedent(exports))
        self.__dict__.pop("config", None)
        self.__dict__.pop("defs", None)
        return self

    def run(
        self, job: str, *, config: dict[str, Any] | None = None, tags: dict[str, str] | None = None
    ) -> dg.ExecuteInProcessResult:
        """Run a job in this process; failures are in the result."""
        return self.defs.resolve_job_def(job).execute_in_process(
            instance=self.instance, run_config=config, tags=tags, raise_on_error=False
        )

    def run_partitions(self, first: str, last: str, name: str = "orders") -> dg.ExecuteInProcessResult:
        """Materialize a range of chunk partitions, as a backfill does."""
        chunks = dg.AssetKey(["rivet", name, "chunks"])
        asset = next(
            a for a in self.defs.assets or [] if isinstance(a, dg.AssetsDefinition) and chunks in a.keys
        )
        return dg.materialize(
            [asset],
            instance=self.instance,
            selection=dg.AssetSelection.assets(chunks),
            resources=self.defs.resources,
            tags={
                "dagster/asset_partition_range_start": first,
                "dagster/asset_partition_range_end": last,
            },
            raise_on_error=False,
        )

    def tick(self, sensor_name: str, cursor: str | None = None) -> dg.SensorResult:
        """One evaluation of a sensor, as the daemon does it."""
        sensor = next(s for s in self.defs.sensors or [] if s.name == sensor_name)
        with dg.build_sensor_context(
            instance=self.instance,
            cursor=cursor,
            definitions=self.defs,
            resources={"rivet": RivetResource()},
        ) as context:
            result = sensor(context)
        assert isinstance(result, dg.SensorResult)
        return result

    def tick_failed(self, sensor_name: str, run: dg.DagsterRun) -> dg.SensorResult:
        """A run failure sensor hears of ``run``, as the daemon tells it."""
        sensor = next(s for s in self.defs.sensors or [] if s.name == sensor_name)
        (failed,) = self.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
        assert failed.dagster_event is not None
        context = dg.build_run_status_sensor_context(
            sensor_name, failed.dagster_event, self.instance, run, resources={"rivet": RivetResource()}
        ).for_run_failure()
        result = sensor(context)
        assert isinstance(result, dg.SensorResult)
        return result

    def crashes(self, run: dg.DagsterRun) -> dict[str, dict[str, Any]]:
        """Step -> the crashed object that was added to its log."""
        return {key: plain(metadata) for key, metadata in step_errors(self.instance, run.run_id)}

    def materialized(
        self, result: dg.ExecuteInProcessResult, key: dg.AssetKey
    ) -> list[dg.AssetMaterialization]:
        """Materializations of one asset that the run left in the instance, in their order."""
        kind = dg.DagsterEventType.ASSET_MATERIALIZATION
        records = self.instance.get_records_for_run(result.run_id, of_type=kind).records
        found = [record.event_log_entry.asset_materialization for record in records]
        return [m for m in found if m is not None and m.asset_key == key]


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@contextmanager
def instance_in_files(home: Path, settings: str = "") -> Iterator[dg.DagsterInstance]:
    """An instance that keeps everything in files below ``home``, as one on a laptop does."""
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n" + settings)
    with dg.DagsterInstance.from_config(str(home)) as stored:
        yield stored


@pytest.fixture
def project(
    db: TestDatabase, tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> Project:
    """Two exports, ``orders`` (chunked, 500 rows) and ``events-log`` (incremental, 50 rows)."""
    monkeypatch.setenv(URL_ENV, db.url)
    monkeypatch.delenv("RIVET_STATE_URL", raising=False)
    db.execute(*ORDERS)
    return Project(tmp_path, db, instance).write()


def plain(metadata: Any) -> dict[str, Any]:
    """Metadata values as the Python values that they hold."""
    return {key: getattr(value, "value", value) for key, value in metadata.items()}
