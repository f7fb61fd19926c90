"""A password never shows: not in a repr, an error, a dump, nor a redacted line."""

from __future__ import annotations

import pickle
import traceback

import pytest
from pydantic import ValidationError

from rivet_dagster.config import RivetConfig
from rivet_dagster.engine import redact as redactor
from rivet_dagster.engine.errors import ConfigError, RefusalError, error_object
from rivet_dagster.engine.redact import redact
from tests.unit.config.cases import config, load, refused

CANARY = "c4nary-p@ss/w0rd"
ENCODED = "c4nary-p%40ss%2Fw0rd"


def sources() -> list[str]:
    return [
        f"type: postgres, host: localhost, user: u, database: d, password: '{CANARY}'",
        f"type: postgres, url: 'postgresql://u:{ENCODED}@localhost/d'",
        f"type: postgres, url: 'postgresql://u:{CANARY}@localhost/d'",
        "type: postgres, url: 'postgresql://u:${CANARY}@localhost/d'",
        "type: postgres, url: '${CANARY_URL}'",
        "type: postgres, host: localhost, user: u, database: d, password: ${CANARY}",
        "type: postgres, host: localhost, user: u, database: d, password_env: CANARY",
        "type: postgres, url_env: CANARY_URL",
    ]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redactor, "_secrets", set())  # what another test registered must not help here
    monkeypatch.setenv("CANARY", CANARY)
    monkeypatch.setenv("CANARY_URL", f"postgresql://u:{ENCODED}@localhost/d")


def hidden(text: str) -> bool:
    return CANARY not in text and ENCODED not in text and "c4nary" not in text


@pytest.mark.parametrize("source", sources())
def test_models_do_not_show_it(source: str) -> None:
    loaded = load(config(source=source))
    resolved = loaded.source.resolve()
    assert resolved.password == CANARY
    shown = [
        repr(loaded),
        str(loaded),
        repr(loaded.source),
        repr(resolved),
        str(resolved),
        loaded.source.identity(),
    ]
    shown += [
        repr(loaded.model_dump()),
        loaded.model_dump_json(),
        repr(loaded.source.model_dump(mode="json")),
    ]
    assert all(hidden(text) for text in shown)
    assert redact(f"x {CANARY} y {ENCODED}") == "x *** y ***"


@pytest.mark.parametrize("source", sources())
@pytest.mark.parametrize(
    "fault",
    [
        "nope: 1",
        "environment: lokal",
        "port: x",
        "url_file: f",
        "tls: {mode: nope}",
        "tuning: {batch_size: 0}",
    ],
)
def test_errors_do_not_show_it(source: str, fault: str) -> None:
    error = refused(config(source=f"{source}, {fault}"))
    for each in [error, *error.others]:
        assert hidden("".join(traceback.format_exception(each)))
        assert hidden(repr(each) + repr(vars(each)) + repr(error_object(each)))


@pytest.mark.parametrize(
    "source",
    [
        f"type: postgres, password: [{CANARY!r}]",
        f"type: postgres, password: {{a: {CANARY!r}}}",
        f"type: postgres, url: ['postgresql://u:{ENCODED}@localhost/d']",
        f"type: postgres, url: 'mysql://u:{CANARY}@localhost/d'",
        f"type: postgres, url: 'postgresql://u:{CANARY}@local host/d'",
        f"type: postgres, url: 'u:{CANARY}@localhost/d'",
        "type: postgres, url: 'postgresql://u:${CANARY}@localhost/d?nope=1'",
    ],
)
def test_a_secret_of_the_wrong_form_is_not_shown(source: str) -> None:
    error = refused(config(source=source))
    for each in [error, *error.others]:
        assert hidden("".join(traceback.format_exception(each)) + repr(vars(each)))


def test_errors_of_resolving_do_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    source = load(config(source="type: postgres, url_env: CANARY_URL")).source
    bad = [
        f"mysql://u:{CANARY}@h/d",
        f"postgresql://u:{CANARY}@h:x/d",
        f"postgresql://u:{CANARY}@db.example/d",
        CANARY,
    ]
    for url in bad:
        monkeypatch.setenv("CANARY_URL", url)
        with pytest.raises((ConfigError, RefusalError)) as caught:
            source.resolve()
        assert hidden("".join(traceback.format_exception(caught.value)))


@pytest.mark.parametrize("source", [s for s in sources() if "_env" not in s])
def test_a_secret_of_the_file_is_known_once_loaded(source: str) -> None:
    load(config(source=source))
    assert redact(f"x {CANARY} y") == "x *** y"


def test_a_whole_url_is_masked_too() -> None:
    url = f"postgresql://u:{ENCODED}@localhost/d"
    load(config(source=f"type: postgres, url: '{url}'"))
    assert redact(url) == "***"


@pytest.mark.parametrize("key", ["password", "url"])
def test_an_error_of_the_models_alone_does_not_show_it(key: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RivetConfig.model_validate({"source": {"type": "postgres", key: [CANARY]}})
    assert hidden(str(caught.value) + repr(caught.value))


def test_a_webhook_is_a_secret() -> None:
    hook = "https://hooks.example/T000/c4nary-hook"
    loaded = load(config(tail=f"notifications: {{slack: {{webhook_url: '{hook}'}}}}\n"))
    assert "c4nary-hook" not in repr(loaded) + loaded.model_dump_json()
    assert redact(f"POST {hook}") == "POST ***"


def test_ordinary_parts_of_a_url_are_not_masked() -> None:
    params = {"HOST": "localhost", "PORT": "15432", "PW": "another-w0rd"}
    load(config(source="type: postgres, url: 'postgresql://u:${PW}@${HOST}:${PORT}/shop'"), params)
    assert redact("localhost:15432 another-w0rd") == "localhost:15432 ***"


def test_a_loaded_config_survives_pickling() -> None:
    loaded = pickle.loads(pickle.dumps(load(config(source=sources()[0]))))
    assert loaded.source.resolve().password == CANARY
    assert loaded.path.name == "rivet.yaml"
