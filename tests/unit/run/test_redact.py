"""A secret shows in no text, however it is spelled; everything else stays as it is."""

from __future__ import annotations

import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from rivet_dagster.engine import redact as module
from rivet_dagster.engine.errors import (
    CrashedError,
    InternalError,
    TransientError,
    as_rivet_error,
    error_object,
)
from rivet_dagster.engine.redact import MASK, redact, register_secret

ODD = st.text(st.sampled_from("aZ0 /?#@:%&=+;,'\"\\\n\tß🚰{}$*."), min_size=4, max_size=12)
PASSWORDS = st.one_of(
    ODD, st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=4, max_size=12)
)
FORMS = (str, quote, lambda s: quote(s, safe=""), quote_plus, repr, json.dumps)
anything = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(autouse=True)
def _no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_secrets", set())


@anything
@given(PASSWORDS, st.text(max_size=10), st.text(max_size=10))
@example("p'w\"x\\", "", "")
@example("100%", "", "")
def test_a_registered_secret_is_nowhere(secret: str, before: str, after: str) -> None:
    assume(not set(secret) <= {"*"})  # no mask can hide a password of stars
    module._secrets.clear()
    register_secret(secret)
    for form in FORMS:
        shown = form(secret)[1:-1] if form in (repr, json.dumps) else form(secret)
        text = redact(f"{before} {form(secret)} {after}")
        around = redact(f"{before}  {after}")
        assert shown not in text or shown in around + MASK or shown in f" {MASK} "
        for where in (
            f"postgresql://u:{shown}@h/db",
            f"host=h password='{shown}' dbname=d",
            f"password={shown}",
        ):
            assert f":{shown}@" not in redact(where)
            assert f"={shown}" not in redact(where)


@anything
@given(PASSWORDS, st.text(max_size=60))
def test_twice_is_once(secret: str, text: str) -> None:
    module._secrets.clear()
    register_secret(secret)
    once = redact(f"{text} password={secret} {secret}")
    assert redact(once) == once


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:pa/ss?w#o@rd@host:5/db", "postgresql://me:***@host:5/db"),
        ("at postgres://:x@h, then mysql://u:y@h", "at postgres://:***@h, then mysql://u:***@h"),
        ("host=h user=u password=hunter2 port=5", "host=h user=u password=*** port=5"),
        ("password='a b\\' c' dbname=d", "password=*** dbname=d"),
        ('{"password": "a b", "n": 1}', '{"password": ***, "n": 1}'),
        ("PASSWORD: x; Token=y&api_key=z", "PASSWORD: ***; Token=***&api_key=***"),
        ("sslpassword=abc sslmode=require", "sslpassword=*** sslmode=require"),
        ("https://x/y?sig=abc%2F&sv=1", "https://x/y?sig=***&sv=1"),
    ],
)
def test_secrets_that_nobody_registered(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the password of role r is wrong",
        "column passwords, tokens and secrets",
        "s3://bucket/key@v1",
        "http://host:80/path",
        "user@host: connection refused",
        '42P01: relation "tokens" does not exist',
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redact(text) == text


def test_short_and_missing_secrets_are_not_kept() -> None:
    for value in (None, "", "abc"):
        register_secret(value)
    assert redact("abc None") == "abc None"


def test_a_longer_secret_is_masked_before_one_that_it_holds() -> None:
    register_secret("hunter")
    register_secret("hunter2-long")
    assert redact("hunter2-long and hunter") == "*** and ***"


def test_errors_are_redacted_when_they_are_made() -> None:
    register_secret("c4n4ry")
    made = [
        TransientError("lost c4n4ry"),
        as_rivet_error(ValueError("c4n4ry")),
        InternalError("password=c4n4ry2"),
    ]
    for error in made:
        assert "c4n4ry" not in repr(error) + str(error) + json.dumps(error_object(error)) + repr(error.args)
    assert error_object(CrashedError("died of c4n4ry"))["message"] == "[crashed] died of ***"
