"""CSV: one text form for each value, which every reader gives back."""

from __future__ import annotations

import csv
import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivet_dagster.engine.write import new_part_writer
from rivet_dagster.engine.write.base import WriteOptions
from rivet_dagster.engine.write.csv import render
from tests.unit.write.columns import batch, column

OPTIONS = WriteOptions("csv", None, None, 1000, 1 << 20)


def written(path: Path, names: list[str], *batches: list[list[Any]]) -> bytes:
    columns = [column(n, pa.string()) for n in names]
    writer = new_part_writer(path, columns, OPTIONS)
    for values in batches:
        writer.write(batch(columns, *values))
    writer.close()
    return path.read_bytes()


def test_the_bytes(tmp_path: Path) -> None:
    words: list[Any] = [
        "plain",
        None,
        "",
        'a"b',
        "a,b",
        "a\nb",
        "a\r\nb",
        " lead ",
        "=cmd()",
        "NULL",
        "\\N",
        "\\.",
    ]
    data = written(tmp_path / "x.csv", ["id", 'the "word", x'], [[str(i) for i in range(len(words))], words])
    assert data.decode() == (
        'id,"the ""word"", x"\n'
        "0,plain\n"
        "1,\n"
        '2,""\n'
        '3,"a""b"\n'
        '4,"a,b"\n'
        '5,"a\nb"\n'
        '6,"a\r\nb"\n'
        "7, lead \n"
        "8,=cmd()\n"
        "9,NULL\n"
        "10,\\N\n"
        '11,"\\."\n'
    )


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.bool_(), True, "true"),
        (pa.bool_(), False, "false"),
        (pa.int64(), -(2**63), "-9223372036854775808"),
        (pa.float64(), 0.1, "0.1"),
        (pa.float64(), -0.0, "-0"),
        (pa.float64(), float("nan"), "NaN"),
        (pa.float64(), float("inf"), "inf"),
        (pa.float64(), float("-inf"), "-inf"),
        (pa.float64(), 5e-324, "5e-324"),
        (pa.float64(), 1.7976931348623157e308, "1.7976931348623157e+308"),
        (pa.float32(), 0.1, "0.1"),
        (pa.decimal128(12, 2), Decimal("-0.10"), "-0.10"),
        (pa.decimal128(38, 6), Decimal("0.000001"), "0.000001"),
        (pa.decimal128(38, 6), Decimal("-12345678901234567890.123456"), "-12345678901234567890.123456"),
        (pa.decimal128(5, 0), Decimal(100), "100"),
        (pa.date32(), 0, "1970-01-01"),
        (pa.date32(), -719529, "-0001-12-31"),  # ISO 8601: the year 0 is 1 BC
        (pa.date32(), 2932897, "10000-01-01"),
        (pa.date32(), 11248737, "32767-12-31"),
        (pa.date32(), 11248738, "32768-01-01"),
        (pa.date32(), 2145042905, "5874897-12-31"),
        (pa.timestamp("us"), 2**63 - 1, "294247-01-10T04:00:54.775807"),
        (pa.timestamp("us", "UTC"), 971890963200 * 10**6, "32768-01-01T00:00:00.000000Z"),
        (pa.time64("us"), 86_399_999_999, "23:59:59.999999"),
        (pa.timestamp("us"), 1, "1970-01-01T00:00:00.000001"),
        (pa.timestamp("us", "UTC"), -1, "1969-12-31T23:59:59.999999Z"),
    ],
)
def test_the_text_of_a_value(kind: pa.DataType, value: Any, text: str) -> None:
    assert render(pa.array([value, None], kind)).to_pylist() == [text, ""]


def test_a_json_value_is_quoted_like_any_text() -> None:
    array = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', None, "1"]))
    assert render(array).to_pylist() == ['"{""a"": 1}"', "", "1"]


TEXTS = st.one_of(
    st.none(),
    st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    st.text(st.sampled_from('",\r\n\t \\.aé🚰'), max_size=6),
)
ROWS = st.lists(st.tuples(st.integers(-5, 5).map(str), TEXTS, TEXTS), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.integers(0, 8))
def test_readers_give_every_text_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, ...]], cut: int
) -> None:
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    pieces = [[list(c) for c in zip(*piece, strict=True)] for piece in (rows[:cut], rows[cut:]) if piece]
    data = written(path, ["id", "a", "b"], *pieces)
    read = list(csv.reader(io.StringIO(data.decode(), newline=""), strict=True))
    assert read == [["id", "a", "b"], *([("" if v is None else v) for v in row] for row in rows)]
    with duckdb.connect() as duck:
        found = duck.execute(
            "SELECT * FROM read_csv(?, header=true, auto_detect=false, delim=',', quote='\"', escape='\"',"
            " nullstr='', allow_quoted_nulls=false, new_line='\\n',"
            " columns={'id': 'text', 'a': 'text', 'b': 'text'})",
            [str(path)],
        ).fetchall()
    assert found == rows


def test_no_rows_is_a_header(tmp_path: Path) -> None:
    assert written(tmp_path / "x.csv", ["id", "word"]) == b"id,word\n"
    assert written(tmp_path / "y.csv", ["id"], [[]]) == b"id\n"


def test_the_writer_counts(tmp_path: Path) -> None:
    columns = [column("a", pa.string())]
    writer = new_part_writer(tmp_path / "x.csv", columns, OPTIONS)
    assert writer.tell() == 2
    writer.write(batch(columns, ["x", "y"]))
    assert (writer.tell(), writer.rows) == (6, 2)
    sliced = batch(columns, ["one", "two", "three"]).slice(1, 1)
    writer.write(sliced)
    writer.close()
    assert (tmp_path / "x.csv").read_bytes() == b"a\nx\ny\ntwo\n"
