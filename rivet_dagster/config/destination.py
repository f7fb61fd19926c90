"""``destination``: where the files go."""

import difflib
import ipaddress
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationInfo

from rivet_dagster.config.base import Context, Flag, Int, Problem, Section, Text

Kind = Literal["local", "s3", "gcs", "azure", "stdout"]

TOKENS: Final = ("date", "export", "table", "partition", "run_id")
_PARTITION: Final = "/{partition}"
_TOKEN = re.compile(r"\{([^{}]*)\}")

_STORE = frozenset({"bucket", "prefix", "endpoint", "allow_anonymous", "oneshot_budget_mb"})
#: The keys that a kind of destination reads; any other key would do nothing.
KEYS: Final[dict[str, frozenset[str]]] = {
    "local": frozenset({"path"}),
    "stdout": frozenset(),
    "s3": _STORE | {"region", "access_key_env", "secret_key_env", "session_token_env", "aws_profile"},
    "gcs": _STORE | {"credentials_file"},
    "azure": _STORE | {"account_name", "account_key_env", "sas_token_env"},
}


def _anchor(value: str, info: ValidationInfo) -> str:
    """A relative path starts at the folder of the config file, wherever the process runs."""
    context: Any = info.context
    if isinstance(context, Context) and value and not _out_of_place(value):
        return os.path.normpath(context.dir / value)
    return value


def _out_of_place(value: str) -> str | None:
    if ".." in Path(value).parts:
        return "`..` is not allowed in a path"
    if "://" in value:
        return "a URI is not a local path"
    return "`~` is not expanded" if value.startswith("~") else None


class DestinationConfig(Section):
    """``path`` is absolute once the file is loaded; its tokens are not expanded yet."""

    type: Kind
    bucket: Text | None = None
    prefix: Text | None = None
    path: Annotated[Text, AfterValidator(_anchor)] | None = None
    region: Text | None = None
    endpoint: Text | None = None
    credentials_file: Annotated[Text, AfterValidator(_anchor)] | None = None
    access_key_env: Text | None = None
    secret_key_env: Text | None = None
    session_token_env: Text | None = None
    aws_profile: Text | None = None
    account_name: Text | None = None
    account_key_env: Text | None = None
    sas_token_env: Text | None = None
    allow_anonymous: Flag = False
    oneshot_budget_mb: Annotated[Int, Field(ge=0)] | None = None

    def problems(self, context: Context) -> Iterator[Problem]:
        for key in sorted(self.model_fields_set - KEYS[self.type] - {"type"}):
            if getattr(self, key) not in (None, False):
                yield Problem(
                    (key,), f"`{key}` has no effect on a destination of type {self.type}", f"remove `{key}`"
                )
        yield from self._folder()
        yield from self._endpoint()
        if self.type in ("s3", "gcs", "azure"):
            yield from self._store(context)

    def tokens(self) -> tuple[str, ...]:
        """The names in braces of ``path`` and ``prefix``."""
        return tuple(_TOKEN.findall((self.path or "") + (self.prefix or "")))

    @property
    def root(self) -> str:
        """What one run writes to, as a whole: ``path`` or ``prefix`` without the folder of a partition.

        A prefix has no slashes around it; "" is the whole bucket.
        """
        if self.type == "local":
            return (self.path or "").removesuffix(_PARTITION) or "/"
        return f"/{(self.prefix or '').rstrip('/')}".removesuffix(_PARTITION).strip("/")

    @property
    def where(self) -> str:
        """What tells one place from another, for a run that goes on; nothing secret."""
        if self.type == "local":
            return str(self.path)
        keys = ("type", "bucket", "prefix", "endpoint", "account_name")
        return " ".join(f"{key}={getattr(self, key)}" for key in keys if getattr(self, key))

    def ends_in_partition(self) -> bool:
        """Whether ``{partition}`` is the last folder, and stands nowhere else."""
        where = "/" + (self.path or self.prefix or "").rstrip("/")
        return where.endswith(_PARTITION) and where.count("{partition}") == 1

    def _folder(self) -> Iterator[Problem]:
        if self.type == "local" and not self.path:
            yield Problem(
                ("path",), "a local destination needs a `path`", "add `path: ./out/{export}` in quotes"
            )
        for key in ("path", "prefix"):
            value = getattr(self, key)
            if not value:
                continue
            if reason := _out_of_place(value):
                yield Problem((key,), reason, "write a plain path, relative to the config file or absolute")
            for token in _TOKEN.findall(value):
                if token not in TOKENS:
                    near = difflib.get_close_matches(token, TOKENS, 1)
                    meant = f"write `{{{near[0]}}}`" if near else "use {date}, {export} or {table}"
                    yield Problem((key,), f"`{{{token}}}` is not a known token", meant)

    def _endpoint(self) -> Iterator[Problem]:
        if self.endpoint and not self.allow_anonymous and not _loopback_url(self.endpoint):
            yield Problem(
                ("endpoint",),
                "a custom endpoint outside this machine would receive the credentials",
                "remove `endpoint`, or set `allow_anonymous: true` for an emulator",
            )

    def _store(self, context: Context) -> Iterator[Problem]:
        if not self.bucket:
            yield Problem(("bucket",), f"a destination of type {self.type} needs a `bucket`", "add `bucket:`")
        keys = self.given("access_key_env") or self.given("aws_profile")
        if self.type == "s3" and self.allow_anonymous and keys:
            yield Problem(
                ("allow_anonymous",), "`allow_anonymous` excludes keys and profiles", "keep one of them"
            )
        if self.type == "s3" and self.given("access_key_env") != self.given("secret_key_env"):
            there, missing = ("access_key_env", "secret_key_env")
            if not self.given(there):
                there, missing = missing, there
            yield Problem((there,), f"`{there}` is set without `{missing}`", "set both, or neither")
        if self.type == "gcs" and self.credentials_file:
            if self.allow_anonymous:
                yield Problem(
                    ("allow_anonymous",),
                    "`allow_anonymous` excludes `credentials_file`",
                    "keep one of the two",
                )
            if not (context.dir / self.credentials_file).is_file():
                yield Problem(
                    ("credentials_file",), "`credentials_file` names no readable file", "correct the path"
                )
        if self.type == "azure":
            yield from self._azure()

    def _azure(self) -> Iterator[Problem]:
        key, sas = self.given("account_key_env"), self.given("sas_token_env")
        if not self.account_name:
            yield Problem(
                ("account_name",), "a destination of type azure needs `account_name`", "add `account_name:`"
            )
        if self.allow_anonymous and (key or sas):
            yield Problem(
                ("allow_anonymous",), "`allow_anonymous` excludes keys and tokens", "keep one of them"
            )
        elif key and sas:
            yield Problem(
                ("sas_token_env",),
                "`account_key_env` and `sas_token_env` are both set",
                "keep one of the two",
            )
        elif not (key or sas or self.allow_anonymous):
            yield Problem(
                ("account_name",),
                "neither `account_key_env` nor `sas_token_env` is set",
                "set one of them, or `allow_anonymous: true` for an emulator",
            )


def _loopback_url(url: str) -> bool:
    try:
        host = urlsplit(url if "://" in url else f"//{url}").hostname
    except ValueError:
        return False
    if host is None:
        return False
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
