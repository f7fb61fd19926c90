"""Random values of every type, as the text that the server reads: hypothesis draws, the server judges."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final
from xml.sax.saxutils import escape

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.golden.postgres_values import Sample

Texts = st.SearchStrategy[str]

_CHARACTERS: Final = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
_WORDS: Final = st.one_of(
    st.text(_CHARACTERS, max_size=12),
    st.text(st.sampled_from("a\\\"',{}()[]<>%\t\r\n é😀N.-"), max_size=12),
)


def integers(low: int, high: int) -> Texts:
    """Spread over the whole range, and dense at its ends and at 0."""
    near = st.one_of(*(st.integers(max(low, at - 9), min(high, at + 9)) for at in (low, 0, high)))
    return st.one_of(st.integers(low, high), near).map(str)


def _bits(count: int) -> Texts:
    return integers(-(2 ** (count - 1)), 2 ** (count - 1) - 1)


def floats(width: int) -> Texts:
    return st.floats(width=width).map(repr)  # type: ignore[arg-type]  # 32 or 64


def decimals(precision: int, scale: int) -> Texts:
    ends = 10**precision - 1
    return st.one_of(integers(-ends, ends).map(lambda n: f"{n}E{-scale}"), st.just("NaN"))


_NUMERIC: Final = st.one_of(
    st.builds(lambda n, e: f"{n}E{e}", st.integers(-(10**50), 10**50), st.integers(-60, 60)),
    st.builds(lambda n, e: f"{n}E{e}", st.integers(-99999, 99999), st.integers(-400, 400)),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "0.000", "-0.0"]),
)


def _date(last: int) -> Texts:
    year = st.one_of(
        st.integers(1, last), st.integers(1960, 2040), st.sampled_from([1, 4, 9999, 10000, last])
    )
    day = st.builds(lambda m, d: f"{m:02d}-{d:02d}", st.integers(1, 12), st.integers(1, 28))
    special = st.sampled_from(["2000-02-29", "1970-01-01", "1969-12-31", "1582-10-15"])
    before = st.builds(lambda y, d: f"{y:04d}-{d} BC", st.integers(1, 4712), day)
    return st.one_of(st.builds(lambda y, d: f"{y:04d}-{d}", year, day), special, before)


_MICROS: Final = st.one_of(
    st.integers(0, 86_400_000_000 - 1),
    st.sampled_from([0, 1, 86_399_999_999]),
    st.integers(0, 86_399).map(lambda s: s * 1_000_000),
)


def _clock(us: int) -> str:
    seconds, micros = divmod(us, 1_000_000)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{micros:06d}"


_TIME: Final = st.one_of(_MICROS.map(_clock), st.just("24:00:00"))
_ENDLESS: Final = st.sampled_from(["infinity", "-infinity"])
_OFFSET: Final = st.builds(
    lambda sign, h, m: f"{sign}{h:02d}:{m:02d}", st.sampled_from("+-"), st.integers(0, 15), st.integers(0, 59)
)


def _stamp(date: str, clock: str, zone: str) -> str:
    day, _, era = date.partition(" ")
    return f"{day} {clock}{zone} {era}".rstrip()


_DATE: Final = st.one_of(_date(5_874_897), _ENDLESS)
_TIMESTAMP: Final = st.one_of(st.builds(_stamp, _date(294_276), _MICROS.map(_clock), st.just("")), _ENDLESS)
_TIMESTAMPTZ: Final = st.one_of(st.builds(_stamp, _date(294_276), _MICROS.map(_clock), _OFFSET), _ENDLESS)
_INTERVAL: Final = st.one_of(
    st.builds(
        lambda m, d, us: f"{m} mons {d} days {us} microseconds",
        _bits(32),
        _bits(32),
        st.one_of(_bits(64), st.integers(-(10**8), 10**8).map(str)),
    ),
    _ENDLESS,
)


def _json(nul: bool) -> Texts:
    word = _WORDS if not nul else st.one_of(_WORDS, st.just("\0"))
    number = st.one_of(st.integers(-(10**20), 10**20), st.floats(allow_nan=False, allow_infinity=False))
    leaf = st.one_of(st.none(), st.booleans(), number, word)
    tree = st.recursive(leaf, lambda t: st.one_of(st.lists(t), st.dictionaries(word, t)), max_leaves=8)
    style = st.sampled_from([(None, ", "), (2, ","), (None, " , ")])
    return st.builds(
        lambda value, how, ascii_: json.dumps(
            value, indent=how[0], separators=(how[1], ": "), ensure_ascii=ascii_
        ),
        tree,
        style,
        st.booleans(),
    )


def quoted(text: str) -> str:
    """As an element of an array or row literal."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def array_of(element: Texts, delimiter: str = ",") -> Texts:
    items = st.lists(st.one_of(element.map(quoted), element.map(quoted), st.just("NULL")), max_size=5)
    return items.map(lambda found: "{" + delimiter.join(found) + "}")


