"""``source.tls``: how the connection is encrypted and whom it trusts."""

from collections.abc import Iterator
from enum import StrEnum

from rivet_dagster.config.base import Context, Flag, Problem, Section, Text


class TlsMode(StrEnum):
    DISABLE = "disable"
    REQUIRE = "require"
    VERIFY_CA = "verify-ca"
    VERIFY_FULL = "verify-full"


class TlsConfig(Section):
    mode: TlsMode = TlsMode.VERIFY_FULL
    ca_file: Text | None = None
    accept_invalid_certs: Flag = False
    accept_invalid_hostnames: Flag = False

    def problems(self, context: Context) -> Iterator[Problem]:
        if self.given("mode"):
            for key in ("accept_invalid_certs", "accept_invalid_hostnames"):
                if getattr(self, key):
                    yield Problem(
                        (key,), f"`{key}` contradicts the explicit `mode`", f"remove `{key}` or `mode`"
                    )
        if self.given("ca_file") and self.mode is TlsMode.DISABLE:
            yield Problem(
                ("ca_file",), "`ca_file` has no effect with `mode: disable`", "remove one of the two"
            )
        elif self.ca_file and not (context.dir / self.ca_file).is_file():
            yield Problem(
                ("ca_file",), "`ca_file` names no readable file", "correct the path of the CA certificate"
            )

    @property
    def sslmode(self) -> str:
        """The libpq word for what the block asks for."""
        if self.accept_invalid_certs:
            return "require"
        return "verify-ca" if self.accept_invalid_hostnames else self.mode.value
