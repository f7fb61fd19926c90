"""The server's own limit: COPY in binary form over two connections, thrown away as it arrives.

Two page ranges, as the other parallel readers use, so that its server CPU is the floor for them all.
"""

from __future__ import annotations

import threading

import psycopg

from benchmarks.peers.writing import task

CONNECTIONS = 2


def drain(dsn: str, query: str) -> None:
    """Read one COPY to its end."""
    with (
        psycopg.connect(dsn) as conn,
        conn.cursor().copy(f"copy ({query}) to stdout (format binary)") as copy,
    ):
        for _ in copy:
            pass


def main() -> None:
    """Read DSN TABLE; OUT and LEVEL are not used."""
    todo = task(__doc__)
    with psycopg.connect(todo.dsn) as conn:
        row = conn.execute("select pg_relation_size(to_regclass(%s)) / 8192", (todo.table,)).fetchone()
    assert row is not None
    middle = int(row[0]) // CONNECTIONS
    halves = [f"ctid < '({middle},0)'::tid", f"ctid >= '({middle},0)'::tid"]
    threads = [
        threading.Thread(target=drain, args=(todo.dsn, f"select * from {todo.table} where {half}"))
        for half in halves
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
