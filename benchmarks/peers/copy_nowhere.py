"""The server's own limit: COPY in binary form over two connections, thrown away as it arrives.

Two page ranges, as the other parallel readers use, so that its server CPU is the floor for them all. With a
key it reads eight ranges of it instead: to find rows through an index costs a server more than to read the
heap, whoever asks, and that is the floor for a mode whose units are ranges of a key.
"""

from __future__ import annotations

import threading

import psycopg

from benchmarks.peers.writing import task

CONNECTIONS = 2
RANGES = 8


def drain(dsn: str, queries: list[str]) -> None:
    """Read each COPY to its end."""
    with psycopg.connect(dsn) as conn:
        for query in queries:
            with conn.cursor().copy(f"copy ({query}) to stdout (format binary)") as copy:
                for _ in copy:
                    pass


def pages(dsn: str, table: str) -> list[str]:
    """Two conditions that cut the heap in half."""
    with psycopg.connect(dsn) as conn:
        row = conn.execute("select pg_relation_size(to_regclass(%s)) / 8192", (table,)).fetchone()
    assert row is not None
    middle = int(row[0]) // CONNECTIONS
    return [f"ctid < '({middle},0)'::tid", f"ctid >= '({middle},0)'::tid"]


def ranges(dsn: str, table: str, key: str) -> list[str]:
    """Conditions on an integer key that cut its range into equal pieces."""
    with psycopg.connect(dsn) as conn:
        row = conn.execute(f"select min({key}), max({key}) from {table}").fetchone()
    assert row is not None
    low, high = row
    step = -(-(high + 1 - low) // RANGES)
    return [f"{key} >= {at} and {key} < {at + step}" for at in range(low, high + 1, step)]


def main() -> None:
    """Read DSN TABLE, and KEY if there is one; OUT and LEVEL are not used."""
    todo = task(__doc__)
    found = ranges(todo.dsn, todo.table, todo.key) if todo.key else pages(todo.dsn, todo.table)
    queries = [f"select * from {todo.table} where {condition}" for condition in found]
    threads = [
        threading.Thread(target=drain, args=(todo.dsn, queries[n::CONNECTIONS])) for n in range(CONNECTIONS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
