"""Rows on standard output: once, with one header, and nothing else beside them."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rivet_dagster.config import load_config
from rivet_dagster.engine.errors import ConfigError, UsageError
from tests.services.exporting import Exporter
from tests.services.postgres import TestDatabase
from tests.services.rivet_cli import write_config

ROWS = 5000
KEYS: dict[str, Any] = {"destination": {"type": "stdout"}, "format": "csv"}


@pytest.fixture
def exporter(db: TestDatabase, tmp_path: Path) -> Exporter:
    db.execute(
        'CREATE TABLE t (id int PRIMARY KEY, "odd\n""name" text)',
        f"INSERT INTO t SELECT n, CASE WHEN n % 7 > 0 THEN E'a\\n\"b' END FROM generate_series(1, {ROWS}) n",
        "ANALYZE t",
    )
    return Exporter(db, tmp_path)


def start(exporter: Exporter, *verb: str, **keys: Any) -> subprocess.Popen[bytes]:
    with exporter.engine(**{**KEYS, **keys}):
        pass
    command = [sys.executable, "-m", "rivet_dagster.cli", *verb, "-c", str(exporter.root / "rivet.yaml")]
    environment = {k: v for k, v in os.environ.items() if k != "RIVET_STATE_URL"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize(
    "keys",
    [{"mode": "full", "parallel": 2}, {"mode": "chunked", "chunk_column": "id", "chunk_size": 900}],
    ids=["full", "chunked"],
)
def test_every_row_goes_by_once(exporter: Exporter, keys: dict[str, Any]) -> None:
    for _ in range(2):
        out, err = start(exporter, "run", "--json", **keys).communicate(timeout=90)
        header, *rows = csv.reader(io.StringIO(out.decode(), newline=""))
        assert header == ["id", 'odd\n"name'], err
        assert sorted(int(row[0]) for row in rows) == list(range(1, ROWS + 1))
        assert b'"status": "success"' in err


def test_a_reader_that_goes_away_ends_the_run(exporter: Exporter) -> None:
    exporter.db.execute('UPDATE t SET "odd\n""name" = repeat(\'x\', 400)')
    process = start(exporter, "run", mode="chunked", chunk_column="id", chunk_size=900)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(60) == 1, err
    assert "RIVET_DEST_NOT_WRITABLE" in err


def test_nothing_can_be_asked_about_it_later(exporter: Exporter) -> None:
    start(exporter, "run").communicate(timeout=60)
    for verb in ("validate", "reconcile"):
        process = start(exporter, verb)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert b"what went to standard output is gone" in err
    with exporter.engine(**KEYS) as engine, pytest.raises(UsageError):
        engine.quality("o")


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ({"format": "parquet"}, "format"),
        ({"mode": "incremental", "cursor_column": "id"}, "mode"),
        ({"chunk_checkpoint": True, "mode": "chunked", "chunk_column": "id"}, "chunk_checkpoint"),
        ({"max_file_size": "1MB"}, "max_file_size"),
        ({"verify": "content"}, "verify"),
    ],
)
def test_what_needs_files_is_refused(tmp_path: Path, keys: dict[str, Any], field: str) -> None:
    export = {"name": "o", "table": "t", "mode": "full", **KEYS, **keys}
    path = write_config(tmp_path / "rivet.yaml", "postgresql://u:p@localhost/x", [export])
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.field == field
