from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.engine import URL, make_url

from rivet_dagster.engine.errors import EnvironmentFault, RefusalError, RivetError, UsageError
from rivet_dagster.engine.redact import redact
from rivet_dagster.engine.state.location import StateLocation
from rivet_dagster.engine.state.store import StateStore
from tests.services.postgres import TestDatabase

HERE = Path("/somewhere")
PASSWORD = "p/w?x#y:z-4711"
QUOTED = "p%2Fw%3Fx%23y%3Az-4711"


@pytest.mark.parametrize("url", [None, ""])
def test_unset_is_the_default_file(url: str | None) -> None:
    assert StateLocation.parse(url, HERE).path == HERE / "rivet_state.db"


def test_relative_default_directory_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert StateLocation.parse(None, Path("home")).path == tmp_path / "home" / "rivet_state.db"


@pytest.mark.parametrize("url", ["sqlite:/mnt/state", "sqlite:///mnt/state", "sqlite:/mnt/x/../state/"])
def test_sqlite_names_a_directory(url: str) -> None:
    location = StateLocation.parse(url, HERE)
    assert location.path == Path("/mnt/state/rivet_state.db")
    assert location.declared


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:hunter22@h/d",
        "sqlite:relative",
        "sqlite://host/d",
        "sqlite:",
        "/just/a/path",
        "postgresql://h:hunter22/d",
        "postgresqlhunter22",
        "postgresql:/hunter22",
        "postgresql://[::1]hunter22/d",
        "postgresql://localhost:1,2/hunter22",
        "postgresql:///hunter22?host=localhost:1&host=::1:2",
        "postgresql:///hunter22?host=localhost:1&host=localhost:2&port=3",
        "postgresql:///hunter22?host=/a&port=1,2",
    ],
)
def test_other_urls_are_refused_without_repeating_them(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        StateLocation.parse(url, HERE)
    assert caught.value.code == "RIVET_STATE_URL_SCHEME_UNSUPPORTED"
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://db.example.com/d",
        "postgres://db.example.com/d?sslmode=prefer",
        "postgresql://localhost/d?host=db.example.com",
        "postgresql:///d?host=localhost:5432&host=db.example.com:5432",
        "postgresql://10.0.0.1/d",
        "postgresql://localhost/d?hostaddr=10.0.0.1",
    ],
)
def test_another_host_needs_an_answer_about_tls(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGSSLMODE", raising=False)
    with pytest.raises(RefusalError) as caught:
        StateLocation.parse(url, HERE)
    assert caught.value.code == "RIVET_STATE_URL_TLS_REQUIRED"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://localhost/d",
        "postgres://127.0.0.1:6432/d",
        "postgresql://[::1]/d",
        "postgresql:///d?host=/run/postgresql",
        "postgresql+psycopg:///d",
        "postgresql://db.example.com/d?sslmode=verify-full",
        "postgresql://db.example.com/d?sslmode=disable",
    ],
)
def test_loopback_or_a_clear_sslmode_is_enough(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    assert StateLocation.parse(url, HERE).backend == "postgresql"


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("postgresql:///d", {"dbname": "d"}),
        ("postgresql://u@localhost:/", {"user": "u", "host": "localhost"}),
        (
            f"postgresql://u%40x:{QUOTED}@localhost:6432/d%20e",
            {"user": "u@x", "password": PASSWORD, "host": "localhost", "port": "6432", "dbname": "d e"},
        ),
        ("postgres://[::1]:6432/d", {"host": "::1", "port": "6432", "dbname": "d"}),
        (
            "postgresql:///d?host=/run/postgresql&port=6432",
            {"host": "/run/postgresql", "port": "6432", "dbname": "d"},
        ),
        ("postgresql:///d?host=/a,/b&port=1,2", {"host": "/a,/b", "port": "1,2", "dbname": "d"}),
        (
            "postgresql:///d?host=localhost:1&host=127.0.0.1:2",
            {"host": "localhost,127.0.0.1", "port": "1,2", "dbname": "d"},
        ),
        ("postgresql:///d?host=localhost:1", {"host": "localhost", "port": "1", "dbname": "d"}),
        (
            "postgresql://h/d?sslmode=require&dbname=e&connect_timeout=",
            {"host": "h", "dbname": "e", "sslmode": "require"},
        ),
    ],
)
def test_libpq_is_told_what_the_url_says(url: str, server: dict[str, str]) -> None:
    assert StateLocation.parse(url, HERE).server == server


def test_libpq_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db.example.com")
    with pytest.raises(RefusalError):
        StateLocation.parse("postgresql:///d", HERE)
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    assert StateLocation.parse("postgresql:///d", HERE).backend == "postgresql"


def test_password_is_a_secret_and_nowhere_in_a_repr() -> None:
    location = StateLocation.parse(f"postgresql://u:{QUOTED}@127.0.0.1:1/d?sslpassword=key-4712", HERE)
    assert redact(f"x {PASSWORD} y {QUOTED} z key-4712") == "x *** y *** z ***"
    for text in (repr(location), str(location), location.display):
        for secret in (PASSWORD, QUOTED, "key-4712"):
            assert secret not in text


def test_errors_and_store_hold_no_password(db: TestDatabase, tmp_path: Path) -> None:
    password = db.server.password
    assert password is not None
    with StateStore.open(StateLocation.parse(db.url, tmp_path)) as store:
        assert password not in repr(store)
        assert password not in repr(vars(store._db))
    unreachable = StateLocation.parse(f"postgresql://u:{password}@127.0.0.1:1/d", tmp_path)
    with pytest.raises(RivetError) as caught:
        StateStore.open(unreachable)
    assert caught.value.code == "RIVET_STATE_UNAVAILABLE"
    error: BaseException | None = caught.value
    while error is not None:
        assert password not in repr(error)
        error = error.__cause__


@pytest.mark.parametrize(
    ("wrong", "sqlstate"),
    [({"password": "not it"}, "28P01"), ({"password": None}, None), ({"database": "not_there"}, "3D000")],
)
def test_a_login_that_is_denied_is_no_state_that_is_away(
    db: TestDatabase, tmp_path: Path, wrong: dict[str, str | None], sqlstate: str | None
) -> None:
    """Or a run would wait for it as long as for a server that restarts."""
    url = URL.create(**{**make_url(db.url)._asdict(), **wrong})
    location = StateLocation.parse(url.render_as_string(hide_password=False), tmp_path)
    with pytest.raises(EnvironmentFault) as caught:
        StateStore.open(location)
    assert (caught.value.code, caught.value.sqlstate) == ("RIVET_STATE_NOT_WRITABLE", sqlstate)
