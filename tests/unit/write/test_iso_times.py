"""Every date and timestamp that a file's type holds has one text, which is read back as the same value."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rivet_dagster.engine.types.iso_times import parse_times, time_text

INT32 = st.one_of(st.none(), st.integers(-12_000_000, 2**31 - 1), st.integers(-900_000, 12_000_000))
INT64 = st.one_of(st.none(), st.integers(-(10**18), 2**63 - 1), st.integers(-(10**17), 10**17))


@given(st.lists(INT32))
def test_dates(days: list[int | None]) -> None:
    array = pa.array(days, pa.int32()).view(pa.date32())
    assert parse_times(time_text(array), pa.date32()).equals(array)


@given(st.lists(INT64), st.sampled_from([None, "UTC"]))
def test_timestamps(micros: list[int | None], zone: str | None) -> None:
    kind = pa.timestamp("us", zone)
    array = pa.array(micros, pa.int64()).view(kind)
    assert parse_times(time_text(array), kind).equals(array)


#: Arrow writes the part of a second before it, in 1677, and does not read it.
FIRST_NS = -9_223_372_036 * 10**9


@given(st.lists(st.none() | st.integers(FIRST_NS, 2**63 - 1)), st.sampled_from([None, "UTC"]))
@example([1_709_210_096_000_000_001, -1], "UTC")
def test_nanoseconds(nanos: list[int | None], zone: str | None) -> None:
    kind = pa.timestamp("ns", zone)
    array = pa.array(nanos, pa.int64()).view(kind)
    text = time_text(array)
    assert parse_times(text, kind).equals(array)
    if nanos[:1] == [1_709_210_096_000_000_001]:
        assert text.to_pylist() == ["2024-02-29T12:34:56.000000001Z", "1969-12-31T23:59:59.999999999Z"]


@pytest.mark.parametrize("text", ["-0001-01-01T00:00:00.000000000", "12024-01-01T00:00:00.000000000"])
def test_years_that_nanoseconds_do_not_reach(text: str) -> None:
    with pytest.raises(pa.ArrowInvalid):
        parse_times(pa.array([text]), pa.timestamp("ns"))


@given(st.lists(st.dates()))
def test_dates_that_python_has_are_its_text(days: list[dt.date]) -> None:
    assert time_text(pa.array(days, pa.date32())).to_pylist() == [day.isoformat() for day in days]


@pytest.mark.parametrize("text", ["", "x", "infinity", "-0001", "-0001-13-01", "99999-02-30", "2024-02-30"])
def test_what_is_no_date(text: str) -> None:
    with pytest.raises(pa.ArrowInvalid):
        parse_times(pa.array(["2024-02-29", text]), pa.date32())
