"""Quoting of PostgreSQL identifiers and literals: the one helper that every statement uses.

Names and values come from a catalog or a config, so they hold anything: quotes, ``%``, ``$1``, tabs,
emoji. Statements are sent without driver parameters (COPY takes none), hence quoting is all there is.
"""

from __future__ import annotations

from rivet_dagster.engine.errors import UsageError


def quote_ident(name: str) -> str:
    """``name`` as an identifier, always quoted: case and every character survive.

    Raises UsageError for an empty name and for NUL, which no PostgreSQL identifier can hold.
    """
    if not name:
        raise UsageError("an identifier is empty")
    return '"' + _storable(name).replace('"', '""') + '"'


def quote_literal(value: str) -> str:
    """``value`` as a string constant; the same under either ``standard_conforming_strings``.

    A backslash turns it into the ``E''`` form, where a backslash means the same on every server.
    Raises UsageError for NUL, which no PostgreSQL text can hold.
    """
    body = _storable(value).replace("'", "''")
    if "\\" in body:
        # the leading space keeps the E from joining a keyword before it
        return " E'" + body.replace("\\", "\\\\") + "'"
    return "'" + body + "'"


def quote_relation(schema: str | None, name: str) -> str:
    """``"schema"."name"``, or ``"name"`` to be found by the search path."""
    return f"{quote_ident(schema)}.{quote_ident(name)}" if schema else quote_ident(name)


def _storable(text: str) -> str:
    if "\0" in text:
        raise UsageError(f"{text[:40]!r} holds a NUL character, which PostgreSQL cannot store")
    try:
        text.encode()
    except UnicodeEncodeError as exc:  # a lone surrogate
        raise UsageError(f"{text[:40]!r} is not valid Unicode text") from exc
    return text
