"""The one redactor. Every text that leaves the process goes through ``redact``.

It works by value first: secrets that the process knows (they are registered when they are read from
the environment) are replaced wherever they stand, also percent-encoded. Structure comes second:
user-info of URLs and ``password=`` pairs are replaced even when nobody registered them.
"""

from __future__ import annotations

import json
import re
import threading
from urllib.parse import quote, quote_plus

MASK = "***"

_lock = threading.Lock()
_secrets: set[str] = set()

_SHORTEST = 4  # a secret of fewer characters would mask ordinary text

# greedy to the last '@' before whitespace or a quote: a password may hold / ? # @ and :
_URL_USERINFO = re.compile(
    r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.\-]*://)(?P<user>[^\s:/@'\"]*):(?P<pw>[^\s'\"]*)@"
)
_PAIR = re.compile(
    r"(?i)(?P<key>\b(?:password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|sas|sig|signature|sslpassword)"
    r"[\"']?\s*[=:]\s*)(?P<value>\"[^\"]*\"|'(?:[^'\\]|\\.)*'|[^\s&,;)}\"']+)"
)


def register_secret(value: str | None) -> None:
    """Remember ``value`` as a secret of this process; it is masked from now on in every text."""
    if not value or len(value) < _SHORTEST:
        return
    with _lock:
        _secrets.update({value, quote(value, safe=""), quote_plus(value), quote(value)})
        # as a string literal shows it: quotes, backslashes and control characters escaped
        _secrets.update({repr(value)[1:-1], json.dumps(value)[1:-1]})


def redact(text: str) -> str:
    """``text`` without secrets. Idempotent; never raises."""
    with _lock:
        known = sorted(_secrets, key=len, reverse=True)
    for secret in known:
        if secret in text:
            text = text.replace(secret, MASK)
    text = _URL_USERINFO.sub(rf"\g<scheme>\g<user>:{MASK}@", text)
    return _PAIR.sub(rf"\g<key>{MASK}", text)
