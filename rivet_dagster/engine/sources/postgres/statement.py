"""A user's query as text: where it ends, so that it can stand inside a statement of ours."""

from __future__ import annotations

import functools
import re
from typing import Final

# The lexer of PostgreSQL as far as it decides what is inside a string, a name or a comment.
_LEXER: Final = r"""
      (?P<space>\s+|--[^\r\n]*)
    | (?P<comment>/\*)
    | (?P<end>;)
    | [eEnN]'(?:[^'\\]|\\.|'')*'
    | '(?:[^']|'')*'
    | "(?:[^"]|"")*"
    | (?P<dollar>\$(?:[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_\u0080-\U0010ffff]*)?\$)
    | [A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*
    | .
    """
_COMMENT_EDGE: Final = re.compile(r"/\*|\*/")


@functools.cache
def _token() -> re.Pattern[str]:
    return re.compile(_LEXER, re.VERBOSE | re.DOTALL)  # only queries need it, and it takes 7 ms


def query_body(query: str) -> str:
    """``query`` without trailing semicolons and what follows them, ending in a newline.

    The newline keeps a ``--`` comment at its end from swallowing what comes after. Text behind a
    semicolon that is more than space and comments stays: the server refuses several statements.
    """
    token = _token()
    position, last_token, first_end = 0, 0, -1
    while position < len(query):
        found = token.match(query, position)
        assert found is not None  # the last alternative matches any character
        start, position = position, found.end()
        kind = found.lastgroup
        if kind == "space":
            continue
        if kind == "comment":
            position = _comment_end(query, position)
        elif kind == "end":
            first_end = start if first_end < 0 else first_end
        else:
            if kind == "dollar":
                closing = query.find(found.group(), position)
                position = len(query) if closing < 0 else closing + len(found.group())
            last_token, first_end = position, -1
    return query[: first_end if first_end >= last_token else len(query)].rstrip() + "\n"


def _comment_end(query: str, position: int) -> int:
    """Where the comment that began before ``position`` ends; they nest."""
    depth = 1
    for edge in _COMMENT_EDGE.finditer(query, position):
        depth += 1 if edge.group() == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(query)
