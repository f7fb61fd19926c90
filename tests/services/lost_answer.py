"""Stands before a PostgreSQL server and loses answers, with their connections, once the work is done."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Final

_BLOCK: Final = 1 << 16


class LosingRelay:
    """lost: how many answers were."""

    def __init__(self, port: int) -> None:
        self._upstream = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._marks: list[bytes] = []
        self.port = int(self._listener.getsockname()[1])
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self, *statements: str) -> None:
        """The answer to the next statement with the first of these texts, after that with the second, ..."""
        self._marks = [text.encode() for text in statements]

    def close(self) -> None:
        # a blocked accept does not notice that its socket is closed
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.create_connection(self._upstream)
        losing = threading.Event()
        threading.Thread(target=self._back, args=(server, client, losing), daemon=True).start()
        with client, contextlib.suppress(OSError):
            while data := client.recv(_BLOCK):
                if self._marks and self._marks[0] in data:
                    del self._marks[0]
                    losing.set()
                server.sendall(data)
        server.close()

    def _back(self, server: socket.socket, client: socket.socket, losing: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(_BLOCK):
                if losing.is_set():
                    self.lost += 1
                    break
                client.sendall(data)
        for end in (client, server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def losing_relay(port: int) -> Iterator[LosingRelay]:
    relay = LosingRelay(port)
    try:
        yield relay
    finally:
        relay.close()
