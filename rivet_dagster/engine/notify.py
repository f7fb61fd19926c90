"""Messages about runs, in the shape that Slack's incoming webhooks take.

A message tells codes, counts and names of exports and columns; never a value of a row, an error's text or a
secret. Sending one never fails a run: whoever asked is told why it did not arrive.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from http.client import HTTPException
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from rivet_dagster.config.notifications import EVENTS, Event, SlackConfig
from rivet_dagster.config.resolved import is_local
from rivet_dagster.engine.redact import redact, register_secret

TIMEOUT_S: Final = 10.0
#: Exports, and columns of one export, that a message names.
_LISTED: Final = 20
#: ``EVENTS`` is in the order of their weight.
_COLOR: Final[dict[Event, str]] = {"failure": "danger", "schema_change": "warning", "degraded": "warning"}


class Notice(Struct, frozen=True):
    """What happened to one export. run_id: the engine's run, empty when it had none."""

    export: str
    event: Event
    text: str
    run_id: str = ""


class Sent(Struct, frozen=True):
    """Whether a message arrived; ``why`` not, without a word of its address."""

    ok: bool
    why: str = ""


def failure_notice(export: str, error: Mapping[str, Any], run_id: str = "") -> Notice:
    """``error``: an error object; one of class ``crashed`` has no code."""
    if error.get("class") == "schema_drift":
        return Notice(export, "schema_change", _failed(error), run_id)
    return Notice(export, "failure", _failed(error), run_id)


def _failed(error: Mapping[str, Any]) -> str:
    code = f"[{error['code']}] " if error.get("code") else ""
    action = f": {error['action']}" if error.get("action") else ""
    return f"failed, {code}{error.get('class') or 'crashed'}{action}"


def drift_text(columns: Mapping[str, Sequence[str]]) -> str | None:
    """``columns``: added, removed, retyped. None when none of them is."""
    told = [
        f"{what} {', '.join(names[:_LISTED])}{' and more' if len(names) > _LISTED else ''}"
        for what in ("added", "removed", "retyped")
        if (names := list(columns.get(what, ())))
    ]
    return f"the source's columns changed: {'; '.join(told)}" if told else None


def degraded_text(*, retries: int = 0, nulled: int = 0, gates: Iterable[str] = ()) -> str | None:
    """A run that ended well, but not smoothly; else None. gates: checks that warned or failed."""
    told = []
    if retries:
        told.append(f"{retries} retried")
    if nulled:
        told.append(f"{nulled} values replaced by NULL")
    told += [f"check {gate} did not pass" for gate in gates]
    return ", ".join(told) or None


def entry_notices(entry: Mapping[str, Any]) -> list[Notice]:
    """Of one export's entry of a run's result (``engine.results``)."""
    name, run_id = entry["export_name"], entry.get("run_id") or ""
    if entry["status"] == "failed":
        return [failure_notice(name, entry["error"] or {}, run_id)]
    notices = []
    if text := drift_text(entry.get("drift") or {}):
        notices.append(Notice(name, "schema_change", text, run_id))
    gates = (entry.get("quality") or {}).get("gates", ())
    text = degraded_text(
        retries=entry.get("retries") or 0,
        nulled=sum((entry.get("nulled") or {}).values()),
        gates=[gate["gate"] for gate in gates if gate["status"] != "pass"],
    )
    if text:
        notices.append(Notice(name, "degraded", text, run_id))
    return notices


def payload(notices: Sequence[Notice], footer: str) -> dict[str, Any]:
    """One message about one run. notices: not empty."""
    worst = min((notice.event for notice in notices), key=EVENTS.index)
    runs = list(dict.fromkeys(notice.run_id for notice in notices if notice.run_id))
    title = runs[0] if len(runs) == 1 else footer
    lines = [f"{notice.export}: {notice.text}" for notice in notices[:_LISTED]]
    if len(notices) > _LISTED:
        lines.append(f"and {len(notices) - _LISTED} more")
    text = redact("\n".join(lines))
    attachment = {"color": _COLOR[worst], "title": f"Rivet: {title}", "text": text, "footer": footer}
    return {"attachments": [{**attachment, "fallback": f"Rivet: {title}: {text}"}]}


def notify(slack: SlackConfig | None, notices: Iterable[Notice], footer: str) -> Sent | None:
    """One message with those of ``notices`` that the config asks for; None when there is none to send."""
    if slack is None:
        return None
    wanted = sorted((n for n in notices if n.event in slack.events), key=lambda n: EVENTS.index(n.event))
    if not wanted:
        return None
    url = slack.url()
    if url is None:
        return Sent(False, f"the variable {slack.webhook_url_env} is not set")
    return post(url, payload(wanted, footer))


def post(url: str, body: Mapping[str, Any], timeout_s: float = TIMEOUT_S) -> Sent:
    """POST ``body`` as JSON. Never raises. The whole address is a secret: who knows it may write."""
    register_secret(url)
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        local = is_local(host)
    except ValueError:
        return Sent(False, "the webhook's address is not a URL")
    register_secret(parts.path)
    if parts.scheme not in ("https", "http") or (parts.scheme == "http" and not local) or not host:
        return Sent(False, "the webhook's address does not begin with https://")
    request = urllib.request.Request(  # noqa: S310 - the scheme is looked at above
        url, json.dumps(body).encode(), {"content-type": "application/json"}, method="POST"
    )
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if local:
        handlers.append(urllib.request.ProxyHandler({}))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout_s) as answer:
            answer.read(1000)
    except urllib.error.HTTPError as error:
        error.close()
        return Sent(False, f"the webhook answered {error.code}")
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        return Sent(False, f"the webhook was not reached ({type(reason).__name__})")
    return Sent(True)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A webhook has no reason to send a message on; its error is told like any other."""

    def redirect_request(self, *_: object, **__: object) -> Literal[None]:
        return None
