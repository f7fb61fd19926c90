"""Native row hashes against their definition, and widths of text."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from rivet_dagster.engine.errors import InternalError
from rivet_dagster.engine.sources.postgres.cells import row_hashes, widest
from rivet_dagster.engine.verify.checksum import cell_bytes
from tests.unit.kernel.test_checksum import VALUES


def defined(arrays: list[pa.Array]) -> list[int]:
    """For each cell 0, or 1, the length of its bytes and the bytes; hashed, as a signed number."""
    found = []
    for row in zip(*(cell_bytes(a) for a in arrays), strict=True):
        parts = (b"\0" if c is None else b"\1" + struct.pack("<Q", len(c)) + c for c in row)
        found.append(struct.unpack("<q", xxhash.xxh3_64(b"".join(parts)).digest()[::-1])[0])
    return found


def typed(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    return pa.array(values, kind)


def cycled(values: list[Any], rows: int) -> list[Any]:
    with_null = [*values, None]
    return [with_null[i % len(with_null)] for i in range(rows)]


def test_rows_of_every_type_hash_as_defined() -> None:
    arrays = [typed(kind, cycled(values, 30)) for kind, values in VALUES]
    elements: list[tuple[pa.DataType, Any]] = [(pa.int32(), 1), (pa.string(), "a"), (pa.bool_(), True)]
    lists = [pa.array([[v, None], [], None] * 10, pa.list_(k)) for k, v in elements]
    everything = arrays + lists
    expected = defined(everything)
    assert row_hashes(everything).to_pylist() == expected
    assert len(set(expected)) == 30
    assert row_hashes([a.slice(7, 11) for a in everything]).to_pylist() == expected[7:18]


@given(st.lists(st.lists(st.none() | st.text(max_size=3) | st.binary(max_size=0), min_size=2, max_size=2)))
def test_rows_hash_alike_only_when_they_are_alike(rows: list[list[Any]]) -> None:
    texts = [[None if c is None else str(c or "") for c in row] for row in rows]
    arrays = [pa.array([row[i] for row in texts], pa.string()) for i in range(2)]
    hashes = row_hashes(arrays).to_pylist()
    assert len(set(hashes)) == len({tuple(row) for row in texts})
    assert hashes == defined(arrays)


def test_a_type_without_bytes_is_a_defect() -> None:
    with pytest.raises(InternalError):
        row_hashes([pa.array([{"a": 1}])])
    with pytest.raises(InternalError):
        widest(pa.array([1]))


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.json_()])
def test_the_widest_value_is_measured_in_bytes(kind: pa.DataType) -> None:
    array = typed(
        kind, ["", None, "größe", "abc", "x" * 50] if kind != pa.binary() else [b"", None, b"1234567"]
    )
    assert widest(array) == (7 if kind == pa.binary() else 50)
    assert widest(array.slice(0, 2)) == 0
    assert widest(array.slice(2, 1)) == 7
    assert widest(array.slice(0, 0)) == 0
