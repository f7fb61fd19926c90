"""``source:`` of rivet.yaml: which database, and how to reach it.

Secrets that live in the environment or in a file are read by ``resolve`` and not before: a code
location must load where the password is not set.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr

from rivet_dagster.config.base import Context, Int, Name, Place, Problem, Secret, Section, Text
from rivet_dagster.config.mongo import MongoConfig
from rivet_dagster.config.resolved import DEFAULT_PORT, SSL_STRENGTH, ResolvedSource
from rivet_dagster.config.source_url import PASSED, SCHEMES, ParsedUrl, UrlFault, parse_url, scheme_of
from rivet_dagster.config.tls import TlsConfig
from rivet_dagster.config.tuning import Profile, TuningConfig
from rivet_dagster.engine.errors import ConfigError
from rivet_dagster.engine.redact import register_secret

SourceType = Literal["postgres", "mysql", "mssql", "mongo", "oracle"]

_URL_FORMS = ("url", "url_env", "url_file")
_STRUCTURED = ("host", "port", "user", "password", "password_env", "database")


class SourceConfig(Section):
    type: SourceType
    url: Secret | None = None
    url_env: Name | None = None
    url_file: Name | None = None
    host: Text | None = None
    port: Annotated[Int, Field(ge=1, le=65535)] | None = None
    user: Text | None = None
    password: Secret | None = None
    password_env: Name | None = None
    database: Text | None = None
    environment: Literal["local", "replica", "production"] | None = None
    tls: TlsConfig | None = None
    mongo: MongoConfig | None = None
    tuning: TuningConfig | None = None

    _place: Place | None = PrivateAttr(None)
    _dir: Path | None = PrivateAttr(None)

    def problems(self, context: Context) -> Iterator[Problem]:
        yield from self._form()
        for key in ("tls", "mongo", "tuning"):
            section: Section | None = getattr(self, key)
            if section is not None:
                yield from (p.under(key) for p in section.problems(context))
        if self.mongo is not None and self.type != "mongo":
            yield Problem(("mongo",), f"the `mongo` block has no effect on a {self.type} source", "remove it")

    def _form(self) -> Iterator[Problem]:
        urls = [key for key in _URL_FORMS if self.given(key)]
        parts = [key for key in _STRUCTURED if self.given(key)]
        if not urls and not parts:
            yield Problem(
                (), "the source has no connection", "set `url_env`, or `host`, `user` and `database`"
            )
        if len(urls) > 1:
            yield Problem(
                (urls[1],), f"{_and(urls)} are set", "keep exactly one of url, url_env and url_file"
            )
        if urls and parts:
            yield Problem(
                (parts[0],),
                f"`{parts[0]}` cannot stand beside `{urls[0]}`",
                "use either the URL or the single fields",
            )
        if parts and not urls:
            for key in ("host", "user", "database"):
                if not getattr(self, key):
                    yield Problem((key,), f"the source has no `{key}`", f"add `{key}:`, or use a URL")
        if self.given("password") and self.given("password_env"):
            yield Problem(
                ("password_env",), "`password` and `password_env` are both set", "keep `password_env`"
            )
        if self.url is not None:
            yield from self._inline_url(self.url.get_secret_value())

    def _inline_url(self, url: str) -> Iterator[Problem]:
        if (problem := self._scheme_problem(url, "url")) is not None:
            yield problem
        elif self.type == "postgres":
            try:
                self._address(parse_url(url))
            except UrlFault as fault:
                yield Problem(("url",), f"the URL cannot be used: {fault}", _URL_FIX)

    def _scheme_problem(self, url: str, key: str) -> Problem | None:
        scheme, wanted = scheme_of(url), SCHEMES[self.type]
        if scheme in wanted:
            return None
        if scheme is None:
            return Problem((key,), "the URL has no scheme", f"start it with {wanted[0]}://")
        return Problem(
            (key,),
            f"the URL's scheme does not belong to a source of type {self.type}",
            f"use {wanted[0]}://, or correct `type`",
            "RIVET_CONFIG_SOURCE_URL_SCHEME_MISMATCH",
        )

    @property
    def default_profile(self) -> Profile:
        return "fast" if self.environment == "local" else "balanced"

    def resolve(self) -> ResolvedSource:
        """Read the secrets and say how to connect.

        Raises ConfigError (a variable is not set, a file or URL is unreadable) and RefusalError
        (a remote host without a ``tls:`` block).
        """
        resolved = self._resolved()
        resolved.check_tls()
        return resolved

    def identity(self) -> str:
        """``postgres://host:port/database``, without credentials. Raises ConfigError like ``resolve``."""
        return self._resolved().identity()

    @property
    def label(self) -> str:
        """The source as the config names it, read from nowhere else: ``host:port/database``, or the name
        of the variable or file that holds its URL."""
        if self.url_env is not None or self.url_file is not None:
            return str(self.url_env or self.url_file)
        if self.url is None:
            return f"{self.host}:{self.port or DEFAULT_PORT}/{self.database}"
        hosts, _, database = self._address(parse_url(self.url.get_secret_value()))
        return f"{','.join(f'{host}:{port}' for host, port in hosts)}/{database}"

    def _resolved(self) -> ResolvedSource:
        if self.type != "postgres":
            raise self._error(
                "type", f"a source of type {self.type} is not built yet", "use `type: postgres`"
            )
        key = next((k for k in _URL_FORMS if self.given(k)), None)
        if key is None:
            return self._from_parts()
        url = self._url(key)
        register_url(url)
        if (problem := self._scheme_problem(url, key)) is not None:
            raise self._error(key, problem.message, problem.fix, problem.code)
        try:
            return self._from_url(parse_url(url), key)
        except UrlFault as fault:
            raise self._error(key, f"the URL cannot be used: {fault}", _URL_FIX) from None

    def _url(self, key: str) -> str:
        if key == "url_env":
            return self._environment(key).strip()
        if key == "url_file":
            path = (self._dir or Path()) / str(self.url_file)
            try:
                return path.read_text(encoding="utf-8-sig").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise self._error(
                    key,
                    f"the file cannot be read ({type(error).__name__})",
                    "make it readable, or use `url_env`",
                ) from None
        return self.url.get_secret_value().strip() if self.url is not None else ""

    def _environment(self, key: str) -> str:
        name = str(getattr(self, key))
        value = os.environ.get(name, "")
        if not value:
            raise self._error(
                key, f"the environment variable {name} is not set", f"set {name}", "RIVET_CONFIG_ENV_UNSET"
            )
        register_secret(value)
        return value

    def _from_parts(self) -> ResolvedSource:
        password = self.password.get_secret_value() if self.password is not None else None
        if self.given("password_env"):
            password = self._environment("password_env")
        register_secret(password)
        hosts = ((str(self.host), self.port or DEFAULT_PORT),)
        mode = self.tls.sslmode if self.tls is not None else "prefer"
        return self._build(
            hosts=hosts,
            user=str(self.user),
            database=str(self.database),
            password=password,
            sslmode=mode,
            root_certificate=None,
            options={},
        )

    def _from_url(self, url: ParsedUrl, key: str) -> ResolvedSource:
        hosts, user, database = self._address(url)
        wanted = url.params.get("sslmode") or ("require" if url.params.get("ssl") == "true" else None)
        if wanted is not None and wanted not in SSL_STRENGTH:
            raise UrlFault("its sslmode is not known")
        mode = wanted or "prefer"
        if self.tls is not None:
            mode = self.tls.sslmode
            if wanted is not None and SSL_STRENGTH[wanted] > SSL_STRENGTH[mode]:
                raise self._error(
                    key,
                    f"the URL asks for sslmode={wanted}, the `tls` block gives only {mode}",
                    "raise `tls.mode`, or drop sslmode from the URL",
                )
        options = {name: value for name, value in url.params.items() if name in PASSED}
        return self._build(
            hosts=hosts,
            user=user,
            database=database,
            password=url.password,
            sslmode=mode,
            root_certificate=url.params.get("sslrootcert"),
            options=options,
        )

    @staticmethod
    def _address(url: ParsedUrl) -> tuple[tuple[tuple[str, int], ...], str, str]:
        if not all(host for host, _ in url.hosts):
            raise UrlFault("it names no host (a socket is written ?host=/folder)")
        if url.user is None or url.database is None:
            raise UrlFault(f"it names no {'user' if url.user is None else 'database'}")
        return tuple((h, p or DEFAULT_PORT) for h, p in url.hosts), url.user, url.database

    def _build(
        self,
        *,
        hosts: tuple[tuple[str, int], ...],
        user: str,
        database: str,
        password: str | None,
        sslmode: str,
        root_certificate: str | None,
        options: dict[str, str],
    ) -> ResolvedSource:
        ca_file = self.tls.ca_file if self.tls is not None else None
        if ca_file is not None and self._dir is not None:
            ca_file = str(self._dir / ca_file)
        return ResolvedSource(
            hosts=hosts,
            user=user,
            database=database,
            sslmode=sslmode,
            tls_declared=self.tls is not None,
            password=password,
            ca_file=ca_file or root_certificate,
            options=options,
        )

    def _error(self, key: str, message: str, fix: str, code: str = "RIVET_CONFIG_INVALID") -> ConfigError:
        place = self._place
        return ConfigError(
            message,
            code=code,
            file=place.file if place else None,
            line=place.line(("source", key)) if place else None,
            field=f"source.{key}",
            fix=fix,
        )


_URL_FIX = "write postgresql://user:password@host:5432/database and percent-encode / ? # @ : in the password"


def register_url(url: str, parts: Sequence[str] = ()) -> None:
    """Remember what is secret in ``url``: all of it, its password as written and decoded, a key's passphrase.

    parts: values that were put into the URL; those that are a piece of the password count too.
    """
    register_secret(url)
    try:
        parsed = parse_url(url)
    except UrlFault:
        head = url.rpartition("@")[0]
        register_secret(head.partition("://")[2].partition(":")[2])
        for part in parts:
            register_secret(part)
        return
    for value in (parsed.password, parsed.raw_password, parsed.params.get("sslpassword")):
        register_secret(value)
        for part in parts:
            if value and part in value:
                register_secret(part)


def _and(keys: list[str]) -> str:
    return " and ".join(f"`{key}`" for key in keys)
