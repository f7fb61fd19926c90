"""ADBC, one connection: numeric read as text and cast by Arrow, which costs it less than its own numeric."""

from __future__ import annotations

import adbc_driver_postgresql.dbapi as adbc
import psycopg
import pyarrow as pa

from benchmarks.peers.writing import regrouped, task, writer

COLUMNS = """
select attname::text, format_type(atttypid, atttypmod), atttypid::int, atttypmod
from pg_attribute where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped order by attnum
"""
NUMERIC = 1700


def main() -> None:
    """Read DSN TABLE to OUT at LEVEL."""
    todo = task(__doc__)
    with psycopg.connect(todo.dsn) as conn:
        columns = conn.execute(COLUMNS, (todo.table,)).fetchall()
    names = [str(name) for name, *_ in columns]
    picked = [f'"{name}"::text' if oid == NUMERIC else f'"{name}"' for name, _, oid, _ in columns]
    pa.set_cpu_count(1)
    with adbc.connect(todo.dsn) as conn, conn.cursor() as cursor:
        cursor.execute(f"select {', '.join(picked)} from {todo.table}")
        reader = cursor.fetch_record_batch()
        fields = []
        for name, (_, _, oid, mod), field in zip(names, columns, reader.schema, strict=True):
            kind = (
                pa.decimal128(((mod - 4) >> 16) & 0xFFFF, (mod - 4) & 0x7FF) if oid == NUMERIC else field.type
            )
            # a driver's own type (uuid, jsonb) arrives as an extension: its storage is what Parquet can hold
            fields.append(
                pa.field(name, kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind)
            )
        schema = pa.schema(fields)
        raw = pa.schema([pa.field(n, f.type) for n, f in zip(names, reader.schema, strict=True)])
        with writer(todo, schema) as out:
            for table in regrouped((batch.rename_columns(names) for batch in reader), raw):
                out.write_table(table.cast(schema), row_group_size=table.num_rows)


if __name__ == "__main__":
    main()