_SQUARE: Final = st.integers(1, 3).flatmap(
    lambda n: st.lists(
        st.lists(st.one_of(_bits(32), st.just("NULL")), min_size=n, max_size=n), min_size=1, max_size=3
    )
)
#: Two dimensions, and one that does not begin at 1.
MANY_DIMENSIONS: Final = st.one_of(
    _SQUARE.map(lambda rows: "{" + ",".join("{" + ",".join(row) + "}" for row in rows) + "}"),
    st.lists(_bits(32), min_size=1, max_size=4).map(lambda v: f"[-2:{len(v) - 3}]={{{','.join(v)}}}"),
)


def range_of(bound: Texts) -> Texts:
    """Half of them end before they begin, which the server judges."""
    end = st.one_of(bound.map(quoted), st.just(""))
    whole = st.builds(
        lambda a, lo, hi, b: f"{a}{lo},{hi}{b}", st.sampled_from("[("), end, end, st.sampled_from("])")
    )
    return st.one_of(whole, st.just("empty"))


def multirange_of(bound: Texts) -> Texts:
    return st.lists(range_of(bound), max_size=3).map(lambda found: "{" + ",".join(found) + "}")


_POINT: Final = st.builds(lambda x, y: f"({x},{y})", floats(64), floats(64))
_HEX: Final = st.binary(max_size=20).map(bytes.hex)
_UINT32: Final = integers(0, 2**32 - 1)
_ADDRESS: Final = st.ip_addresses()


def _masked(strict: bool) -> Texts:
    def text(address: Any, bits: int) -> str:
        bits %= address.max_prefixlen + 1
        if strict:
            shift = address.max_prefixlen - bits
            address = type(address)(int(address) >> shift << shift)
        return f"{address}/{bits}"

    return st.builds(text, _ADDRESS, st.integers(0, 128))


def _points(low: int, shape: str) -> Texts:
    return st.lists(_POINT, min_size=low, max_size=4).map(lambda p: shape.format(",".join(p)))


_LEXEMES: Final = st.lists(
    st.builds(
        lambda word, at: "'" + word.replace("\\", "\\\\").replace("'", "''") + "'" + at,
        st.text(_CHARACTERS, min_size=1, max_size=6),
        st.sampled_from(["", ":1", ":2A,3B", ":16383"]),
    ),
    max_size=4,
).map(" ".join)

