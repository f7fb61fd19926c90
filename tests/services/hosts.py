"""Hosts of a test: network namespaces whose only way out are relays to named ports, each of which can be cut.

A process of the host sees its own loopback and nothing else. What listens there hands every connection
over to the same address of the test's own namespace, as a router would that knows three routes.

A route is cut in one of two ways: ``cut`` resets what is open and refuses what is new; ``drop`` lets every
packet vanish without an answer, as a pulled cable does or a firewall that forgot.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator, Mapping
from typing import Final

_CLONE_NEWNET: Final = 0x40000000
_BLOCK: Final = 1 << 16
#: Of Linux: a program that looks at each packet before TCP does, and one that lets none through.
_SO_ATTACH_FILTER: Final = 26
_SO_DETACH_FILTER: Final = 27
_NOTHING: Final = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
_DROP_ALL: Final = struct.pack("@HP", 1, ctypes.addressof(_NOTHING))
#: Where a child finds the namespace that it enters before anything else.
ENTER: Final = "TEST_NETWORK_NAMESPACE"


def enter(path: str) -> None:
    """Move this thread, and what it starts from now on, to the namespace at ``path``."""
    fd = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(fd, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {path}")
    finally:
        os.close(fd)


class Host:
    """routes: port on the host's loopback -> port of the test's namespace."""

    def __init__(self, routes: Mapping[int, int]) -> None:
        self._routes = dict(routes)
        self._cut: set[int] = set()
        self._passes = {port: threading.Event() for port in routes}
        for passes in self._passes.values():
            passes.set()
        self._open: dict[socket.socket, int] = {}
        self._near: dict[socket.socket, int] = {}  # of ``_open``, what the host's processes talk to
        self._lock = threading.Lock()
        self._listeners: list[socket.socket] = []
        self._error: OSError | None = None
        self._fd = -1
        maker = threading.Thread(target=self._make)
        maker.start()
        maker.join()
        if self._error is not None:
            raise self._error
        for listener, port in zip(self._listeners, self._routes, strict=True):
            threading.Thread(target=self._accept, args=(listener, port), daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """Of a process that lives on this host."""
        return {ENTER: f"/proc/{os.getpid()}/fd/{self._fd}"}

    def cut(self, port: int) -> None:
        """Reset what goes through ``port`` and let nothing through any more."""
        with self._lock:
            self._cut.add(port)
            found = [end for end, through in self._open.items() if through == port]
        for end in found:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def drop(self, port: int) -> None:
        """From now on no packet passes ``port`` in either direction, and nobody is told."""
        self._passes[port].clear()
        self._filter(port, _SO_ATTACH_FILTER, _DROP_ALL)

    def heal(self, port: int) -> None:
        """Let packets pass again; what TCP still remembers goes on."""
        self._filter(port, _SO_DETACH_FILTER, b"\0" * 4)
        self._passes[port].set()

    def _filter(self, port: int, option: int, program: bytes) -> None:
        listener = self._listeners[tuple(self._routes).index(port)]
        with self._lock:
            for end in (listener, *(end for end, through in self._near.items() if through == port)):
                with contextlib.suppress(OSError):  # it has ended, or has no filter
                    end.setsockopt(socket.SOL_SOCKET, option, program)

    def close(self) -> None:
        for port in self._routes:
            self.cut(port)
            self._passes[port].set()
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        os.close(self._fd)

    def _make(self) -> None:
        """On a thread that alone moves to the new namespace; sockets stay where they were made."""
        try:
            if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "a network namespace cannot be made")
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            self._fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
            self._listeners = [socket.create_server(("127.0.0.1", port)) for port in self._routes]
        except OSError as error:
            self._error = error

    def _accept(self, listener: socket.socket, port: int) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._routes[port]))
            except OSError:
                near.close()
                continue
            with self._lock:
                cut = port in self._cut
                if not cut:
                    self._open |= {near: port, far: port}
                    self._near[near] = port
                if not self._passes[port].is_set():
                    near.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _DROP_ALL)
            if cut:
                near.close()
                far.close()
                continue
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(one, other, port), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket, port: int) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(_BLOCK):
                self._passes[port].wait()
                other.sendall(data)
        self._passes[port].wait()  # a goodbye is a packet too
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.pop(one, None)
            self._near.pop(one, None)
        one.close()


@contextlib.contextmanager
def hosts(count: int, routes: Mapping[int, int]) -> Iterator[list[Host]]:
    """Raises PermissionError where no namespace can be made."""
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            host = Host(routes)
            stack.callback(host.close)
            made.append(host)
        yield made
