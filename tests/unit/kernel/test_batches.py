"""Batch borders depend on the rows alone; buffers grow without a trace."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from rivet_dagster.engine.sources.postgres.decoder import CopyDecoder
from rivet_dagster.engine.sources.postgres.kernel import Wire
from rivet_dagster.engine.types.decision import Column
from tests.unit.kernel.stream import Source, array, column, int4, list_of, row, stream, text

COLUMNS = [int4("id"), text("t"), column("b", pa.bool_(), Wire.BOOL), list_of(pa.int32(), Wire.INT32)]


def make(i: int, width: int) -> bytes:
    key = struct.pack("!i", i)
    return row(key, None if i % 5 == 0 else b"v" * width, bytes([i % 2]), array([key] * (width % 4)))


def borders(
    columns: Sequence[Column], pieces: Sequence[Sequence[bytes]], max_rows: int, max_bytes: int
) -> tuple[list[int], pa.Table]:
    decoder = CopyDecoder(columns, max_rows=max_rows, max_bytes=max_bytes)
    batches: list[pa.RecordBatch] = []
    for piece in pieces:
        batches += decoder.decode(Source(stream(piece)).transport)
    last = decoder.flush()
    if last is not None:
        batches.append(last)
    assert decoder.rows == sum(b.num_rows for b in batches) == sum(map(len, pieces))
    for batch in batches:
        batch.validate(full=True)
    return [b.num_rows for b in batches], pa.Table.from_batches(batches, schema=decoder.schema)


def test_rows_close_a_batch() -> None:
    counts, _ = borders([int4("id")], [[row(b"\0\0\0\0")] * 10], 4, 1 << 20)
    assert counts == [4, 4, 2]
    counts, _ = borders([int4("id")], [[row(b"\0\0\0\0")] * 8], 4, 1 << 20)
    assert counts == [4, 4]


def test_bytes_close_a_batch_with_the_row_that_reaches_them() -> None:
    # a row of text takes its bytes and a 4-byte offset
    counts, _ = borders([text()], [[row(b"x" * 96)] * 25], 1000, 1000)
    assert counts == [10, 10, 5]
    counts, _ = borders([text()], [[row(b"x" * 5000)] * 3], 1000, 1000)
    assert counts == [1, 1, 1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 300), max_size=120),
    st.lists(st.integers(0, 120), max_size=4),
    st.integers(1, 40),
    st.sampled_from([1, 50, 700, 5000, 1 << 20]),
)
def test_same_rows_same_borders_over_any_statements(
    widths: list[int], cuts: list[int], max_rows: int, max_bytes: int
) -> None:
    rows = [make(i, w) for i, w in enumerate(widths)]
    whole, table = borders(COLUMNS, [rows], max_rows, max_bytes)
    marks = [0, *sorted(min(c, len(rows)) for c in cuts), len(rows)]
    pieces = [rows[a:b] for a, b in itertools.pairwise(marks)]
    split, again = borders(COLUMNS, pieces, max_rows, max_bytes)
    assert whole == split
    assert table.equals(again)
    assert table.column("id").to_pylist() == list(range(len(rows)))
    expected = [None if i % 5 == 0 else "v" * w for i, w in enumerate(widths)]
    assert table.column("t").to_pylist() == expected


def test_average_width_is_only_a_hint() -> None:
    rows = [row(b"y" * (i % 200)) for i in range(3000)]
    results = [borders([text(width=w)], [rows], 5000, 100_000) for w in (None, 0, 1, 10, 4000, 10**7)]
    assert all(counts == results[0][0] and table.equals(results[0][1]) for counts, table in results)


def test_rows_beyond_the_first_guess_keep_their_bits() -> None:
    b = column("b", pa.bool_(), Wire.BOOL)
    count = 5000
    rows = [row(None if i % 3 == 0 else bytes([i % 2]), None if i % 7 == 0 else b"") for i in range(count)]
    counts, table = borders([b, text(width=10**6)], [rows], 10**5, 1 << 20)
    assert counts == [count]
    assert table.column("b").to_pylist() == [None if i % 3 == 0 else bool(i % 2) for i in range(count)]
    assert table.column("t").null_count == len(range(0, count, 7))


def test_one_message_may_hold_the_border_of_two_batches() -> None:
    source = Source([stream([])[0] + b"".join(row(struct.pack("!i", i)) for i in range(7)) + b"\xff\xff"])
    decoder = CopyDecoder([int4()], max_rows=3)
    got = [b.column(0).to_pylist() for b in decoder.decode(source.transport)]
    last = decoder.flush()
    assert last is not None
    assert [*got, last.column(0).to_pylist()] == [[0, 1, 2], [3, 4, 5], [6]]
    assert source.leaked == 0


def test_a_reader_that_stops_early_frees_the_message_in_work() -> None:
    source = Source([stream([])[0] + b"".join(row(struct.pack("!i", i)) for i in range(7)), b"\xff\xff"])
    batches = CopyDecoder([int4()], max_rows=3).decode(source.transport)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert source.leaked == 0
