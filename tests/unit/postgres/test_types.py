"""The type decision away from a server: modifiers, chains of domains and arrays, refusals, the page."""

from __future__ import annotations

import pyarrow as pa
import pytest
from msgspec.structs import replace

from rivet_dagster.engine.errors import UsageError
from rivet_dagster.engine.sources.postgres import types_doc
from rivet_dagster.engine.sources.postgres.kernel import Wire
from rivet_dagster.engine.sources.postgres.types import (
    BUILTIN,
    PgType,
    Rule,
    decide,
    numeric_modifier,
    numeric_rule,
    require_supported,
    rule_for,
)
from rivet_dagster.engine.types.decision import Fidelity, type_report


def base(name: str, typmod: int = -1) -> PgType:
    return PgType(1, "pg_catalog", name, "b", name, typmod)


def domain(over: PgType) -> PgType:
    return PgType(2, "public", "d", "d", "public.d", base=over)


def array(of: PgType, typmod: int = -1, ndims: int = 1) -> PgType:
    return PgType(3, of.schema, "_" + of.name, "b", of.native + "[]", typmod, ndims, elem=of)


def modifier(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


@pytest.mark.parametrize("scale", [-1000, -1, 0, 2, 38, 1000])
def test_a_numeric_scale_is_a_signed_number_of_11_bits(scale: int) -> None:
    assert numeric_modifier(modifier(38, scale)) == (38, scale)


def test_every_numeric_of_at_most_38_digits_is_a_decimal() -> None:
    for precision in range(1, 45):
        for scale in range(-45, 46):
            rule = numeric_rule(modifier(precision, scale))
            digits = precision - scale if scale < 0 else max(precision, scale)
            if digits > 38:
                assert rule.text_form == "DecimalPlain"
                assert rule.casts == ("text",)
            else:
                assert rule.arrow == pa.decimal128(digits, max(scale, 0))
                assert rule.scale == max(scale, 0)
                assert not rule.casts


def test_a_domain_is_its_base_with_the_modifier_that_it_fixes() -> None:
    money = domain(domain(base("numeric", modifier(10, 2))))
    assert rule_for(money).arrow == pa.decimal128(10, 2)
    assert rule_for(array(money)).casts == ("numeric[]",)
    assert rule_for(array(money)).arrow == pa.list_(pa.field("item", pa.decimal128(10, 2)))
    assert rule_for(domain(array(base("numeric"), modifier(5, 1)))).scale == 1


def test_arrays() -> None:
    numbers = rule_for(array(base("int4")))
    assert numbers.wire == Wire.LIST | Wire.INT32
    assert not numbers.casts
    assert rule_for(array(base("int4"), ndims=2)).text_form == "ArrayText"
    assert rule_for(array(domain(array(base("int4"))))).text_form == "ArrayText"
    assert rule_for(array(base("inet"))).casts == ("text[]",)
    assert rule_for(array(base("money"))).casts == ("numeric[]", "text[]")
    mood = PgType(9, "public", "mood", "e", "public.mood")
    assert rule_for(array(mood)).casts == ("text[]",)


def test_char_n_is_never_cast() -> None:
    """char(n)::text strips the padding."""
    assert not rule_for(base("bpchar", 9)).casts
    assert not rule_for(domain(base("bpchar", 9))).casts
    assert rule_for(array(domain(base("bpchar", 9)))).casts == ("bpchar[]",)


def test_unknown_base_types_are_text_wherever_they_come_from() -> None:
    for kind in (base("brandnew"), PgType(5, "x", "geometry", "b", "x.geometry", extension="other")):
        assert rule_for(kind).text_form == "ServerText"
    assert (
        rule_for(PgType(5, "gis", "geometry", "b", "gis.geometry", extension="postgis")).text_form == "HexWkb"
    )
    assert (
        rule_for(PgType(5, "x", "int4", "b", "x.int4")).wire == Wire.TEXT
    )  # a name of pg_catalog, elsewhere


def test_a_column_reads_its_own_quoted_name() -> None:
    column = decide('we"ird', base("interval"), nullable=False)
    assert column.select == '"we""ird"::text'
    assert not column.nullable
    assert decide("x", base("oid"), expression="y.x").select == "y.x"
    metadata = column.field().metadata
    assert metadata[b"rivet.text_form"] == b"Iso8601Duration"
    assert metadata[b"rivet.fidelity"] == b"text"


def test_columns_without_a_form_are_refused_all_at_once() -> None:
    pseudo = PgType(7, "pg_catalog", "void", "p", "void")
    columns = [decide("a", pseudo), decide("b", base("int4")), decide("c", array(pseudo))]
    assert [c.fidelity for c in columns if c.name != "b"] == [Fidelity.UNSUPPORTED] * 2
    with pytest.raises(UsageError, match=r"a \(void\), c \(void\[\]\)") as caught:
        require_supported(columns, what="the query")
    assert caught.value.code == "RIVET_TYPE_UNSAFE_MAPPING"
    require_supported(columns[1:2], what="the query")


def test_report() -> None:
    (row,) = type_report([decide("i", replace(base("interval"), native="interval"))])
    assert row == {
        "column": "i",
        "source": "interval",
        "file": "string",
        "fidelity": "text",
        "text_form": "Iso8601Duration",
        "declared": False,
        "required": False,
        "note": "",
    }


@pytest.mark.parametrize("rule", [*BUILTIN.values(), numeric_rule(-1)])
def test_a_text_form_and_a_cast_go_together(rule: Rule) -> None:
    assert (rule.fidelity is Fidelity.TEXT) == (rule.text_form is not None) == (rule.casts[-1:] == ("text",))
    if rule.text_form:
        assert rule.text_form in types_doc.TEXT_FORMS


def test_the_page_is_current() -> None:
    written = types_doc.DOCS_FILE.read_text(encoding="utf-8")
    assert written == types_doc.render(), f"run: python -m {types_doc.__name__}"
