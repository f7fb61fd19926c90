"""Quoting: what is refused before a server sees it (the round trip is in tests/live)."""

from __future__ import annotations

import pytest

from rivet_dagster.engine.errors import UsageError
from rivet_dagster.engine.sources.postgres.quote import quote_ident, quote_literal, quote_relation


@pytest.mark.parametrize("bad", ["a\0b", "\0", "\ud800"])
def test_text_that_no_server_can_hold_is_refused(bad: str) -> None:
    for quote in (quote_ident, quote_literal):
        with pytest.raises(UsageError):
            quote(bad)


def test_an_empty_identifier_is_refused() -> None:
    with pytest.raises(UsageError):
        quote_ident("")
    assert quote_literal("") == "''"


def test_relation() -> None:
    assert quote_relation('We"ird', "%s Tab") == '"We""ird"."%s Tab"'
    assert quote_relation(None, "t") == '"t"'
