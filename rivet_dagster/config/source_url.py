"""Connection URLs of PostgreSQL, taken apart without losing odd passwords.

Two readings are tried; if both make sense the URL is refused, for a guess could send the password to
another host. The strict one is libpq's: user info ends at the last ``@`` before the first
``/`` or ``?``. If what follows is then no host, database and known parameters, the password holds raw
``/``, ``?`` or ``@`` and user info ends at the last ``@`` of the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

SCHEMES: Final[dict[str, tuple[str, ...]]] = {
    "postgres": ("postgresql", "postgres"),
    "mysql": ("mysql",),
    "mssql": ("sqlserver", "mssql"),
    "mongo": ("mongodb", "mongodb+srv"),
    "oracle": ("oracle",),
}

#: Parameters of a URL that go to libpq as they are.
PASSED: Final = frozenset(
    {
        "application_name",
        "channel_binding",
        "connect_timeout",
        "gssencmode",
        "hostaddr",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "krbsrvname",
        "load_balance_hosts",
        "options",
        "passfile",
        "require_auth",
        "sslcert",
        "sslcrl",
        "sslcrldir",
        "sslkey",
        "sslpassword",
        "sslsni",
        "target_session_attrs",
        "tcp_user_timeout",
    }
)
#: Parameters that set a part of the address, or are settled by us.
PARTS: Final = frozenset(
    {"host", "port", "user", "password", "dbname", "sslmode", "sslrootcert", "client_encoding", "ssl"}
)

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HOST = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.%]+\]|(?:[A-Za-z0-9_.~-]|%[0-9A-Fa-f]{2})*)(?::(?P<port>[0-9]*))?"
)


class UrlFault(ValueError):
    """Why a URL cannot be used; the text never holds a part of the URL that could be secret."""


@dataclass(frozen=True, slots=True)
class ParsedUrl:
    """hosts: (host, port or None). Every text is decoded; raw_password is as it stood in the URL."""

    hosts: tuple[tuple[str, int | None], ...]
    user: str | None
    password: str | None = field(repr=False)
    database: str | None
    params: Mapping[str, str] = field(repr=False)
    raw_password: str | None = field(repr=False)


def scheme_of(url: str) -> str | None:
    found = _SCHEME.match(url.strip())
    return found[1].lower() if found else None


def parse_url(url: str) -> ParsedUrl:
    """Take a ``postgresql://`` URL apart. Raises UrlFault."""
    found = _SCHEME.match(url)
    if not found:
        raise UrlFault("it does not start with a scheme like postgresql://")
    if "\0" in url:
        raise UrlFault("it holds a NUL byte")
    rest = url[found.end() :]
    edge = min((at for at in (rest.find("/"), rest.find("?")) if at >= 0), default=len(rest))
    strict = rest.rfind("@", 0, edge)
    lenient = rest.rfind("@")
    readings, fault = [], UrlFault("it cannot be read")
    for cut in dict.fromkeys((lenient, strict)):
        try:
            readings.append(_assemble(rest[:cut] if cut >= 0 else None, rest[cut + 1 :]))
        except UrlFault as error:
            fault = error
    whole = [reading for reading in readings if reading.user is not None and reading.database is not None]
    if len(whole) > 1:
        raise UrlFault("it can be read in two ways; percent-encode / ? # @ : in the password")
    if not readings:
        raise fault
    return (whole or readings)[-1]


def _assemble(user_info: str | None, rest: str) -> ParsedUrl:
    address, _, query = rest.partition("?")
    host_list, _, database = address.partition("/")
    if "/" in database or "@" in database:
        raise UrlFault("the database name holds `/` or `@`; percent-encode them")
    params = _parameters(query)
    hosts = tuple(_host(item) for item in host_list.split(","))
    hosts = _overridden(hosts, params)
    user, has_password, raw = (user_info or "").partition(":")
    raw_password = raw if has_password else None
    password = params.pop("password", None)
    if password is None and raw_password is not None:
        password = _decode(raw_password)
    return ParsedUrl(
        hosts=hosts,
        user=params.pop("user", None) or _decode(user) or None,
        password=password,
        database=params.pop("dbname", None) or _decode(database) or None,
        params=params,
        raw_password=raw_password,
    )


def _parameters(query: str) -> dict[str, str]:
    params: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        name, equals, value = pair.partition("=")
        if not equals or name not in PASSED | PARTS:
            raise UrlFault(
                "a parameter after `?` is not known (or `?` and `@` in the password are not percent-encoded)"
            )
        params[name] = _decode(value)
    return params


def _host(item: str) -> tuple[str, int | None]:
    found = _HOST.fullmatch(item)
    if not found:
        raise UrlFault("the host or the port cannot be read (percent-encode / ? # @ : in the password)")
    host = _decode(found["host"])
    return (host[1:-1] if host.startswith("[") else host, _port(found["port"]))


def _port(text: str | None) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise UrlFault("the port is not between 1 and 65535")
    return int(text)


def _overridden(
    hosts: tuple[tuple[str, int | None], ...], params: dict[str, str]
) -> tuple[tuple[str, int | None], ...]:
    """``?host=`` and ``?port=`` win, as in libpq."""
    names = params.pop("host", None)
    ports = params.pop("port", None)
    if names is not None:
        hosts = tuple((name, hosts[0][1] if len(hosts) == 1 else None) for name in names.split(","))
    if ports is not None:
        given = [_port(p) for p in ports.split(",")]
        if len(given) not in (1, len(hosts)):
            raise UrlFault("the number of ports does not match the number of hosts")
        given = given * len(hosts) if len(given) == 1 else given
        hosts = tuple((host, port) for (host, _), port in zip(hosts, given, strict=True))
    return hosts


def _decode(text: str) -> str:
    try:
        decoded = unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise UrlFault("a percent-encoded character is not UTF-8") from None
    if "\0" in decoded:
        raise UrlFault("it holds a NUL byte")
    return decoded
