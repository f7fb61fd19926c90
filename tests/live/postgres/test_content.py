"""``verify: content``: what is read back from the destination is what was read from the source."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rivet_dagster.engine.destinations.local import LocalStore
from rivet_dagster.engine.errors import IntegrityError, TransientError
from rivet_dagster.engine.run.events import UnitCommitted, UnitFailed
from rivet_dagster.engine.write.parquet import ParquetPartWriter
from tests.services.exporting import Exporter
from tests.services.peer_exports import TABLES
from tests.services.postgres import TestDatabase

CHUNKS: dict[str, Any] = {"mode": "chunked", "chunk_column": "id", "chunk_size": 300}
MODES: dict[str, dict[str, Any]] = {
    "full": {},
    "chunked": {**CHUNKS, "parallel": 2},
    "keyset": {"mode": "chunked", "chunk_by_key": "id", "chunk_size": 300},
    "incremental": {"mode": "incremental", "cursor_column": "id"},
    "rotated": {"max_file_size": "1B", "parquet": {"row_group_rows": 100}},
    "csv": {"table": "flat", "format": "csv"},
    "hashed": {"meta_columns": {"exported_at": True, "row_hash": True}},
    "empty": {"table": "empty_table"},
}


@pytest.fixture
def exporter(db: TestDatabase, tmp_path: Path) -> Exporter:
    db.execute(*TABLES, "ANALYZE")
    return Exporter(db, tmp_path)


def spoil(path: Path) -> None:
    """Flip one bit in the middle of a file, its size and name unchanged."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


class Disk:
    """A disk that damages the first ``bad`` parts that are published on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, bad: int) -> None:
        self.bad = bad
        publish = LocalStore.publish

        def damaging(store: LocalStore, staged: Path, name: str) -> str:
            md5 = publish(store, staged, name)
            if "-u0" in name and self.bad > 0:
                self.bad -= 1
                spoil(store.path(name))
            return md5

        monkeypatch.setattr(LocalStore, "publish", damaging)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_and_format_reads_back_as_it_was_read(exporter: Exporter, mode: str) -> None:
    outcome = exporter.run(**{"table": "every_type", "verify": "content", **MODES[mode]})
    assert outcome.status == "success"
    assert not [e for e in exporter.events if isinstance(e, UnitFailed)]
    assert exporter.marked


@pytest.mark.parametrize("mode", ["full", "chunked", "incremental", "csv", "rotated"])
def test_a_damaged_part_is_written_again(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    Disk(monkeypatch, bad=1)
    keys = {"table": "every_type", "tuning": {"max_retries": 2, "retry_backoff_ms": 1}, **MODES[mode]}
    outcome = exporter.run(**keys, verify="content")
    failed = [e.error.code for e in exporter.events if isinstance(e, UnitFailed)]
    assert failed == ["RIVET_DEST_CONTENT_DIFFERS"]
    assert max(e.attempt for e in exporter.events if isinstance(e, UnitCommitted)) == 2
    assert outcome.rows == (1000 if mode == "csv" else 1010)
    with exporter.engine(**keys) as engine:
        assert engine.validate("o").passed
    assert list((exporter.root / "out" / "_quarantine").rglob("*-a1-*")), "the damaged part is kept aside"


def test_a_disk_that_keeps_damaging_ends_the_run_without_a_marker(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disk(monkeypatch, bad=1000)
    with pytest.raises(TransientError) as caught:
        exporter.run(
            table="every_type", verify="content", tuning={"max_retries": 1, "retry_backoff_ms": 1}, **CHUNKS
        )
    assert caught.value.code == "RIVET_DEST_CONTENT_DIFFERS"
    assert not exporter.marked
    assert not list((exporter.root / "out").glob("manifest*"))


def test_values_that_changed_before_they_reached_the_file_are_found(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes are those that were written, so only the value checksums can tell."""
    write = ParquetPartWriter.write

    def swapped(writer: ParquetPartWriter, batch: pa.RecordBatch) -> None:
        order = [1, 0, *range(2, batch.num_rows)]
        words = batch.column("word").take(pa.array(order))
        write(writer, batch.set_column(batch.schema.get_field_index("word"), "word", words))

    monkeypatch.setattr(ParquetPartWriter, "write", swapped)
    keys: dict[str, Any] = {"table": "flat", "tuning": {"max_retries": 1, "retry_backoff_ms": 1}}
    exporter.run(**keys)  # not looked at
    with pytest.raises(TransientError) as caught:
        exporter.run(**keys, verify="content")
    assert "other values of word" in caught.value.message


def test_a_carried_part_that_was_damaged_since_is_not_published_again(exporter: Exporter) -> None:
    keys = {"table": "every_type", "verify": "content", **CHUNKS}
    exporter.run(**keys)
    parts = sorted((exporter.root / "out").glob("*-u00001-*.parquet"))
    times = parts[0].stat()
    spoil(parts[0])
    os.utime(parts[0], ns=(times.st_atime_ns, times.st_mtime_ns))
    with exporter.engine(**keys) as engine, engine.session("o", holder="test") as session:
        plan = session.plan(only=["000000000000"])
        assert len(plan.outstanding) == 1
        list(session.execute())
        with pytest.raises(IntegrityError) as caught:
            session.finalize()
    assert caught.value.code == "RIVET_VALIDATE_FAILED"
    assert not exporter.marked
    exporter.run(**keys)
    assert exporter.marked, "the next run does not take the damaged part over"


@pytest.mark.parametrize(("verify", "looks"), [("size", 0), ("content", 1)])
def test_only_content_reads_back(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch, verify: str, looks: int
) -> None:
    opened: list[str] = []
    open_input = LocalStore.open_input

    def counting(store: LocalStore, name: str) -> Any:
        opened.append(name)
        return open_input(store, name)

    monkeypatch.setattr(LocalStore, "open_input", counting)
    exporter.run(table="flat", verify=verify)
    assert len(set(opened)) == looks
