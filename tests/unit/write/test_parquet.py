"""Parquet: what stands in the file besides the values, and that nothing in it is by chance."""

from __future__ import annotations

import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rivet_dagster.engine.types.decision import Column, Fidelity
from rivet_dagster.engine.write import new_part_writer
from rivet_dagster.engine.write.base import WriteOptions
from rivet_dagster.engine.write.encoding import encodings, wants_dictionary
from tests.unit.write.columns import batch, column

OPTIONS = WriteOptions("parquet", "zstd", 3, 1000, 1 << 20)
COLUMNS = [
    column("id", pa.int64(), distinct=1000),
    column("word", pa.string(), distinct=3),
    column("unique", pa.string(), distinct=1e6),
    column("amount", pa.decimal128(12, 2), distinct=1e6),
    column("wide", pa.decimal128(38, 10)),
    column("at", pa.timestamp("us", "UTC"), distinct=1e6),
    column("flag", pa.bool_()),
    column("ratio", pa.float64(), distinct=1e6),
    column("list.of", pa.list_(pa.int32())),
    column("doc", pa.json_(), fidelity=Fidelity.EXACT, logical_type="json"),
    column("uid", pa.uuid(), distinct=1e6),
    column("hash", pa.int64(), random=True),
]


def rows(start: int = 0, count: int = 100) -> pa.RecordBatch:
    n = range(start, start + count)
    return batch(
        COLUMNS,
        list(n), [f"w{i % 3}" for i in n], [f"u{i}" for i in n], [Decimal(i).scaleb(-2) for i in n],
        [Decimal(-i) for i in n], list(n), [i % 2 == 0 for i in n], [i / 3 for i in n],
        [[i, None] if i % 2 else None for i in n], [f'{{"n":{i}}}' for i in n],
        [i.to_bytes(16, "big") for i in n], [i * 0x9E3779B9 for i in n],
    )  # fmt: skip


def write(path: Path, *batches: pa.RecordBatch, options: WriteOptions = OPTIONS) -> pq.FileMetaData:
    writer = new_part_writer(path, COLUMNS, options)
    for one in batches:
        writer.write(one)
    writer.close()
    return pq.read_metadata(path)


def leaves(metadata: pq.FileMetaData, group: int = 0) -> dict[str, Any]:
    found = metadata.row_group(group)
    return {c.path_in_schema: c for c in (found.column(i) for i in range(found.num_columns))}


def test_a_batch_is_a_row_group_and_comes_back(tmp_path: Path) -> None:
    metadata = write(tmp_path / "x.parquet", rows(), rows(100, 50), rows(0, 0))
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [100, 50]
    read = pq.read_table(tmp_path / "x.parquet")
    assert read.equals(pa.Table.from_batches([rows(), rows(100, 50)]))


def test_every_column_has_a_page_index(tmp_path: Path) -> None:
    for path, leaf in leaves(write(tmp_path / "x.parquet", rows())).items():
        assert leaf.has_offset_index, path
        assert leaf.has_column_index, path
        assert leaf.is_stats_set, path


def test_encodings_are_those_that_were_decided(tmp_path: Path) -> None:
    found = {
        path: set(leaf.encodings) for path, leaf in leaves(write(tmp_path / "x.parquet", rows())).items()
    }
    dictionary = {path for path, used in found.items() if "RLE_DICTIONARY" in used}
    delta = {path for path, used in found.items() if "DELTA_BINARY_PACKED" in used}
    assert dictionary == {"word", "list.of.list.item", "doc"}
    assert delta == {"id", "amount", "at"}
    assert found["hash"] <= {"PLAIN", "RLE"}


