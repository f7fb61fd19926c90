"""Whatever bytes come: rows or a refusal, never a crash, never a leaked message."""

from __future__ import annotations

import random
import struct
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivet_dagster.engine.errors import RefusalError
from rivet_dagster.engine.sources.postgres.decoder import CopyDecoder
from rivet_dagster.engine.sources.postgres.kernel import Wire
from tests.unit.kernel.corpus import COLUMNS, good_row
from tests.unit.kernel.stream import HEADER, TRAILER, Source, numeric_bytes, stream

EXPECTED = {
    None,
    "RIVET_SOURCE_UNDECODABLE",
    "RIVET_SOURCE_VALUE_UNREPRESENTABLE",
    "RIVET_VALUE_TOO_LARGE",
}


def survive(messages: list[bytes], **options: int) -> None:
    source = Source(messages)
    decoder = CopyDecoder(COLUMNS, policies={c.name: "null" for c in COLUMNS[::2]}, **options)
    code, batches = None, []
    try:
        batches = [*decoder.decode(source.transport), decoder.flush()]
    except RefusalError as error:
        code = error.code
    assert code in EXPECTED
    for batch in batches:
        if batch is not None:
            batch.validate()
    assert source.leaked == 0


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=200), max_size=6))
def test_random_messages(messages: list[bytes]) -> None:
    survive(messages)
    survive([HEADER, *messages])


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False), st.data())
def test_mutated_rows(rng: random.Random, data: st.DataObject) -> None:
    rows = [bytearray(good_row(rng, i)) for i in range(3)]
    for _ in range(data.draw(st.integers(0, 6))):
        target = rows[data.draw(st.integers(0, 2))]
        at = data.draw(st.integers(0, len(target) - 1))
        target[at] = data.draw(st.integers(0, 255))
    survive(stream(bytes(r) for r in rows), max_rows=2)


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False), st.data())
def test_truncated_rows(rng: random.Random, data: st.DataObject) -> None:
    whole = good_row(rng, 0)
    cut = data.draw(st.integers(1, len(whole)))
    survive([HEADER, whole, whole[:cut], TRAILER])


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False), st.data())
def test_hostile_lengths(rng: random.Random, data: st.DataObject) -> None:
    whole = bytearray(good_row(rng, 0))
    at = data.draw(st.integers(0, len(whole) - 4))
    length = data.draw(st.sampled_from([-1, -2, -(2**31), 2**31 - 1, 2**30, 0, 1, 65536]))
    whole[at : at + 4] = struct.pack("!i", length)
    survive([HEADER, bytes(whole), TRAILER], max_value_bytes=4096)


def test_good_rows_are_good() -> None:
    """The corpus itself: without a mutation every row must decode, or the tests above prove nothing."""
    rng = random.Random(1)
    source = Source(stream(good_row(rng, i) for i in range(200)))
    decoder = CopyDecoder(COLUMNS, max_rows=64)
    rows = sum(b.num_rows for b in decoder.decode(source.transport))
    last = decoder.flush()
    assert last is not None
    assert rows + last.num_rows == 200


@pytest.mark.parametrize("wire", [w for w in Wire if w is not Wire.LIST])
def test_every_kind_has_a_scalar_and_a_list_in_the_corpus(wire: Wire) -> None:
    assert any(c.wire == wire for c in COLUMNS)
    assert any(c.wire == wire | Wire.LIST for c in COLUMNS)


def test_numeric_encoder_matches_a_known_value() -> None:
    # SELECT numeric_send(-12345.678::numeric) on PostgreSQL 17
    assert numeric_bytes(Decimal("-12345.678")).hex() == "0003000140000003000109291a7c"
    assert pa.decimal128(8, 3)
