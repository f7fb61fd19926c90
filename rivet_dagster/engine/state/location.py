"""Where the state is: a SQLite file or a PostgreSQL database."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal
from urllib.parse import parse_qs, unquote

from rivet_dagster.engine.errors import RefusalError, UsageError
from rivet_dagster.engine.redact import register_secret

STATE_FILE: Final = "rivet_state.db"

#: sslmodes that say what happens; allow and prefer leave it to the server, so they are not an answer
_EXPLICIT_SSLMODES: Final = frozenset({"disable", "require", "verify-ca", "verify-full"})
_POSTGRES_SCHEMES: Final = frozenset({"postgres", "postgresql", "postgresql+psycopg"})
_URL: Final = re.compile(
    r"//(?:(?P<user>[^:/]*)(?::(?P<password>[^@]*))?@)?"
    r"(?:(?:\[(?P<ipv6>[^/?]+)\]|(?P<host>[^/:?]+))?(?::(?P<port>[^/?]*))?)?"
    r"(?:/(?P<dbname>[^?]*))?"
    r"(?:\?(?P<query>.*))?"
)


@dataclass(frozen=True, slots=True)
class StateLocation:
    """A parsed RIVET_STATE_URL: ``path`` is absolute (SQLite), ``server`` is for libpq (PostgreSQL).

    ``declared``: somebody named this place; it is not the default beside the instance.
    """

    backend: Literal["sqlite", "postgresql"]
    path: Path | None = None
    server: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold a password
    declared: bool = False

    @classmethod
    def parse(cls, url: str | None, default_dir: Path) -> StateLocation:
        """The location that ``url`` names, or ``default_dir``'s own file when it is unset or empty.

        Raises UsageError (RIVET_STATE_URL_SCHEME_UNSUPPORTED) and RefusalError
        (RIVET_STATE_URL_TLS_REQUIRED).
        """
        if not url:
            return cls("sqlite", path=Path(os.path.abspath(default_dir)) / STATE_FILE)
        scheme, colon, rest = url.partition(":")
        if colon and scheme == "sqlite":
            return cls("sqlite", path=_sqlite_directory(rest) / STATE_FILE, declared=True)
        if colon and scheme in _POSTGRES_SCHEMES:
            return cls("postgresql", server=_postgres_parameters(rest), declared=True)
        raise _unsupported("its scheme is neither postgresql nor sqlite")

    @property
    def display(self) -> str:
        """For people: the path, or the URL without its password."""
        if self.path is not None:
            return f"sqlite:{self.path}"
        named = (self.server.get("host", ""), self.server.get("port", 5432), self.server.get("dbname", ""))
        return "postgresql://{}:{}/{}".format(*named)

    def __str__(self) -> str:
        return self.display


def _unsupported(why: str) -> UsageError:
    # the URL itself stays out of the text: a mistyped one may hold a password anywhere
    return UsageError(
        f"RIVET_STATE_URL is not usable: {why}",
        code="RIVET_STATE_URL_SCHEME_UNSUPPORTED",
        field="RIVET_STATE_URL",
    )


def _sqlite_directory(rest: str) -> Path:
    if not rest.startswith("/") and not Path(rest).is_absolute():
        raise _unsupported("sqlite: takes an absolute directory")
    if rest.startswith("//") and not rest.startswith("///"):
        raise _unsupported("sqlite: takes an absolute directory and no host")
    return Path(os.path.abspath("/" + rest.lstrip("/") if rest.startswith("/") else rest))


def _postgres_parameters(rest: str) -> dict[str, str]:
    """What libpq is told, of the URL after its scheme. The query wins over what stands before it."""
    parts = _URL.fullmatch(rest)
    if parts is None:
        raise _not_a_url()
    query = parse_qs(parts["query"] or "")
    for secret in (
        unquote(parts["password"] or ""),
        *query.get("password", ()),
        *query.get("sslpassword", ()),
    ):
        register_secret(secret)
    named = {
        "user": unquote(parts["user"] or ""),
        "password": unquote(parts["password"] or ""),
        "host": parts["ipv6"] or parts["host"],
        "port": parts["port"],
        "dbname": unquote(parts["dbname"] or ""),
    }
    parameters = {key: value for key, value in named.items() if value}
    parameters.update({key: values[-1] for key, values in query.items()})
    if "host" in query:
        parameters.update(_many_hosts(query["host"], query.get("port")))
    _check_ports(parameters)
    sslmode = parameters.get("sslmode") or os.environ.get("PGSSLMODE")
    named_hosts = [*filter(None, [named["host"]]), *query.get("host", ()), *query.get("hostaddr", ())]
    if sslmode not in _EXPLICIT_SSLMODES and not all(_is_local(host) for host in _hosts(named_hosts)):
        raise RefusalError(
            "RIVET_STATE_URL names another host and does not say how the connection is protected",
            code="RIVET_STATE_URL_TLS_REQUIRED",
            field="RIVET_STATE_URL",
        )
    return parameters


def _not_a_url() -> UsageError:
    return _unsupported("it is not a PostgreSQL URL (percent-encode special characters)")


def _many_hosts(hosts: Sequence[str], ports: Sequence[str] | None) -> dict[str, str]:
    """``host=a,b&port=1,2`` as it is; ``host=a:1&host=b:2`` as libpq wants it, which is the former."""
    one = hosts[0] if len(hosts) == 1 else ""
    if one and (ports or "," in one or one.startswith(("/", "@")) or one.count(":") != 1):
        return {"host": one, "port": ",".join(ports)} if ports else {"host": one}
    if ports:
        raise _not_a_url()
    split = [host.partition(":") for host in hosts]
    found = {"host": ",".join(host for host, _, _ in split)}
    if any(port for _, _, port in split):
        found["port"] = ",".join(port for _, _, port in split)
    return found


def _check_ports(parameters: Mapping[str, str]) -> None:
    ports = parameters.get("port", "").split(",")
    hosts = (parameters.get("host") or parameters.get("hostaddr") or "").split(",")
    if not all(port == "" or port.isdecimal() for port in ports) or len(ports) not in {1, len(hosts)}:
        raise _not_a_url()


def _hosts(named: Sequence[str]) -> list[str]:
    """Every host that libpq may connect to, from the URL or from its environment variables."""
    hosts: list[str] = []
    for entry in named or [os.environ.get("PGHOSTADDR") or os.environ.get("PGHOST") or ""]:
        for host in entry.split(","):
            bare, colon, port = host.rpartition(":")
            hosts.append(bare if colon and port.isdigit() and ":" not in bare else host)
    return hosts


def _is_local(host: str) -> bool:
    if host == "" or host.startswith(("/", "@")) or host == "localhost":  # a Unix socket, or ourselves
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
