"""Edge values of every PostgreSQL type that a table can hold, as SQL literals.

``Sample.values`` are cast to the type by the server. ``oracle`` is the server's own rendering of one
value ``v`` and never the expression that the product selects. NULL is added to every sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_OUTPUT: Final = "format('%s', v)"  # calls the type's output function, unlike a cast
_MICROS: Final = "trunc(extract(epoch FROM v) * 1000000)::text"


@dataclass(frozen=True, slots=True)
class Sample:
    """type: column type. oracle: SQL over ``v``. arrow: type in the file. since: first version."""

    type: str
    arrow: str
    values: Sequence[str]
    oracle: str = _OUTPUT
    fidelity: str = "exact"
    since: int = 15

    @property
    def id(self) -> str:
        return self.type


#: What the tests create before the samples.
SETUP: Final = (
    "CREATE TYPE mood AS ENUM ('sad', 'so so', 'it''s \"ok\"', '')",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE TYPE span AS RANGE (subtype = float8)",
    "CREATE DOMAIN amount AS numeric(10,2) CHECK (VALUE >= 0)",
    "CREATE DOMAIN cost AS amount",
    "CREATE DOMAIN code AS char(4)",
    "CREATE DOMAIN label AS citext",
    "CREATE DOMAIN grid AS int[]",
    'CREATE SCHEMA "odd ""schema"',
    'CREATE TYPE "odd ""schema"."t,y[pe" AS ENUM (\'x\')',
)
EXTENSIONS: Final = ("hstore", "citext", "ltree")

_INT4: Final = ("0", "1", "-1", "2147483647", "-2147483648")
_TEXT: Final = (
    "",
    " ",
    "a",
    "é",
    "😀 'quote' \"double\"",
    "NULL",
    "a\tb\nc\rd",
    "\\N\\",
    "x" * 3000,
    "%s {x}",
)
_DATES: Final = (
    *("1970-01-01", "1969-12-31", "2000-01-01", "2024-02-29", "0001-01-01", "0001-12-31 BC"),
    *("4713-01-01 BC", "9999-12-31", "10000-01-01", "5874897-12-31"),
)
_STAMPS: Final = (
    *(
        "1970-01-01 00:00:00",
        "1969-12-31 23:59:59.999999",
        "2000-01-01 00:00:00",
        "9999-12-31 23:59:59.999999",
    ),
    *("4713-01-01 00:00:00 BC", "0001-01-01 00:00:00.000001", "294246-12-31 23:59:59.999999"),
)
_INTERVALS: Final = (
    *("0", "1 mon -1 day 00:00:00.000001", "178000000 years", "-1 year -2 mons +3 days -04:05:06.7"),
    *("1 day", "24:00:00", "00:00:00.000001", "-00:00:00.000001", "100 years 11 mons"),
)
_NUMERIC: Final = (
    *("0", "1", "-1", "0.000067", "12345678901234567890123456789.123456789012", "1e100", "-0.10"),
    *("1e-1000", "1.000000000000000000000000000000000000001", "NaN", "Infinity", "-Infinity", "100.00"),
)
_JSON: Final = (
    *('{"a":1.10,"a":2,"n":12345678901234567890.123}', "[]", "null", '"\\u00e9"', '""', "1e400"),
    *(' {"z" : [1, 2.50, {"k": null}] } ', '{"😀":"\\ud83d\\ude00"}', "-0.0", "true"),
)
_FLOATS: Final = ("0", "-0", "1.5", "NaN", "Infinity", "-Infinity", "0.1")
_UUIDS: Final = (
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
)

SCALARS: Final = (
    Sample("boolean", "bool", ("t", "f")),
    Sample("smallint", "int16", ("0", "-32768", "32767", "-1")),
    Sample("integer", "int32", _INT4),
    Sample("bigint", "int64", ("0", "9223372036854775807", "-9223372036854775808", "-1")),
    Sample("oid", "int64", ("0", "4294967295", "2147483648"), fidelity="compatible"),
    Sample("real", "float", (*_FLOATS, "3.4028235e38", "1e-45", "-1.17549435e-38", "16777217")),
    Sample("double precision", "double", (*_FLOATS, "1.7976931348623157e308", "5e-324", "9007199254740993")),
    Sample("numeric", "string", (*_NUMERIC, "1e-16383", "9e131071"), fidelity="text"),
    Sample("numeric(1,0)", "decimal128(1, 0)", ("0", "9", "-9")),
    Sample(
        "numeric(10,2)", "decimal128(10, 2)", ("0", "99999999.99", "-99999999.99", "0.01", "-0.01", "10000")
    ),
    Sample("numeric(18,4)", "decimal128(18, 4)", ("99999999999999.9999", "-0.0001", "1234.5", "10000.0001")),
    Sample("numeric(19,0)", "decimal128(19, 0)", ("9999999999999999999", "-9223372036854775809")),
    Sample("numeric(38,0)", "decimal128(38, 0)", ("9" * 38, "-" + "9" * 38, "1" + "0" * 37, "0")),
    Sample("numeric(38,38)", "decimal128(38, 38)", ("0." + "9" * 38, "-0." + "0" * 37 + "1", "0")),
    Sample("numeric(38,19)", "decimal128(38, 19)", ("9" * 19 + "." + "9" * 19, "-0." + "0" * 18 + "1")),
    Sample("numeric(38,9)", "decimal128(38, 9)", ("9" * 29 + "." + "9" * 9, "1", "-10000.5")),
    Sample("numeric(3,-2)", "decimal128(5, 0)", ("99900", "-99900", "100", "0"), fidelity="compatible"),
    Sample("numeric(2,5)", "decimal128(5, 5)", ("0.00099", "-0.00001", "0"), fidelity="compatible"),
    Sample("numeric(39,0)", "string", ("9" * 39, "-1", "NaN"), fidelity="text"),
    Sample("numeric(60,30)", "string", ("9" * 30 + "." + "9" * 30, "1.5"), fidelity="text"),
    Sample("numeric(37,-2)", "string", ("9" * 37 + "00", "100"), fidelity="text"),
    Sample("numeric(5,40)", "string", ("0." + "0" * 35 + "99999",), fidelity="text"),
    Sample(
        "money",
        "string",
        ("0", "92233720368547758.07", "-92233720368547758.08", "-0.01", "1234567.80"),
        "format('%s', v::numeric)",
        fidelity="text",
    ),
    Sample("date", "date32[day]", _DATES, "(v - date '1970-01-01')::text"),
    Sample("timestamp", "timestamp[us]", _STAMPS, _MICROS),
    Sample(
        "timestamptz",
        "timestamp[us, tz=UTC]",
        (
            *(s.replace(" BC", "+00 BC") for s in _STAMPS),
            "2024-03-31 02:30:00+02",
            "2024-10-27 02:30:00.123456-11:30",
        ),
        _MICROS,
    ),
    Sample("timestamp(3)", "timestamp[us]", ("2024-01-01 00:00:00.123", "1969-12-31 23:59:59.999"), _MICROS),
    Sample("timestamp(0) with time zone", "timestamp[us, tz=UTC]", ("2024-01-01 00:00:00+00",), _MICROS),
    Sample("time", "time64[us]", ("00:00:00", "23:59:59.999999", "12:00:00.000001"), _MICROS),
    Sample("timetz", "string", ("00:00:00+00", "24:00:00-15:59", "23:59:59.999999+15:59"), fidelity="text"),
    Sample("interval", "string", _INTERVALS, fidelity="text"),
    Sample("interval", "string", ("infinity", "-infinity"), fidelity="text", since=17),
    Sample("interval year to month", "string", ("1 year 2 mons",), fidelity="text"),
    Sample("text", "string", _TEXT),
    Sample("varchar", "string", _TEXT),
    Sample("varchar(5)", "string", ("abcde", "", "é😀")),
    Sample("char(5)", "string", ("", "a", "a b", "é", "abcde")),
    Sample("char", "string", ("x", "é")),
    Sample("bpchar", "string", ("a  ", "", "b")),
    Sample("name", "string", ("", "pg_class", "é" * 31), fidelity="compatible"),
    Sample('"char"', "string", ("x", "", "~"), fidelity="text"),
    Sample("citext", "string", ("AbC", "", "é"), fidelity="text"),
    Sample("bytea", "binary", ("", "\\x00", "\\xdeadbeef", "\\x" + "ff" * 3000), "encode(v, 'hex')"),
    Sample("uuid", "extension<arrow.uuid>", _UUIDS),
    Sample("json", "extension<arrow.json>", (*_JSON, '{"a":"\\u0000"}')),
    Sample("jsonb", "extension<arrow.json>", _JSON),
    Sample("jsonpath", "string", ("$.a[*] ? (@ > 1)",), fidelity="text"),
    Sample(
        "xml",
        "string",
        ("<a/>", '<?xml version="1.0"?><r>é&amp;</r>', "text"),
        "xmlserialize(CONTENT v AS text)",
        fidelity="text",
    ),
    Sample("mood", "string", ("sad", "so so", 'it\'s "ok"', ""), fidelity="compatible"),
    Sample('"odd ""schema"."t,y[pe"', "string", ("x",), fidelity="compatible"),
    Sample("amount", "decimal128(10, 2)", ("0", "99999999.99")),
    Sample("cost", "decimal128(10, 2)", ("0.01",)),
    Sample("code", "string", ("a", "abcd")),
    Sample("label", "string", ("AbC",), fidelity="text"),
    Sample("pair", "string", ('(1,"a ""b"" , c")', "(,)", "(-1,)"), fidelity="text"),
    Sample("hstore", "string", ('"a"=>"1", "b"=>NULL', ""), fidelity="text"),
    Sample("ltree", "string", ("a.b.c", ""), fidelity="text"),
    Sample("lquery", "string", ("a.*{1,2}.b|c", "*"), fidelity="text"),
    Sample("bit(3)", "string", ("101", "000"), fidelity="text"),
    Sample("bit varying", "string", ("", "1", "01" * 100), fidelity="text"),
    Sample(
        "inet",
        "string",
        ("10.0.0.1", "10.0.0.1/24", "::1", "fe80::1/64"),
        "host(v) || '/' || masklen(v)",
        fidelity="text",
    ),
    Sample("cidr", "string", ("10.0.0.0/8", "2001:db8::/32"), fidelity="text"),
    Sample("macaddr", "string", ("08:00:2b:01:02:03",), fidelity="text"),
    Sample("macaddr8", "string", ("08:00:2b:01:02:03:04:05",), fidelity="text"),
    Sample("point", "string", ("(1.5,-2)", "(NaN,Infinity)", "(0.1,1e300)"), fidelity="text"),
    Sample("line", "string", ("{1,-1,0}",), fidelity="text"),
    Sample("lseg", "string", ("[(0,0),(1,1)]",), fidelity="text"),
    Sample("box", "string", ("(2,2),(0,0)",), fidelity="text"),
    Sample("path", "string", ("[(0,0),(1,1)]", "((0,0),(1,1))"), fidelity="text"),
    Sample("polygon", "string", ("((0,0),(1,1),(2,0))",), fidelity="text"),
    Sample("circle", "string", ("<(0,0),1.5>",), fidelity="text"),
    Sample("int4range", "string", ("[1,5)", "empty", "(,)", "[1,]"), fidelity="text"),
    Sample("int8range", "string", ("[-9223372036854775808,0)",), fidelity="text"),
    Sample("numrange", "string", ("[1.10,2.20]",), fidelity="text"),
    Sample("tsrange", "string", ("[2024-01-01,2024-02-01 12:00)",), fidelity="text"),
    Sample("tstzrange", "string", ("[2024-01-01 00:00+02,infinity)",), fidelity="text"),
    Sample("daterange", "string", ("[2024-01-01,2024-02-01)", "[0044-03-15 BC,)"), fidelity="text"),
    Sample("span", "string", ("[0.1,1e300)",), fidelity="text"),
    Sample("int4multirange", "string", ("{[1,2),[5,6)}", "{}"), fidelity="text"),
    Sample("tstzmultirange", "string", ("{[2024-01-01 00:00+00,2024-01-02 00:00+00)}",), fidelity="text"),
    Sample("tsvector", "string", ("'a':1A 'b''c':2", ""), fidelity="text"),
    Sample("tsquery", "string", ("'a' & !'b' | 'c':*", ""), fidelity="text"),
    Sample("pg_lsn", "string", ("0/0", "FFFFFFFF/FFFFFFFF"), fidelity="text"),
    Sample("pg_snapshot", "string", ("10:20:10,14,15",), fidelity="text"),
    Sample("txid_snapshot", "string", ("10:20:10,14,15",), fidelity="text"),
    Sample("xid", "string", ("0", "4294967295"), fidelity="text"),
    Sample("xid8", "string", ("18446744073709551615",), fidelity="text"),
    Sample("cid", "string", ("4294967295",), fidelity="text"),
    Sample("tid", "string", ("(4294967295,65535)",), fidelity="text"),
    Sample("int2vector", "string", ("1 2 -3", ""), fidelity="text"),
    Sample("oidvector", "string", ("1 4294967295", ""), fidelity="text"),
    Sample("refcursor", "string", ("c",), fidelity="text"),
    Sample("aclitem", "string", ("=r/postgres",), fidelity="text"),
    *(
        Sample(kind, "int64", (value,), "v::oid::int8::text", fidelity="compatible")
        for kind, value in (
            *(("regclass", "pg_class"), ("regtype", "integer"), ("regproc", "now"), ("regrole", "postgres")),
            *(("regprocedure", "now()"), ("regnamespace", "pg_catalog"), ("regconfig", "english")),
            *(
                ("regoper", "||/"),
                ("regoperator", "+(integer,integer)"),
                ("regdictionary", "simple"),
                ("regcollation", '"C"'),
            ),
        )
    ),
)

#: Array types: ``oracle`` is over one element ``v``.
ARRAYS: Final = (
    Sample("boolean[]", "list<item: bool>", ("{}", "{t,f,NULL}", "{NULL}")),
    Sample("int2[]", "list<item: int16>", ("{}", "{-32768,NULL,32767}")),
    Sample("int4[]", "list<item: int32>", ("{}", "{1,NULL,-2147483648}", "{0}")),
    Sample("int8[]", "list<item: int64>", ("{9223372036854775807}", "{NULL,NULL}")),
    Sample("oid[]", "list<item: int64>", ("{4294967295}",), fidelity="compatible"),
    Sample("real[]", "list<item: float>", ("{1.5,NaN,-0}",)),
    Sample("float8[]", "list<item: double>", ("{0.1,Infinity}",)),
    Sample("numeric(10,2)[]", "list<item: decimal128(10, 2)>", ("{0.01,NULL,-99999999.99}", "{}")),
    Sample("numeric[]", "list<item: string>", ("{1e40,NaN,0.10}", "{}"), fidelity="text"),
    Sample("date[]", "list<item: date32[day]>", ("{1970-01-02,NULL}",), "(v - date '1970-01-01')::text"),
    Sample("timestamp[]", "list<item: timestamp[us]>", ('{"1969-12-31 23:59:59.5"}',), _MICROS),
    Sample("timestamptz[]", "list<item: timestamp[us, tz=UTC]>", ('{"2024-01-01 00:00:00+00"}',), _MICROS),
    Sample("time[]", "list<item: time64[us]>", ("{23:59:59.999999}",), _MICROS),
    Sample("interval[]", "list<item: string>", ('{"1 mon",NULL}',), fidelity="text"),
    Sample("text[]", "list<item: string>", ('{"",NULL,"NULL","a,b",é}', "{}")),
    Sample("varchar(3)[]", "list<item: string>", ("{abc}",)),
    Sample("char(3)[]", "list<item: string>", ("{a,NULL}",)),
    Sample("name[]", "list<item: string>", ("{x}",), fidelity="compatible"),
    Sample('"char"[]', "list<item: string>", ("{x}",), fidelity="text"),
    Sample("citext[]", "list<item: string>", ("{AbC}",), fidelity="text"),
    Sample("bytea[]", "list<item: binary>", ('{"\\\\x00ff",NULL}',), "encode(v, 'hex')"),
    Sample("uuid[]", "list<item: extension<arrow.uuid>>", ("{" + _UUIDS[2] + ",NULL}",)),
    Sample("json[]", "list<item: extension<arrow.json>>", ('{"{\\"a\\": 1.10}",NULL}',)),
    Sample("jsonb[]", "list<item: extension<arrow.json>>", ('{"{\\"a\\": 1.10}",NULL}',)),
    Sample("mood[]", "list<item: string>", ('{sad,NULL,""}',), fidelity="compatible"),
    Sample("amount[]", "list<item: decimal128(10, 2)>", ("{0.01}",)),
    Sample("code[]", "list<item: string>", ("{a,abcd}",)),
    Sample("pair[]", "list<item: string>", ('{"(1,a)",NULL}',), fidelity="text"),
    Sample(
        "inet[]", "list<item: string>", ("{10.0.0.1,NULL}",), "host(v) || '/' || masklen(v)", fidelity="text"
    ),
    Sample("money[]", "list<item: string>", ("{1.50}",), "format('%s', v::numeric)", fidelity="text"),
    Sample("int4range[]", "list<item: string>", ('{"[1,5)"}',), fidelity="text"),
    Sample("regclass[]", "list<item: int64>", ("{pg_class}",), "v::oid::int8::text", fidelity="compatible"),
    Sample("grid", "list<item: int32>", ("{1,2}", "{}")),
)

#: Arrays whose columns are text as a whole.
WHOLE_ARRAYS: Final = (
    Sample("int[][]", "string", ("{{1,2},{3,NULL}}", "{}", "{5}", "[0:1]={1,2}"), fidelity="text"),
    Sample("grid[]", "string", ('{"{1,2}",NULL}',), fidelity="text"),
)
