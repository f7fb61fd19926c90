"""``run`` tells a webhook once about the whole invocation, and not with ``--no-notify``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.cli.conftest import Shell
from tests.services.webhook import SECRET, Webhook, webhook

EXPORTS = """
  - {name: good, table: public.good, format: parquet, destination: {type: local, path: ./out/good}}
  - {name: gone, table: public.gone, format: parquet, destination: {type: local, path: ./out/gone}}
  - {name: lost, table: public.lost, format: parquet, destination: {type: local, path: ./out/lost}}
notifications: {slack: {webhook_url_env: RIVET_TEST_WEBHOOK}}
"""


@pytest.fixture
def hook(sh: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    sh.db.execute("CREATE TABLE good (id bigint PRIMARY KEY)", "INSERT INTO good VALUES (1)")
    sh.write(EXPORTS)
    with webhook() as hook:
        monkeypatch.setenv("RIVET_TEST_WEBHOOK", hook.url)
        yield hook


def test_one_message_tells_what_failed(sh: Shell, hook: Webhook) -> None:
    assert sh("run").code != 0
    (message,) = hook.messages
    told = [line.partition(": ") for line in message["text"].splitlines()]
    assert [name for name, _, _ in told] == ["gone", "lost"]
    assert all(text.startswith("failed, [RIVET_SOURCE_TABLE_NOT_FOUND] refusal: ") for _, _, text in told)
    assert message["footer"].startswith("rivet.yaml, agg_")
    assert message["title"].startswith("Rivet: ")


def test_nobody_is_told_of_what_went_well_or_quietly(sh: Shell, hook: Webhook) -> None:
    sh.ok("run", "-e", "good")
    assert sh("run", "--no-notify").code != 0
    assert hook.received == []


def test_columns_that_changed_are_told_with_the_run(sh: Shell, hook: Webhook) -> None:
    sh.ok("run", "-e", "good")
    sh.db.execute("ALTER TABLE good ADD COLUMN colour text")
    sh.ok("run", "-e", "good")
    (message,) = hook.messages
    assert message["text"] == "good: the source's columns changed: added colour"
    assert message["title"].startswith("Rivet: good_")


def test_a_webhook_that_fails_changes_nothing_about_the_run(sh: Shell, hook: Webhook) -> None:
    code = sh("run", "--no-notify").code
    hook.status = 503
    done = sh("run")
    assert done.code == code
    assert "nobody was told: the webhook answered 503" in done.err
    assert SECRET not in done.err + done.out
