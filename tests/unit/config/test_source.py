"""URLs, TLS and what a driver is given."""

from __future__ import annotations

import contextlib
import string
from pathlib import Path
from urllib.parse import quote

import psycopg.conninfo
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivet_dagster.config import ResolvedSource, load_config
from rivet_dagster.config.resolved import is_local
from rivet_dagster.config.source_url import UrlFault, parse_url
from rivet_dagster.engine.errors import ConfigError, RefusalError
from tests.unit.config.cases import config, load

ODD = string.ascii_letters + string.digits + "/?#@:&=+,;[]'\"!$*()~^|\\<>{} \u00e9\u4e2d"


def resolve(monkeypatch: pytest.MonkeyPatch, url: str, tls: str = "") -> ResolvedSource:
    monkeypatch.setenv("SHOP_URL", url)
    return load(config(source=f"type: postgres, url_env: SHOP_URL{tls}")).source.resolve()


@given(
    password=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    user=st.text(ODD, min_size=1),
)
def test_encoded_passwords_come_back(password: str, user: str) -> None:
    url = (
        f"postgresql://{quote(user, safe='')}:{quote(password, safe='')}@db.example:6543/shop?sslmode=require"
    )
    parsed = parse_url(url)
    assert (parsed.user, parsed.password) == (user, password)
    assert parsed.hosts == (("db.example", 6543),)
    assert (parsed.database, dict(parsed.params)) == ("shop", {"sslmode": "require"})
    assert psycopg.conninfo.conninfo_to_dict(url).get("password", "") == password


@given(password=st.text(ODD))
def test_a_raw_password_is_read_right_or_refused(password: str) -> None:
    with contextlib.suppress(UrlFault):
        parsed = parse_url(f"postgresql://u:{password}@db.example/shop")
        assert (parsed.user, parsed.password, parsed.hosts) == ("u", password, (("db.example", None),))


@pytest.mark.parametrize("password", ["p@ss/w?rd#x:y", "a/b", "a?b", "a#b", "a@b", ":", "12/34", "x@h/d"])
def test_common_raw_passwords(password: str) -> None:
    parsed = parse_url(f"postgresql://u:{password}@h:1/d?connect_timeout=3")
    assert (parsed.password, parsed.hosts, parsed.database) == (password, (("h", 1),), "d")


@pytest.mark.parametrize("password", ["x@evil/db?options=", "x@evil/db?options=a"])
def test_a_password_that_could_name_another_host_is_refused(password: str) -> None:
    with pytest.raises(UrlFault, match="two ways"):
        parse_url(f"postgresql://u:{password}@h/d")


def test_an_at_sign_in_a_parameter_is_no_password() -> None:
    parsed = parse_url("postgresql://u:p@h/d?application_name=a@b")
    assert (parsed.hosts, parsed.password, parsed.params["application_name"]) == ((("h", None),), "p", "a@b")


@pytest.mark.parametrize(
    ("url", "hosts", "identity"),
    [
        ("postgresql://u@127.0.0.1/d", (("127.0.0.1", 5432),), "postgres://127.0.0.1:5432/d"),
        ("postgres://u@localhost:7/d", (("localhost", 7),), "postgres://localhost:7/d"),
        ("postgresql://u@[::1]:7/d", (("::1", 7),), "postgres://[::1]:7/d"),
        (
            "postgresql://u@127.0.0.1:1,127.0.0.2:2/d",
            (("127.0.0.1", 1), ("127.0.0.2", 2)),
            "postgres://127.0.0.1:1,127.0.0.2:2/d",
        ),
        ("postgresql://u@/d?host=/var/run", (("/var/run", 5432),), "postgres:///var/run:5432/d"),
        ("postgresql://u@%2Fvar%2Frun/d", (("/var/run", 5432),), "postgres:///var/run:5432/d"),
        ("postgresql://%2Fvar%2Frun/d?user=u&port=9", (("/var/run", 9),), "postgres:///var/run:9/d"),
        ("postgresql://u@localhost/?dbname=d", (("localhost", 5432),), "postgres://localhost:5432/d"),
    ],
)
def test_addresses(
    monkeypatch: pytest.MonkeyPatch, url: str, hosts: tuple[tuple[str, int], ...], identity: str
) -> None:
    resolved = resolve(monkeypatch, url)
    assert (resolved.hosts, resolved.identity()) == (hosts, identity)
    assert (resolved.user, resolved.database) == ("u", "d")


def test_single_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PG_PW", "s3cr3t-word")
    source = load(
        config(source="type: postgres, host: localhost, port: 7, user: u, database: d, password_env: PG_PW")
    ).source
    resolved = source.resolve()
    assert resolved.hosts == (("localhost", 7),)
    assert resolved.password == "s3cr3t-word"
    assert source.identity() == "postgres://localhost:7/d"


@pytest.mark.parametrize(
    ("source", "label"),
    [
        ("url_env: UNSET_VARIABLE", "UNSET_VARIABLE"),
        ("url_file: secrets/no-such-file", "secrets/no-such-file"),
        ("url: 'postgresql://u:s3cr3t-word@h1:1,h2/d'", "h1:1,h2:5432/d"),
        ("host: h, user: u, database: d, password: s3cr3t-word", "h:5432/d"),
    ],
)
def test_a_source_has_a_label_without_being_asked_for_its_secrets(source: str, label: str) -> None:
    assert load(config(source=f"type: postgres, {source}")).source.label == label


