"""A unit's batches become parts that are whole, or nothing."""

from __future__ import annotations

import errno
import resource
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from rivet_dagster.engine.destinations.local import LocalStore
from rivet_dagster.engine.errors import EnvironmentFault, TransientError
from rivet_dagster.engine.plan.units import Part
from rivet_dagster.engine.run.sink import UnitSink, UnitStream
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


def sink(
    root: Path, limit: int | None = None, *, kind: type[UnitSink] = UnitSink, name: str = "p"
) -> UnitSink:
    options = WriteOptions("parquet", None, None, 1000, 1 << 20, limit)
    return kind(
        LocalStore(root),
        options,
        lambda p: new_part_writer(p, COLUMNS, options),
        lambda n: f"{name}{n}.parquet",
        sums,
    )


def consume(sink: UnitSink, batches: Iterable[pa.RecordBatch], *, schema_only: bool) -> list[Part]:
    outcomes: list[list[Part] | BaseException] = []
    stream = UnitStream(sink, outcomes.append, schema_only=schema_only)
    stream.feed(batches)
    stream.join()
    (outcome,) = outcomes
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def files(root: Path) -> list[str]:
    return sorted(p.name for p in root.iterdir())


def test_one_part(tmp_path: Path) -> None:
    (part,) = consume(sink(tmp_path), [rows(0), rows(100)], schema_only=False)
    path = tmp_path / "p0.parquet"
    assert files(tmp_path) == ["p0.parquet"]
    assert (part.path, part.rows, part.size_bytes) == ("p0.parquet", 200, path.stat().st_size)
    assert part.fingerprint == f"xxh3:{xxhash.xxh3_64(path.read_bytes()).hexdigest()}"
    assert part.checksums == {"n": sum(range(200))}  # two times 2**63 is 0 in 64 bits
    assert pq.read_table(path)["n"].to_pylist() == list(range(200))


def test_parts_turn_over_after_the_batch_that_fills_them(tmp_path: Path) -> None:
    parts = consume(sink(tmp_path, 15_000), (rows(i * 100) for i in range(5)), schema_only=False)
    assert [p.rows for p in parts] == [200, 200, 100]
    assert [p.path for p in parts] == ["p0.parquet", "p1.parquet", "p2.parquet"]
    read = [n for p in parts for n in pq.read_table(tmp_path / p.path)["n"].to_pylist()]
    assert read == list(range(500))
    assert [(p.checksums or {})["n"] % 2**63 for p in parts] == [
        sum(range(a, a + n)) for a, n in ((0, 200), (200, 200), (400, 100))
    ]


@pytest.mark.parametrize("batches", [[], [rows(0, 0)]])
def test_no_rows(tmp_path: Path, batches: list[pa.RecordBatch]) -> None:
    parts = consume(sink(tmp_path), batches, schema_only=True)
    assert [p.rows for p in parts] == [0]
    assert pq.read_schema(tmp_path / "p0.parquet").names == ["n", "word"]


def test_no_rows_and_no_schema(tmp_path: Path) -> None:
    assert consume(sink(tmp_path), [], schema_only=False) == []
    assert files(tmp_path) == []


def test_a_source_that_fails_leaves_no_part(tmp_path: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(0)
        yield rows(100)
        raise TransientError("gone")

    with pytest.raises(TransientError, match="gone"):
        consume(sink(tmp_path), failing(), schema_only=True)
    assert files(tmp_path) == []
    assert "rivet-writer" not in [t.name for t in threading.enumerate()]


def test_a_writer_that_fails_ends_the_read(tmp_path: Path) -> None:
    read = []

    def endless() -> Iterator[pa.RecordBatch]:
        for i in range(1000):
            read.append(i)
            yield rows(i) if i < 2 else pa.record_batch({"other": [1]})

    with pytest.raises(ValueError, match="schema"):
        consume(sink(tmp_path), endless(), schema_only=True)
    assert len(read) < 10
    assert files(tmp_path) == []


def test_a_read_that_is_closed_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> Iterator[pa.RecordBatch]:
        yield rows(0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consume(sink(tmp_path), interrupted(), schema_only=True)
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
        consume(sink(tmp_path), (rows(i * 1000, 1000) for i in range(50)), schema_only=True)
    assert caught.value.code == "RIVET_DEST_FULL"
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EFBIG
    assert files(tmp_path) == []


def test_a_folder_that_went_away(tmp_path: Path) -> None:
    with pytest.raises(TransientError) as caught:
        consume(sink(tmp_path / "gone"), [rows(0)], schema_only=True)
    assert caught.value.code == "RIVET_DEST_UNAVAILABLE"


def test_the_next_unit_is_read_while_the_last_is_finished_and_written_after_it(tmp_path: Path) -> None:
    order: list[str] = []
    gate, full = threading.Event(), threading.Event()

    class Slow(UnitSink):
        def finish(self, *, schema_only: bool) -> list[Part]:
            gate.wait(10)
            return super().finish(schema_only=schema_only)

    first, then = sink(tmp_path, kind=Slow, name="first"), sink(tmp_path, name="second")
    one = UnitStream(first, lambda _: order.append("first"), schema_only=False)
    assert one.feed([rows(0)])
    two = UnitStream(then, lambda _: order.append("second"), schema_only=False, after=one)

    def second() -> Iterator[pa.RecordBatch]:
        yield rows(100)
        full.set()
        yield rows(200)

    reading = threading.Thread(target=two.feed, args=(second(),))
    reading.start()
    assert full.wait(10)  # read, while the first is not finished
    assert not list(tmp_path.glob("*second*"))
    gate.set()
    reading.join()
    two.join()
    assert order == ["first", "second"]
    assert files(tmp_path) == ["first0.parquet", "second0.parquet"]
