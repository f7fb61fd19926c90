"""Where the state is: a SQLite file or a PostgreSQL database."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from rivet_dagster.engine.errors import RefusalError, UsageError
from rivet_dagster.engine.redact import register_secret

STATE_FILE: Final = "rivet_state.db"

#: sslmodes that say what happens; allow and prefer leave it to the server, so they are not an answer
_EXPLICIT_SSLMODES: Final = frozenset({"disable", "require", "verify-ca", "verify-full"})
_POSTGRES_SCHEMES: Final = frozenset({"postgres", "postgresql", "postgresql+psycopg"})


@dataclass(frozen=True, slots=True)
class StateLocation:
    """A parsed RIVET_STATE_URL. ``path`` is absolute (SQLite); ``url`` may hold a password (PostgreSQL).

    ``declared``: somebody named this place; it is not the default beside the instance.
    """

    backend: Literal["sqlite", "postgresql"]
    path: Path | None = None
    url: URL | None = field(default=None, repr=False)
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
            return cls("postgresql", url=_postgres_url(rest), declared=True)
        raise _unsupported("its scheme is neither postgresql nor sqlite")

    @property
    def display(self) -> str:
        """For people: the path, or the URL without its password."""
        if self.path is not None:
            return f"sqlite:{self.path}"
        assert self.url is not None
        return f"postgresql://{self.url.host or ''}:{self.url.port or 5432}/{self.url.database or ''}"

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


def _postgres_url(rest: str) -> URL:
    try:
        url = make_url(f"postgresql+psycopg:{rest}")
    except (ArgumentError, ValueError):
        raise _unsupported("it is not a PostgreSQL URL (percent-encode special characters)") from None
    secrets = [url.password, *(_query(url, key) for key in ("password", "sslpassword"))]
    for secret in secrets:
        register_secret(secret)
    sslmode = _query(url, "sslmode") or os.environ.get("PGSSLMODE")
    if sslmode not in _EXPLICIT_SSLMODES and not all(_is_local(host) for host in _hosts(url)):
        raise RefusalError(
            "RIVET_STATE_URL names another host and does not say how the connection is protected",
            code="RIVET_STATE_URL_TLS_REQUIRED",
            field="RIVET_STATE_URL",
        )
    return url


def _query(url: URL, key: str) -> str | None:
    value = url.query.get(key)
    return value[-1] if isinstance(value, tuple) else value


def _hosts(url: URL) -> list[str]:
    """Every host that libpq may connect to, from the URL or from its environment variables."""
    named: list[str] = [url.host] if url.host else []
    for key in ("host", "hostaddr"):
        value = url.query.get(key, ())
        named += [value] if isinstance(value, str) else list(value)
    if not named:
        named = [os.environ.get("PGHOSTADDR") or os.environ.get("PGHOST") or ""]
    hosts: list[str] = []
    for entry in named:
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
