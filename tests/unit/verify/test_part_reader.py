"""Parts are read in bounded pieces, and CSV records are counted as RFC 4180 says."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivet_dagster.engine.verify import part_reader
from rivet_dagster.engine.verify.part_reader import csv_batches, csv_rows, parquet_batches, parquet_header


def test_wide_rows_come_in_smaller_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_reader, "_BATCH_BYTES", 100_000)
    path = tmp_path / "wide.parquet"
    rows = pa.table({"id": range(300), "text": [f"{i:01000d}" for i in range(300)]})
    pq.write_table(rows, path, row_group_size=150, use_dictionary=False, compression="none")
    with path.open("rb") as file:
        assert parquet_header(file) == (rows.schema, 300)
        file.seek(0)
        batches = list(parquet_batches(file))
    assert max(b.num_rows for b in batches) <= 110
    assert pa.Table.from_batches(batches) == rows
    with path.open("rb") as file:
        assert next(parquet_batches(file, ["text"])).schema.names == ["text"]


@given(
    rows=st.lists(st.tuples(st.text('a",\n\r', max_size=6), st.text('b"\n', max_size=6)), max_size=20),
    block=st.integers(1, 9),
    last_newline=st.booleans(),
)
def test_csv_records_are_counted_whatever_they_hold(
    rows: list[tuple[str, str]], block: int, last_newline: bool
) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([("x", "y"), *rows])
    data = text.getvalue() if last_newline else text.getvalue().removesuffix("\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_reader, "_BLOCK", block)
        assert csv_rows(io.BytesIO(data.encode())) == len(rows)


def test_an_empty_csv_field_is_null_and_a_quoted_one_is_not() -> None:
    file = io.BytesIO(b'id,name\n1,\n2,""\n3,"a\nb"\n')
    rows = pa.Table.from_batches(csv_batches(file, {"id": pa.int64(), "name": pa.string()}))
    assert rows["name"].to_pylist() == [None, "", "a\nb"]


def test_an_empty_file_has_no_records() -> None:
    assert csv_rows(io.BytesIO(b"")) == 0
