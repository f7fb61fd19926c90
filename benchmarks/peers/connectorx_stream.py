"""ConnectorX as a stream of Arrow batches, two partitions over the key."""

from __future__ import annotations

import connectorx
import pyarrow as pa

from benchmarks.peers.writing import regrouped, task, writer


def main() -> None:
    """Read DSN TABLE to OUT at LEVEL; KEY is the column that partitions."""
    todo = task(__doc__)
    pa.set_cpu_count(1)
    reader = connectorx.read_sql(
        todo.dsn,
        f"select * from {todo.table}",
        return_type="arrow_stream",
        partition_on=todo.key,
        partition_num=2,
        batch_size=65_536,
    )
    with writer(todo, reader.schema) as out:
        for table in regrouped(reader, reader.schema):
            out.write_table(table, row_group_size=table.num_rows)


if __name__ == "__main__":
    main()