def test_a_url_file_is_read_when_needed(tmp_path: Path) -> None:
    (tmp_path / "rivet.yaml").write_text(config(source="type: postgres, url_file: url.txt"))
    source = load_config(tmp_path / "rivet.yaml").source
    with pytest.raises(ConfigError, match="cannot be read"):
        source.resolve()
    (tmp_path / "url.txt").write_text("postgresql://u:pw-from-file@localhost/d\n")
    assert source.resolve().password == "pw-from-file"


def test_an_unset_variable_is_named_when_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOP_URL", raising=False)
    source = load(config()).source
    with pytest.raises(ConfigError) as caught:
        source.resolve()
    error = caught.value
    assert (error.code, error.field, error.line) == ("RIVET_CONFIG_ENV_UNSET", "source.url_env", 1)
    assert "SHOP_URL" in error.message


@pytest.mark.parametrize(
    "url", ["mysql://u@localhost/d", "no url", "postgresql://u@h:x/d", "postgresql://u@h"]
)
def test_a_bad_url_of_the_environment(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(monkeypatch, url)
    assert caught.value.field == "source.url_env"
    if url.startswith("mysql"):
        assert caught.value.code == "RIVET_CONFIG_SOURCE_URL_SCHEME_MISMATCH"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:pw@db.example/d",
        "postgresql://u:pw@db.example/d?sslmode=verify-full",
        "postgresql://u:pw@127.0.0.1,db.example/d",
        "postgresql://u:pw@localhost/d?hostaddr=10.0.0.1",
        "postgresql://u:pw@localhost/d?host=db.example",
        "postgresql://u:pw@127.1/d",
        "postgresql://u:pw@localhost.evil.example/d",
        "postgresql://u:pw@0.0.0.0/d",
        "postgresql://u:pw@[::ffff:10.0.0.1]/d",
    ],
)
def test_a_remote_host_needs_a_tls_block(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    with pytest.raises(RefusalError) as caught:
        resolve(monkeypatch, url)
    assert caught.value.code == "RIVET_SOURCE_TLS_REQUIRED"
    assert resolve(monkeypatch, url, ", tls: {}").sslmode == "verify-full"
    if "sslmode" not in url:
        assert resolve(monkeypatch, url, ", tls: {mode: disable}").sslmode == "disable"


def test_local_addresses() -> None:
    assert all(
        is_local(h)
        for h in ("localhost", "LOCALHOST", "127.0.0.1", "127.8.8.8", "::1", "/tmp", "::ffff:127.0.0.1")
    )
    assert not any(is_local(h) for h in ("", "127.1", "0.0.0.0", "example", "10.0.0.1", "local host", "::"))


@pytest.mark.parametrize(
    ("block", "mode"),
    [
        ("{}", "verify-full"),
        ("{mode: require}", "require"),
        ("{mode: verify-ca}", "verify-ca"),
        ("{accept_invalid_certs: true}", "require"),
        ("{accept_invalid_hostnames: true}", "verify-ca"),
    ],
)
def test_tls_modes(monkeypatch: pytest.MonkeyPatch, block: str, mode: str) -> None:
    assert resolve(monkeypatch, "postgresql://u@db.example/d", f", tls: {block}").sslmode == mode


def test_a_url_may_not_ask_for_more_than_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="sslmode=verify-full"):
        resolve(monkeypatch, "postgresql://u@h/d?sslmode=verify-full", ", tls: {mode: disable}")
    assert resolve(monkeypatch, "postgresql://u@h/d?sslmode=prefer", ", tls: {}").sslmode == "verify-full"


def test_what_psycopg_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("x")
    (tmp_path / "rivet.yaml").write_text(
        config(source="type: postgres, url_env: SHOP_URL, tls: {ca_file: ca.pem}")
    )
    monkeypatch.setenv(
        "SHOP_URL",
        "postgresql://u:p%40ss@h1:1,h2:2/d?connect_timeout=5&options=-c%20a%3Db&client_encoding=latin1",
    )
    kwargs = load_config(tmp_path / "rivet.yaml").source.resolve().conninfo_kwargs()
    assert kwargs == {
        "application_name": "rivet_dagster",
        "hostaddr": "",
        "connect_timeout": "5",
        "options": "-c a=b",
        "host": "h1,h2",
        "port": "1,2",
        "user": "u",
        "password": "p@ss",
        "dbname": "d",
        "sslmode": "verify-full",
        "sslrootcert": str(tmp_path / "ca.pem"),
        "client_encoding": "UTF8",
    }
    psycopg.conninfo.make_conninfo(**kwargs)


def test_no_password_is_not_an_empty_password(monkeypatch: pytest.MonkeyPatch) -> None:
    kwargs = resolve(monkeypatch, "postgresql://u@localhost/d").conninfo_kwargs()
    assert "password" not in kwargs
    assert kwargs["sslmode"] == "prefer"
