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
    """type: column type. oracle: SQL over ``v``. arrow: type in the file. since: first version.

    extension: what brings the type. made: the values are SQL expressions, as the type reads no text.
    """

    type: str
    arrow: str
    values: Sequence[str]
    oracle: str = _OUTPUT
    fidelity: str = "exact"
    since: int = 15
    extension: str | None = None
    made: bool = False

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
    "CREATE DOMAIN label_2 AS label",
    "CREATE DOMAIN feeling AS mood",
    "CREATE DOMAIN two AS pair",
    "CREATE DOMAIN span_2 AS int4range",
    "CREATE DOMAIN prices AS cost[]",
    "CREATE TYPE nested AS (p pair, q pair[], at timestamptz, f float8, b bytea, i interval)",
    "CREATE TABLE measured AS SELECT g % 3 AS a, g % 3 AS b FROM generate_series(1, 100) g",
    "CREATE STATISTICS both_columns ON a, b FROM measured",
    "ANALYZE measured",
    'CREATE SCHEMA "odd ""schema"',
    'CREATE TYPE "odd ""schema"."t,y[pe" AS ENUM (\'x\')',
)
#: The extensions with types that come with PostgreSQL, and those that some servers have beside them.
CONTRIB: Final = (
    *("hstore", "citext", "ltree", "cube", "seg", "isn", "intarray", "lo", "earthdistance"),
    *("btree_gist", "pg_trgm"),
)
EXTENSIONS: Final = (*CONTRIB, "vector", "postgis")

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
    Sample("label_2", "string", ("AbC", ""), fidelity="text"),
    Sample("feeling", "string", ("so so", ""), fidelity="compatible"),
    Sample("two", "string", ("(1,a)",), fidelity="text"),
    Sample("span_2", "string", ("[1,5)",), fidelity="text"),
    Sample(
        "nested",
        "string",
        ('("(1,a)","{""(2,)"",NULL}","2024-01-01 02:00+02",0.1,"\\\\x00ff","1 mon -1 day")', "(,,,,,)"),
        fidelity="text",
    ),
    Sample("information_schema.cardinal_number", "int32", ("0", "2147483647")),
    Sample("information_schema.character_data", "string", ("", "é")),
    Sample("information_schema.sql_identifier", "string", ("x",), fidelity="compatible"),
    Sample("information_schema.time_stamp", "timestamp[us, tz=UTC]", ("2024-01-01 00:00:00.12+00",), _MICROS),
    Sample("information_schema.yes_or_no", "string", ("YES",)),
    *(
        Sample(kind, "string", values, fidelity="text", extension="hstore" if kind == "hstore" else "ltree")
        for kind, values in (
            ("hstore", ('"a"=>"1", "b"=>NULL', "")),
            ("ltree", ("a.b.c", "")),
            ("lquery", ("a.*{1,2}.!b|c", "*")),
            ("ltxtquery", ("a & (b* | !c%)",)),
        )
    ),
    *(
        Sample(kind, "string", values, fidelity="text", extension=extension)
        for extension, kind, values in (
            ("cube", "cube", ("(0.1,-2),(1e+300,3)", "(1)", "()")),
            ("earthdistance", "earth", ("(6378168,0,0)",)),
            ("seg", "seg", ("1.50", "1.5 .. 2", "~1.0", "< 3")),
            ("intarray", "query_int", ("1&(2|!3)",)),
            ("isn", "ean13", ("978-0-11-000533-1",)),
            ("isn", "isbn13", ("978-0-11-000533-1",)),
            ("isn", "ismn13", ("979-0-060-11561-5",)),
            ("isn", "issn13", ("977-1436-452-00-8",)),
            ("isn", "isbn", ("0-11-000533-3",)),
            ("isn", "ismn", ("M-060-11561-5",)),
            ("isn", "issn", ("1436-4522",)),
            ("isn", "upc", ("220356483481",)),
            ("vector", "vector", ("[1,-2.5,3e-07]",)),
            ("vector", "vector(2)", ("[0.1,3]",)),
            ("vector", "halfvec", ("[1,65504]",)),
            ("vector", "sparsevec", ("{1:1.5,3:-2}/5",)),
            ("postgis", "geometry", ("SRID=4326;POINT(1.5 -2)", "POLYGON EMPTY", "POINT ZM (1 2 3 4)")),
            ("postgis", "geometry(Point,4326)", ("SRID=4326;POINT(1.5 -2)",)),
            ("postgis", "geography", ("SRID=4326;LINESTRING(0 0,1 1)",)),
            ("postgis", "box2d", ("BOX(0 0,1 1)",)),
            ("postgis", "box3d", ("BOX3D(0 0 0,1 1 1)",)),
            ("postgis", "spheroid", ('SPHEROID["WGS 84",6378137,298.257223563]',)),
        )
    ),
    Sample("lo", "int64", ("4294967295",), "v::oid::int8::text", fidelity="compatible", extension="lo"),
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
    *(
        Sample(f"{kind}multirange", "string", values, fidelity="text")
        for kind, values in (
            ("int8", ("{[-9223372036854775808,0)}",)),
            ("num", ("{[1.10,2.20],(3,)}",)),
            ("ts", ("{[2024-01-01,2024-02-01 12:00)}",)),
            ("date", ("{[2024-01-01,2024-02-01),[0044-03-15 BC,0001-01-01 BC)}",)),
            ("span_", ("{[0.1,1e300)}",)),
        )
    ),
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
            ("regoper", "||/"),
            *(("regclass", "pg_class"), ("regtype", "integer"), ("regproc", "now"), ("regrole", "postgres")),
            *(("regprocedure", "now()"), ("regnamespace", "pg_catalog"), ("regconfig", "english")),
            *(
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
    Sample("prices", "list<item: decimal128(10, 2)>", ("{0.01,NULL}", "{}")),
)

#: Arrays whose columns are text as a whole.
WHOLE_ARRAYS: Final = (
    Sample("int[][]", "string", ("{{1,2},{3,NULL}}", "{}", "{5}", "[0:1]={1,2}"), fidelity="text"),
    Sample("grid[]", "string", ('{"{1,2}",NULL}',), fidelity="text"),
)

#: Types that read no text, of values that the server itself made.
MADE: Final = (
    Sample("pg_node_tree", "string", ("(SELECT adbin FROM pg_attrdef LIMIT 1)",), fidelity="text", made=True),
    *(
        Sample(
            kind,
            "string",
            (f"(SELECT {column} FROM pg_statistic_ext_data WHERE {column} IS NOT NULL LIMIT 1)",),
            fidelity="text",
            made=True,
        )
        for kind, column in (
            ("pg_ndistinct", "stxdndistinct"),
            ("pg_dependencies", "stxddependencies"),
            ("pg_mcv_list", "stxdmcv"),
        )
    ),
)
