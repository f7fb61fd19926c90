"""A unit's batches become parts that are whole, or nothing."""

from __future__ import annotations

import errno
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from rivet_dagster.engine.destinations.local import LocalStore
from rivet_dagster.engine.errors import EnvironmentFault, TransientError
from rivet_dagster.engine.run.sink import SinkThread, UnitSink
from rivet_dagster.engine.write import new_part_writer
from rivet_dagster.engine.write.base import WriteOptions
from tests.unit.write.columns import batch, column

COLUMNS = [column("n", pa.int64(), distinct=1e6), column("word", pa.string(), distinct=1e6)]


def rows(start: int, count: int = 100) -> pa.RecordBatch:
    return batch(
        COLUMNS, list(range(start, start + count)), [f"{i:0100d}" for i in range(start, start + count)]
    )


def sums(one: pa.RecordBatch) -> dict[str, int]:
    return {"n": sum(one["n"].to_pylist()) + 2**63}


def sink(root: Path, limit: int | None = None) -> UnitSink:
    options = WriteOptions("parquet", None, None, 1000, 1 << 20, limit)
    return UnitSink(
        LocalStore(root),
        options,
        lambda p: new_part_writer(p, COLUMNS, options),
        lambda n: f"p{n}.parquet",
        sums,
    )


def files(root: Path) -> list[str]:
    return sorted(p.name for p in root.iterdir())


def test_one_part(tmp_path: Path) -> None:
    (part,) = SinkThread(sink(tmp_path)).consume([rows(0), rows(100)], schema_only=False)
    path = tmp_path / "p0.parquet"
    assert files(tmp_path) == ["p0.parquet"]
    assert (part.path, part.rows, part.size_bytes) == ("p0.parquet", 200, path.stat().st_size)
    assert part.fingerprint == f"xxh3:{xxhash.xxh3_64(path.read_bytes()).hexdigest()}"
    assert part.checksums == {"n": sum(range(200))}  # two times 2**63 is 0 in 64 bits
    assert pq.read_table(path)["n"].to_pylist() == list(range(200))


def test_parts_turn_over_after_the_batch_that_fills_them(tmp_path: Path) -> None:
    parts = SinkThread(sink(tmp_path, 15_000)).consume((rows(i * 100) for i in range(5)), schema_only=False)
    assert [p.rows for p in parts] == [200, 200, 100]
    assert [p.path for p in parts] == ["p0.parquet", "p1.parquet", "p2.parquet"]
    read = [n for p in parts for n in pq.read_table(tmp_path / p.path)["n"].to_pylist()]
    assert read == list(range(500))
    assert [(p.checksums or {})["n"] % 2**63 for p in parts] == [
        sum(range(a, a + n)) for a, n in ((0, 200), (200, 200), (400, 100))
    ]


@pytest.mark.parametrize("batches", [[], [rows(0, 0)]])
def test_no_rows(tmp_path: Path, batches: list[pa.RecordBatch]) -> None:
    parts = SinkThread(sink(tmp_path)).consume(batches, schema_only=True)
    assert [p.rows for p in parts] == [0]
    assert pq.read_schema(tmp_path / "p0.parquet").names == ["n", "word"]


def test_no_rows_and_no_schema(tmp_path: Path) -> None:
    assert SinkThread(sink(tmp_path)).consume([], schema_only=False) == []
    assert files(tmp_path) == []


def test_a_source_that_fails_leaves_no_part(tmp_path: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(0)
        yield rows(100)
        raise TransientError("gone")

    with pytest.raises(TransientError, match="gone"):
        SinkThread(sink(tmp_path)).consume(failing(), schema_only=True)
    assert files(tmp_path) == []
    assert "rivet-writer" not in [t.name for t in threading.enumerate()]


def test_a_writer_that_fails_ends_the_read(tmp_path: Path) -> None:
    read = []

    def endless() -> Iterator[pa.RecordBatch]:
        for i in range(1000):
            read.append(i)
            yield rows(i) if i < 2 else pa.record_batch({"other": [1]})

    with pytest.raises(ValueError, match="schema"):
        SinkThread(sink(tmp_path)).consume(endless(), schema_only=True)
    assert len(read) < 10
    assert files(tmp_path) == []


def test_a_read_that_is_closed_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> Iterator[pa.RecordBatch]:
        yield rows(0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SinkThread(sink(tmp_path)).consume(interrupted(), schema_only=True)
    assert files(tmp_path) == []


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of this process grows past 100 kB: what a full disk looks like (EFBIG for ENOSPC)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
def test_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        SinkThread(sink(tmp_path)).consume((rows(i * 1000, 1000) for i in range(50)), schema_only=True)
    assert caught.value.code == "RIVET_DEST_FULL"
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EFBIG
    assert files(tmp_path) == []


def test_a_folder_that_went_away(tmp_path: Path) -> None:
    with pytest.raises(TransientError) as caught:
        SinkThread(sink(tmp_path / "gone")).consume([rows(0)], schema_only=True)
    assert caught.value.code == "RIVET_DEST_UNAVAILABLE"
