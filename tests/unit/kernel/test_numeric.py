"""numeric -> decimal128 and decimal256 against Python's Decimal: exact, or refused; never rounded."""

from __future__ import annotations

import random
from decimal import Context, Decimal, localcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivet_dagster.engine.errors import RefusalError
from tests.unit.kernel.stream import numeric, numeric_bytes, row, stream, values

WIDE = Context(prec=200)


def fits(value: Decimal, precision: int, scale: int) -> bool:
    with localcontext(WIDE):
        scaled = value.scaleb(scale)
        return scaled == scaled.to_integral_value() and abs(scaled) < Decimal(10) ** precision


def got(value: Decimal, precision: int, scale: int, pad: tuple[int, int] = (0, 0)) -> Decimal | None:
    """The decoded value, or None when it was refused as not fitting."""
    refusal: RefusalError | None = None
    found: list[Decimal] = []
    try:
        found = values([numeric(precision, scale)], stream([row(numeric_bytes(value, pad=pad))]))
    except RefusalError as error:
        refusal = error
    if refusal is None:
        return found[0]
    assert refusal.code == "RIVET_SOURCE_VALUE_UNREPRESENTABLE"
    assert f"numeric({precision},{scale})" in refusal.message
    return None


def random_decimal(rng: random.Random, precision: int, scale: int) -> Decimal:
    """Near the type's own shape: some fit, some have a digit too many on either side."""
    digits = rng.randint(1, precision + 2)
    number = rng.randrange(10 ** (digits - 1), 10**digits)
    shift = rng.choice([-scale, -scale, -scale - 1, -scale + 1, rng.randint(-scale - 3, 3)])
    if rng.random() < 0.3:  # zeros at the end, in whole groups and in part
        number *= 10 ** rng.randint(0, 9)
    with localcontext(WIDE):
        return Decimal(number).scaleb(shift) * rng.choice([1, -1])


@pytest.mark.parametrize("precision", [1, 2, 4, 5, 9, 12, 18, 19, 20, 37, 38, 39, 57, 75, 76])
def test_random_values_against_decimal(precision: int) -> None:
    rng = random.Random(precision)
    for scale in sorted({0, 1, 2, 3, 4, 5, 8, 17, precision // 2, precision - 1, precision}):
        if scale > precision:
            continue
        cases = [random_decimal(rng, precision, scale) for _ in range(400)]
        good = [v for v in cases if fits(v, precision, scale)]
        assert values([numeric(precision, scale)], stream(row(numeric_bytes(v)) for v in good)) == good
        for value in [v for v in cases if not fits(v, precision, scale)][:40]:
            assert got(value, precision, scale) is None


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(st.integers(-(10**40), 10**40), st.integers(-(10**78), 10**78)),
    st.one_of(st.integers(-45, 6), st.integers(-80, 40)),
    st.integers(1, 76).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p))),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_any_value_any_type(number: int, shift: int, shape: tuple[int, int], pad: tuple[int, int]) -> None:
    with localcontext(WIDE):
        value = Decimal(number).scaleb(shift)
    expected = value if fits(value, *shape) else None
    assert got(value, *shape, pad=pad) == expected


SCALES = (0, 1, 2, 3, 4, 5, 10, 19, 35, 36, 37, 38, 73, 74, 75, 76)


@pytest.mark.parametrize(("most", "scale"), [(m, s) for m in (38, 76) for s in SCALES if s <= m])
def test_the_ends_of_the_range(most: int, scale: int) -> None:
    with localcontext(WIDE):
        largest = Decimal(10**most - 1).scaleb(-scale)
        smallest = Decimal(1).scaleb(-scale)
        over = Decimal(10**most).scaleb(-scale)
        finer = Decimal(1).scaleb(-scale - 1)
    for value in (largest, smallest):
        assert got(value, most, scale) == value
        assert got(value.copy_negate(), most, scale) == value.copy_negate()
    assert got(over, most, scale) is None
    assert got(over.copy_negate(), most, scale) is None
    assert got(finer, most, scale) is None


@pytest.mark.parametrize("precision", [10, 50])
def test_zero_in_its_forms(precision: int) -> None:
    for pad in [(0, 0), (1, 0), (0, 4), (9, 9)]:
        assert got(Decimal(0), precision, 4, pad=pad) == 0


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("precision", [10, 76])
def test_special_values_are_named(value: str, precision: int) -> None:
    names = {"NaN": "NaN", "Infinity": "infinity", "-Infinity": "-infinity"}
    with pytest.raises(RefusalError, match=names[value]):
        values([numeric(precision, 2)], stream([row(numeric_bytes(Decimal(value)))]))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0" * 7,
        b"\0\1" + b"\0" * 6,
        b"\0\0\0\0\0\0\0\0\0\0",
        b"\xff\xff" + b"\0" * 6,
        b"\0\1\0\0\0\0\0\0\x27\x10",  # a group of 10000
        b"\0\2\0\0\0\0\0\0\xff\xff\0\1",
        b"\0\6\0\0\0\0\0\0" + b"\0\1" * 5 + b"\x27\x10",
        b"\0\0\0\0\x80\x00\0\0",  # an unknown sign
        b"\0\0\0\0\0\0\x40\x00",  # a display scale out of range
    ],
)
@pytest.mark.parametrize("precision", [38, 76])
def test_broken_numeric(raw: bytes, precision: int) -> None:
    with pytest.raises(RefusalError) as caught:
        values([numeric(precision, 4)], stream([row(raw)]))
    assert caught.value.code == "RIVET_SOURCE_UNDECODABLE"


@pytest.mark.parametrize("precision", [38, 76])
def test_extreme_weights(precision: int) -> None:
    for weight in (-32768, -3000, 3000, 32767):
        raw = b"\0\1" + weight.to_bytes(2, "big", signed=True) + b"\0\0\0\0\0\1"
        with pytest.raises(RefusalError, match="does not fit"):
            values([numeric(precision, 19)], stream([row(raw)]))
