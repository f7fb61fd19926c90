"""Connections of botocore on which a request ends in time.

botocore limits how long a server is silent, not how long it takes: one byte a minute would be waited for. So
its sockets look at the clock of the request that their thread is making, each time bytes come or go.
"""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from typing import Any

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)

from rivet_dagster.engine.destinations.bucket import deadline_s, timeout_s


class _Clock(threading.local):
    until: float = math.inf

    def at_most(self, seconds: float) -> float:
        """``seconds``, or what the request has left. Raises TimeoutError when that is nothing."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request takes too long")
        return min(seconds, left)


_CLOCK = _Clock()


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """What this thread sends and receives by ``bounded`` clients has to be done by then."""
    _CLOCK.until = time.monotonic() + seconds
    try:
        yield
    finally:
        _CLOCK.until = math.inf


def bounded(client: Any) -> None:
    """Let a client that has not connected yet obey ``within``."""
    client._endpoint.http_session._pool_classes_by_scheme.update(http=_Pool, https=_TlsPool)


class _Socket(socket.socket):
    def recv_into(self, *arguments: Any) -> int:
        self.settimeout(_CLOCK.at_most(timeout_s()))
        return super().recv_into(*arguments)

    def sendall(self, data: Any, *flags: int) -> None:
        # the limit is for all of the data, and would be the one for connecting
        self.settimeout(_CLOCK.at_most(deadline_s(len(data))))
        super().sendall(data, *flags)


class _TlsSocket(ssl.SSLSocket):
    def recv_into(self, *arguments: Any) -> int:
        self.settimeout(_CLOCK.at_most(timeout_s()))
        return super().recv_into(*arguments)

    def send(self, data: Any, *flags: int) -> int:
        """At most a record; ``sendall`` is made of these."""
        self.settimeout(_CLOCK.at_most(timeout_s()))
        return super().send(data, *flags)


class _Connection(AWSHTTPConnection):  # type: ignore[misc]
    sock: Any

    def connect(self) -> None:
        super().connect()
        made = self.sock
        self.sock = _Socket(made.family, made.type, made.proto, fileno=made.detach())


class _TlsConnection(AWSHTTPSConnection):  # type: ignore[misc]
    def connect(self) -> None:
        self.ssl_context.sslsocket_class = _TlsSocket
        super().connect()


class _Pool(AWSHTTPConnectionPool):  # type: ignore[misc]
    ConnectionCls = _Connection


class _TlsPool(AWSHTTPSConnectionPool):  # type: ignore[misc]
    ConnectionCls = _TlsConnection
