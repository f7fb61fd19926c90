"""ConnectorX as a stream of Arrow batches, two partitions over the key."""

from __future__ import annotations

import sys

import connectorx
import pyarrow as pa

from benchmarks.peers.writing import regrouped, task, writer


def main() -> None:
    """Read DSN TABLE to OUT at LEVEL; a fifth argument is the column that partitions."""
    key = sys.argv.pop()
    todo = task(__doc__)
    pa.set_cpu_count(1)
    reader = connectorx.read_sql(
        todo.dsn,
        f"select * from {todo.table}",
        return_type="arrow_stream",
        partition_on=key,
        partition_num=2,
        batch_size=65_536,
    )
    with writer(todo, reader.schema) as out:
        for table in regrouped(reader, reader.schema):
            out.write_table(table, row_group_size=table.num_rows)


if __name__ == "__main__":
    main()