@pytest.mark.parametrize(
    ("arrow", "distinct", "wanted"),
    [
        (pa.string(), None, True), (pa.string(), 5_000, True), (pa.string(), 5_001, False),
        (pa.string(), 0, False),
        (pa.int32(), None, False), (pa.int32(), 64, True), (pa.int32(), 65, False), (pa.bool_(), 2, False),
        (pa.uuid(), None, True), (pa.float64(), 10, True), (pa.list_(pa.string()), 1e9, True),
    ],
)  # fmt: skip
def test_where_a_dictionary_pays(arrow: pa.DataType, distinct: float | None, wanted: bool) -> None:
    one = column("x", arrow, distinct=distinct)
    assert wants_dictionary(one) is wanted
    dictionary, other = encodings([one])
    assert bool(dictionary) is wanted
    assert not set(dictionary) & set(other)


def test_short_decimals_are_integers(tmp_path: Path) -> None:
    found = leaves(write(tmp_path / "x.parquet", rows()))
    assert found["amount"].physical_type == "INT64"
    assert found["wide"].physical_type == "FIXED_LEN_BYTE_ARRAY"


def test_the_schema_says_where_it_comes_from(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", rows())
    schema = pq.read_schema(tmp_path / "x.parquet")
    assert schema.names == [c.name for c in COLUMNS]
    for field, one in zip(schema, COLUMNS, strict=True):
        assert field.type == one.arrow
        assert field.nullable
        assert field.metadata[b"rivet.native_type"] == b"native"
        assert field.metadata[b"rivet.fidelity"] == b"exact"
    assert schema.field("doc").metadata[b"rivet.logical_type"] == b"json"


@pytest.mark.parametrize("codec", [None, "snappy", "gzip", "lz4", "zstd"])
def test_equal_batches_give_equal_bytes(tmp_path: Path, codec: str | None) -> None:
    options = WriteOptions("parquet", codec, None, 1000, 1 << 20)
    write(tmp_path / "a.parquet", rows(), rows(100), options=options)
    time.sleep(0.01)
    write(tmp_path / "b.parquet", rows(), rows(100), options=options)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    name = codec.upper() if codec else "UNCOMPRESSED"
    assert {leaf.compression for leaf in leaves(pq.read_metadata(tmp_path / "a.parquet")).values()} == {name}


@pytest.mark.parametrize("batches", [0, 1, 3])
def test_an_aborted_file_is_none(tmp_path: Path, batches: int) -> None:
    path = tmp_path / "x.parquet"
    writer = new_part_writer(path, COLUMNS, OPTIONS)
    for i in range(batches):
        writer.write(rows(i * 100))
    writer.abort()
    with pytest.raises(pa.ArrowInvalid):
        pq.read_metadata(path)


def test_a_file_without_rows_shows_its_schema(tmp_path: Path) -> None:
    metadata = write(tmp_path / "x.parquet")
    assert (metadata.num_rows, metadata.num_row_groups) == (0, 0)
    assert pq.read_table(tmp_path / "x.parquet").schema.names == [c.name for c in COLUMNS]


def test_the_size_so_far_grows(tmp_path: Path) -> None:
    writer = new_part_writer(tmp_path / "x.parquet", COLUMNS, OPTIONS)
    sizes = [writer.tell()]
    for i in range(3):
        writer.write(rows(i * 100))
        sizes.append(writer.tell())
    writer.close()
    assert sizes == sorted(set(sizes))
    assert (tmp_path / "x.parquet").stat().st_size > sizes[-1]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        new_part_writer(tmp_path / "no" / "x.parquet", COLUMNS, OPTIONS)


def test_names_with_dots_and_quotes(tmp_path: Path) -> None:
    columns: list[Column] = [
        column("a.b", pa.int64()),
        column('q"\n', pa.string()),
        column("a", pa.int64(), distinct=2),
    ]
    writer = new_part_writer(tmp_path / "x.parquet", columns, OPTIONS)
    writer.write(batch(columns, [1, 2], ["x", None], [1, 1]))
    writer.close()
    found = leaves(pq.read_metadata(tmp_path / "x.parquet"))
    assert "DELTA_BINARY_PACKED" in found["a.b"].encodings
    assert "RLE_DICTIONARY" in found["a"].encodings
    assert pq.read_table(tmp_path / "x.parquet").to_pydict() == {
        "a.b": [1, 2],
        'q"\n': ["x", None],
        "a": [1, 1],
    }
