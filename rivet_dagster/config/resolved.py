"""A source whose secrets have been read: what a driver needs to connect, and the TLS rule."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rivet_dagster.engine.errors import RefusalError

DEFAULT_PORT: Final = 5432
#: How much each libpq sslmode protects; a URL may not ask for more than the block gives.
SSL_STRENGTH: Final = {
    "disable": 0,
    "allow": 1,
    "prefer": 1,
    "require": 2,
    "verify-ca": 3,
    "verify-full": 4,
}


@dataclass(frozen=True, slots=True)
class ResolvedSource:
    """Address and credentials of a PostgreSQL source.

    hosts: (host, port) in the order they are tried; a host that starts with ``/`` is a socket folder.
    tls_declared: the config has a ``tls:`` block. options: further libpq parameters of the URL.
    """

    hosts: tuple[tuple[str, int], ...]
    user: str
    database: str
    sslmode: str
    tls_declared: bool
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def host(self) -> str:
        return ",".join(host for host, _ in self.hosts)

    @property
    def port(self) -> str:
        return ",".join(str(port) for _, port in self.hosts)

    def identity(self) -> str:
        """``postgres://host:port/database``: which source this is, without credentials."""
        address = ",".join(f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in self.hosts)
        return f"postgres://{address}/{self.database}"

    def check_tls(self) -> None:
        """Refuse a connection that could be read on the way. Raises RefusalError."""
        if self.tls_declared:
            return
        addresses = [
            *(host for host, _ in self.hosts),
            *filter(None, self.options.get("hostaddr", "").split(",")),
        ]
        for address in addresses:
            if not is_local(address):
                raise RefusalError(
                    f"the source {address} is not on this machine and the config has no `tls:` block. "
                    "Fix: add `tls: {mode: verify-full}` under `source:` (`mode: disable` sends everything, "
                    "the password included, unencrypted); an sslmode in the URL does not count",
                    code="RIVET_SOURCE_TLS_REQUIRED",
                    field="source.tls",
                )

    def conninfo_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of ``psycopg.connect``. Values that the environment could add are pinned."""
        kwargs: dict[str, Any] = {
            "application_name": "rivet_dagster",
            "hostaddr": "",  # else PGHOSTADDR would send us elsewhere
            **self.options,
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "dbname": self.database,
            "sslmode": self.sslmode,
            "client_encoding": "UTF8",
        }
        if self.password is not None:
            kwargs["password"] = self.password
        if root := self._root_certificates():
            kwargs["sslrootcert"] = root
        return kwargs

    def _root_certificates(self) -> str | None:
        if self.ca_file is not None:
            return self.ca_file
        if self.sslmode not in ("verify-ca", "verify-full"):
            return None
        # the libpq of psycopg's wheels looks for the system's certificates where the wheel was built
        paths = ssl.get_default_verify_paths()
        for name in (paths.cafile, paths.openssl_cafile, "/etc/ssl/certs/ca-certificates.crt"):
            if name and Path(name).is_file():
                return name
        return "system" if self.sslmode == "verify-full" else None


def is_local(host: str) -> bool:
    """Whether ``host`` is this machine: a socket or a loopback address. What cannot be read is remote."""
    if host.startswith(("/", "@")):
        return True
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
