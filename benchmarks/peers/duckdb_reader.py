"""DuckDB's PostgreSQL reader: two threads, its own Parquet writer, the extension from its wheel."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import duckdb
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.peers.writing import task

THREADS = 2
ROW_GROUP = 122_880


def extension() -> Path:
    """The signed extension file that the wheel carries for this DuckDB."""
    spec = importlib.util.find_spec("duckdb_extension_postgres_scanner")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(next(iter(spec.submodule_search_locations)))
    return folder / f"extensions/v{duckdb.__version__}/postgres_scanner.duckdb_extension"


def main() -> None:
    """Read DSN TABLE to OUT at LEVEL."""
    todo = task(__doc__)
    link = make_conninfo("", **{key: str(value) for key, value in conninfo_to_dict(todo.dsn).items()})
    with duckdb.connect(config={"threads": THREADS, "memory_limit": "1GB"}) as db:
        db.execute(f"load '{extension()}'")
        db.execute(f"attach '{link}' as source (type postgres, read_only)")
        db.execute("set preserve_insertion_order = false")
        db.execute(
            f"copy (select * from source.public.{todo.table}) to '{todo.out / 'part.parquet'}' "
            f"(format parquet, compression zstd, compression_level {todo.level}, row_group_size {ROW_GROUP})"
        )


if __name__ == "__main__":
    main()
