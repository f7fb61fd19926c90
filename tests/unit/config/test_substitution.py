"""``${VAR}``: put in after parsing, once, in every value, and never as structure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.config.cases import config, load, refused

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(value=TEXT, style=st.sampled_from(["${V}", "'${V}'", '"${V}"', "{a: ${V}}", "|\n      ${V}"]))
def test_a_value_stays_one_value(value: str, style: str) -> None:
    """Colons, braces, quotes, line ends, `${OTHER}`: all of it is text, in each style of YAML."""
    if style.startswith("{"):
        loaded = load(config(f"dagster: {{description: {style[4:-1]}}}"), {"V": value})
        assert loaded.exports[0].dagster.description == value
        return
    loaded = load(config(f"dagster:\n  description: {style}"), {"V": value})
    assert loaded.exports[0].dagster.description == value + ("\n" if style.startswith("|") else "")


@given(value=TEXT)
def test_text_around_a_variable_stays(value: str) -> None:
    loaded = load(config("source_group: a-${V}-${V}-b"), {"V": value})
    assert loaded.exports[0].source_group == f"a-{value}-{value}-b"


@given(number=st.integers(1, 10**9))
def test_a_number_stays_a_number(number: int) -> None:
    assert load(config("parallel: ${N}"), {"N": str(number)}).exports[0].parallel == number


def test_types_follow_the_key_and_not_the_value() -> None:
    params = {"N": "4", "B": "true", "F": "0", "T": "007", "U": "no", "X": "null"}
    export = load(
        config(
            """
            parallel: ${N}
            skip_empty: ${B}
            shape_drift_warn_factor: ${F}
            source_group: ${T}
            target: ${U}
            dagster: {description: "${N}", owners: ["team:${X}"], group: ${X}}
            """
        ),
        params,
    ).exports[0]
    assert (export.parallel, export.skip_empty, export.shape_drift_warn_factor) == (4, True, 0.0)
    assert (export.source_group, export.target) == ("007", "no")
    assert (export.dagster.description, export.dagster.group) == ("4", "null")


def test_names_keep_their_spelling_without_variables_too() -> None:
    export = load(
        config("source_group: 007\ntarget: no\ndagster: {group: 1e3, description: 2020-01-01}")
    ).exports[0]
    assert (export.source_group, export.target) == ("007", "no")
    assert (export.dagster.group, export.dagster.description) == ("1e3", "2020-01-01")


def test_a_quoted_variable_is_text_and_no_number() -> None:
    error = refused(config('parallel: "${N}"'), {"N": "4"})
    assert "without quotes" in error.message


def test_a_parameter_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIVET_TEST_G", "env")
    assert load(config("source_group: ${RIVET_TEST_G}")).exports[0].source_group == "env"
    loaded = load(config("source_group: ${RIVET_TEST_G}"), {"RIVET_TEST_G": "param"})
    assert loaded.exports[0].source_group == "param"


def test_a_variable_in_a_comment_is_nobodys() -> None:
    load(config("# ${RIVET_TEST_UNSET}\nskip_empty: true"))


def test_each_unset_variable_is_named() -> None:
    error = refused(config("source_group: ${RIVET_TEST_A}\ntarget: x${RIVET_TEST_B}"))
    assert [(e.code, e.field, e.line) for e in [error, *error.others]] == [
        ("RIVET_CONFIG_ENV_UNSET", "source_group", 7),
        ("RIVET_CONFIG_ENV_UNSET", "target", 8),
    ]
    assert "RIVET_TEST_A" in error.message


def test_a_nul_byte_is_refused() -> None:
    error = refused(config("source_group: ${V}"), {"V": "a\0b"})
    assert (error.code, error.field, error.line) == ("RIVET_CONFIG_INVALID", "source_group", 7)
    assert "NUL" in error.message


def test_an_empty_value_for_a_number_is_an_error() -> None:
    assert refused(config("parallel: ${V}"), {"V": ""}).field == "parallel"


@pytest.mark.parametrize("value", ["\ue0001\ue001", "${V}", "${W}"])
def test_a_value_is_put_in_once(value: str) -> None:
    loaded = load(config("source_group: ${V}-${W}"), {"V": value, "W": "w"})
    assert loaded.exports[0].source_group == f"{value}-w"


def test_the_mark_of_a_variable_is_never_a_character_of_the_file() -> None:
    loaded = load(config('source_group: "\ue0000\ue001${V}"'), {"V": "v"})
    assert loaded.exports[0].source_group == "\ue0000\ue001v"
