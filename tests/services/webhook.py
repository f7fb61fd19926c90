"""A webhook's receiver: a real HTTP server that keeps what it is sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "c4nary-hook-T000"


@dataclass
class Webhook:
    """url holds ``SECRET``. status: what it answers; location: where a redirect leads."""

    url: str
    status: int = 200
    location: str | None = None
    received: list[dict[str, Any]] = field(default_factory=list)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The attachment of each message."""
        return [attachment for body in self.received for attachment in body["attachments"]]


@contextmanager
def webhook() -> Iterator[Webhook]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == f"/services/{SECRET}" and self.headers["content-type"] == "application/json":
                hook.received.append(json.loads(body))
            self.send_response(hook.status)
            if hook.location is not None:
                self.send_header("location", hook.location)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hook = Webhook(f"http://127.0.0.1:{server.server_port}/services/{SECRET}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hook
        finally:
            server.shutdown()
            thread.join()
