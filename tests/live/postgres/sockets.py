"""Connections whose socket holds little: Linux lets one grow to 32 MiB, a whole table of a test."""

from __future__ import annotations

import os
import socket
from typing import Any, Final

import psycopg

from rivet_dagster.engine.sources.postgres.connect import PostgresConnector

_BYTES: Final = 64 << 10
_opened: Final = PostgresConnector._open


def open_narrow(self: PostgresConnector) -> psycopg.Connection[Any]:
    """In place of ``PostgresConnector._open``."""
    connection = _opened(self)
    with socket.socket(fileno=os.dup(connection.pgconn.socket)) as it:
        it.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BYTES)
    return connection
