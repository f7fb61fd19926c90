"""How large many tables are, by one look into the catalog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, LiteralString

from rivet_dagster.engine.sources.postgres.quote import quote_relation

if TYPE_CHECKING:
    from rivet_dagster.engine.sources.postgres.source import PostgresSource

# pages as the last VACUUM or ANALYZE counted them: no table is opened, so none is waited for
_SIZES: Final[LiteralString] = """
SELECT (SELECT sum(c.relpages::bigint) FROM pg_catalog.pg_class c
        WHERE c.oid = found.oid OR c.oid IN (SELECT relid FROM pg_catalog.pg_partition_tree(found.oid)))
       * pg_catalog.current_setting('block_size')::bigint
FROM (SELECT n, pg_catalog.to_regclass(name) AS oid
      FROM pg_catalog.unnest(%s::text[]) WITH ORDINALITY AS wanted (name, n)) found
ORDER BY n
"""


def table_sizes(source: PostgresSource, relations: Sequence[tuple[str | None, str]]) -> list[int | None]:
    """Bytes of each table, its partitions included; None: no table, or one that nobody counted yet."""
    names = [quote_relation(*relation) for relation in relations]
    with source.faults(), source.connector.connect() as connection:
        return [int(row[0]) if row[0] else None for row in connection.execute(_SIZES, (names,)).fetchall()]
