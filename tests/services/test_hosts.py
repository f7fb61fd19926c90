"""A dropped route says nothing, whatever is asked; a healed one goes on where it stood."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from rivet_dagster.demo.server import free_port
from tests.services.hosts import ENTER, Host, enter, hosts


@pytest.fixture
def echo() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(end: socket.socket) -> None:
            with end, contextlib.suppress(OSError):
                while data := end.recv(100):
                    end.sendall(data)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def host(echo: int) -> Iterator[tuple[Host, int]]:
    port = free_port()
    with contextlib.ExitStack() as stack:
        try:
            (made,) = stack.enter_context(hosts(1, {port: echo}))
        except PermissionError:
            pytest.skip("NOT TESTED: network namespaces need root")
        yield made, port


def connected(host: Host, port: int, timeout: float = 1.0) -> socket.socket:
    """From within the host."""
    found: list[socket.socket | OSError] = []

    def connect() -> None:
        enter(host.environment[ENTER])
        try:
            found.append(socket.create_connection(("127.0.0.1", port), timeout))
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    if isinstance(found[0], OSError):
        raise found[0]
    return found[0]


def test_packets_vanish_and_come_through_again(host: tuple[Host, int]) -> None:
    this, port = host
    with connected(this, port) as open_before:
        open_before.sendall(b"one")
        assert open_before.recv(10) == b"one"
        this.drop(port)
        open_before.sendall(b"two")
        with pytest.raises(TimeoutError):
            open_before.recv(10)
        with pytest.raises(TimeoutError):
            connected(this, port)
        this.heal(port)
        open_before.settimeout(10)
        assert open_before.recv(10) == b"two"
        with connected(this, port) as again:
            again.sendall(b"three")
            assert again.recv(10) == b"three"
