"""Stands before an HTTP server and lets it fail: silence, refusals, cut connections, answers of its own."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from typing import Final, Literal

Mode = Literal["pass", "refuse", "silent", "slow", "slow_down", "broken", "full"]
_BLOCK: Final = 1 << 16
_SLOW_S: Final = 0.25  # for 64 KB to the server, and for each byte of an answer
_ANSWERS: Final = {
    "slow_down": ("503 Slow Down", "SlowDown"),
    "broken": ("500 Internal Server Error", "InternalError"),
    "full": ("507 Insufficient Storage", "QuotaExceeded"),
}


class FaultProxy:
    """``mode`` holds for requests from now on. ``answered``: how many got an answer of ours.

    cut_after, cuts: so many connections are reset once that many bytes of them went to the server.
    tls: what its clients speak with it, instead of plain HTTP.
    """

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._upstream = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._mode: Mode = "pass"
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.answered = 0
        self.cut_after = 0
        self.cuts = 0

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def mode(self) -> Mode:
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        """Connections of the mode before are reset, so that none goes on by the old one."""
        with self._lock:
            before, self._mode = self._mode, mode
            if "silent" not in (before, mode):  # one that fell silent says nothing any more, not even goodbye
                for end in tuple(self._open):
                    _reset(end)

    def serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._handle, args=(client,), daemon=True).start()

    def close(self) -> None:
        # a blocked accept does not notice that its socket is closed
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._closed.set()
        self.mode = "refuse"

    def _handle(self, client: socket.socket) -> None:
        mode = self._mode
        if mode == "refuse":
            return _reset(client)
        if self._tls is not None:
            try:
                client = self._tls.wrap_socket(client, server_side=True)
            except OSError:
                return client.close()
        if mode in ("slow_down", "broken") or (mode == "full" and _writes(client)):
            return self._answer(client, mode)
        server = socket.create_connection(self._upstream)
        with self._lock:
            self._open |= {client, server}
        back = threading.Thread(target=self._pump, args=(server, client, False), daemon=True)
        back.start()
        self._pump(client, server, True, once=mode == "full")
        back.join()
        with self._lock:
            self._open -= {client, server}
        client.close()
        server.close()
        return None

    def _pump(self, source: socket.socket, target: socket.socket, up: bool, *, once: bool = False) -> None:
        """once: the next request comes in another connection."""
        sent = 0
        with contextlib.suppress(OSError):
            while data := source.recv(_BLOCK):
                if self._mode == "silent":
                    self._closed.wait()
                if once and not sent:
                    data = data.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
                sent += len(data)
                if up and self.cuts and sent > self.cut_after:
                    self.cuts -= 1
                    target.sendall(data[: len(data) // 2])
                    _reset(target)
                    _reset(source)
                    return
                if self._mode == "slow":
                    self._drip(data, target, _BLOCK if up else 1)
                else:
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def _drip(self, data: bytes, target: socket.socket, step: int) -> None:
        for at in range(0, len(data), step):
            target.sendall(data[at : at + step])
            self._closed.wait(_SLOW_S)

    def _answer(self, client: socket.socket, mode: Mode) -> None:
        """One request taken in whole."""
        status, code = _ANSWERS[mode]
        head = b""
        with contextlib.suppress(OSError):
            while b"\r\n\r\n" not in head:
                if not (data := client.recv(_BLOCK)):
                    break
                head += data
            fields, _, body = head.partition(b"\r\n\r\n")
            if b"100-continue" in fields.lower():
                client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            left = _length(fields) - len(body)
            while left > 0 and (data := client.recv(_BLOCK)):
                left -= len(data)
            text = f"<Error><Code>{code}</Code><Message>of the test</Message></Error>"
            client.sendall(
                f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nConnection: close\r\n"
                f"Content-Length: {len(text)}\r\n\r\n{text}".encode()
            )
            self.answered += 1
        client.close()


def _writes(client: socket.socket) -> bool:
    return client.recv(4, socket.MSG_PEEK) in (b"PUT ", b"POST")


def _length(fields: bytes) -> int:
    for line in fields.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # wakes whoever waits for it; the reset itself is sent by the close
        end.shutdown(socket.SHUT_RD)
        end.close()


@contextlib.contextmanager
def fault_proxy(port: int, tls: ssl.SSLContext | None = None) -> Iterator[FaultProxy]:
    """A proxy before the server on ``port`` of this machine."""
    proxy = FaultProxy(port, tls)
    thread = threading.Thread(target=proxy.serve, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