#: By name of the column's type; what is missing draws from its sample's values alone.
STRATEGIES: Final[dict[str, Texts]] = {
    "boolean": st.sampled_from(["t", "f"]),
    "smallint": _bits(16),
    "integer": _bits(32),
    "bigint": _bits(64),
    "oid": _UINT32,
    "real": floats(32),
    "double precision": floats(64),
    "numeric": _NUMERIC,
    "numeric(60,30)": decimals(60, 30),
    "numeric(39,0)": decimals(39, 0),
    "numeric(37,-2)": decimals(37, -2),
    "numeric(5,40)": decimals(5, 40),
    "money": _bits(64).map(lambda n: f"{n[:-2]}.{n[-2:]:0>2}" if len(n) > 3 else n),
    "date": _DATE,
    "timestamp": _TIMESTAMP,
    "timestamptz": _TIMESTAMPTZ,
    "timestamp(3)": _TIMESTAMP,
    "timestamp(0) with time zone": _TIMESTAMPTZ,
    "time": _TIME,
    "timetz": st.builds(lambda clock, zone: f"{clock}{zone}", _TIME, _OFFSET),
    "interval": _INTERVAL,
    "interval year to month": _INTERVAL,
    "text": st.one_of(_WORDS, st.text(_CHARACTERS, min_size=200, max_size=300)),
    "varchar": _WORDS,
    "varchar(5)": _WORDS.map(lambda t: t[:5]),
    "char(5)": _WORDS.map(lambda t: t[:5]),
    "char": _WORDS.map(lambda t: t[:1]),
    "bpchar": _WORDS,
    "name": _WORDS,
    '"char"': st.one_of(st.characters(min_codepoint=1, max_codepoint=127), st.just("\\377")),
    "citext": _WORDS,
    "bytea": _HEX.map(lambda h: f"\\x{h}"),
    "uuid": st.uuids().map(str),
    "json": _json(nul=True),
    "jsonb": _json(nul=False),
    "xml": st.text(st.characters(categories=["L", "N", "P", "Zs"]), max_size=9).map(
        lambda t: f"<a>{escape(t)}</a>"
    ),
    "amount": integers(0, 10**10 - 1).map(lambda n: f"{n}E-2"),
    "cost": integers(0, 10**10 - 1).map(lambda n: f"{n}E-2"),
    "code": _WORDS.map(lambda t: t[:4]),
    "label": _WORDS,
    "pair": st.builds(
        lambda a, b: f"({a},{b})",
        st.one_of(_bits(32), st.just("")),
        st.one_of(_WORDS.map(quoted), st.just("")),
    ),
    "hstore": st.lists(
        st.builds(lambda k, v: f"{quoted(k)}=>{v}", _WORDS, st.one_of(_WORDS.map(quoted), st.just("NULL"))),
        max_size=3,
    ).map(",".join),
    "ltree": st.lists(st.text(st.sampled_from("aB9_"), min_size=1, max_size=4), max_size=4).map(".".join),
    "bit(3)": st.text(st.sampled_from("01"), min_size=3, max_size=3),
    "bit varying": st.text(st.sampled_from("01"), max_size=70),
    "inet": st.one_of(_masked(strict=False), _ADDRESS.map(str)),
    "cidr": _masked(strict=True),
    "macaddr": st.binary(min_size=6, max_size=6).map(lambda b: b.hex(":")),
    "macaddr8": st.binary(min_size=8, max_size=8).map(lambda b: b.hex(":")),
    "point": _POINT,
    "line": st.builds(lambda a, b, c: f"{{{a},{b},{c}}}", floats(64), floats(64), floats(64)),
    "lseg": st.builds(lambda p, q: f"[{p},{q}]", _POINT, _POINT),
    "box": st.builds(lambda p, q: f"{p},{q}", _POINT, _POINT),
    "path": st.one_of(_points(1, "[{}]"), _points(1, "({})")),
    "polygon": _points(1, "({})"),
    "circle": st.builds(lambda p, r: f"<{p},{r}>", _POINT, floats(64)),
    "int4range": range_of(_bits(32)),
    "int8range": range_of(_bits(64)),
    # ANALYZE fails on a range whose length no double holds
    "numrange": range_of(st.one_of(decimals(60, 20), st.sampled_from(["Infinity", "-Infinity"]))),
    "tsrange": range_of(_TIMESTAMP),
    "tstzrange": range_of(_TIMESTAMPTZ),
    "daterange": range_of(_DATE),
    "span": range_of(floats(64)),
    "int4multirange": multirange_of(_bits(32)),
    "tstzmultirange": multirange_of(_TIMESTAMPTZ),
    "tsvector": _LEXEMES,
    "pg_lsn": st.builds(lambda a, b: f"{a:X}/{b:X}", st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    "xid": _UINT32,
    "cid": _UINT32,
    "xid8": integers(0, 2**64 - 1),
    "tid": st.builds(lambda a, b: f"({a},{b})", _UINT32, integers(0, 65535)),
    "int2vector": st.lists(_bits(16), max_size=4).map(" ".join),
    "oidvector": st.lists(_UINT32, max_size=4).map(" ".join),
    "refcursor": _WORDS,
    "int[][]": st.one_of(MANY_DIMENSIONS, array_of(_bits(32))),
    "grid": array_of(_bits(32)),
    "grid[]": array_of(array_of(_bits(32))),
}

#: Types that behave as another one does, where each costs time.
VARIANTS: Final = re.compile(
    r"numeric\((1|18|19|38|60|37|5),.*|timestamp\(.*|interval y.*|(var|bp)?char|cost|code|reg(?!class).*"
    r"|(int8|num|ts|tstz|date)range|tstzmultirange|polygon|lseg|path|txid_snapshot"
)

_SHORT: Final = {"int2": "smallint", "int4": "integer", "int8": "bigint", "float8": "double precision"}


def strategy(sample: Sample) -> Texts:
    """Values of a sample's type: drawn, or its own edge values."""
    name = sample.type
    found = STRATEGIES.get(name)
    if found is None and name.startswith("numeric("):
        precision, scale = name.removeprefix("numeric(").removesuffix(")").removesuffix(")[]").split(",")
        found = decimals(int(precision), int(scale))
        found = array_of(found) if name.endswith("[]") else found
    elif found is None and name.endswith("[]"):
        element = name.removesuffix("[]")
        base = STRATEGIES.get(_SHORT.get(element, element))
        if element == "box":
            return array_of(STRATEGIES["box"], ";")
        if element == "int4":
            return st.one_of(array_of(_bits(32)), array_of(_bits(32)), MANY_DIMENSIONS)
        found = None if base is None else array_of(base)
    edges = st.sampled_from(list(sample.values))
    return edges if found is None else st.one_of(found, found, found, edges)


def drawn(values: Texts, count: int, number: int) -> list[str]:
    """About ``count`` values; ``number`` is the seed."""
    found: list[str] = []

    @seed(number)
    @settings(
        max_examples=-(-count // 8) + 1,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(values, min_size=8, max_size=8))
    def collect(some: Sequence[str]) -> None:
        found.extend(some)

    collect()
    return found
