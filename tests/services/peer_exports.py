"""Tables and exports that ``rivet_dagster`` and the reference are compared on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

TABLES: Final = (
    """
    CREATE TABLE every_type (
      id bigint PRIMARY KEY, flag bool, small int2, number int4, ratio float4, precise float8,
      amount numeric(12,2), wide numeric(38,10), day date, at timestamp, at_utc timestamptz, clock time,
      word text, code varchar(9), doc jsonb, uid uuid, raw bytea,
      flags bool[], numbers int4[], bigs int8[], ratios float8[], words text[]
    )
    """,
    """
    INSERT INTO every_type SELECT
      g, g % 3 = 0, g % 7, -g, g / 3.0, CASE g % 50 WHEN 0 THEN 'NaN' WHEN 1 THEN '-0' ELSE g / 7.0 END,
      g * 0.13, -g * 1e17 + 0.0000000001, date '1960-01-01' + g * 31,
      timestamp '1960-01-01' + g * interval '7 h 1 us',
      timestamptz '2026-01-01+00' + g * interval '1 s', time '00:00' + g * interval '1.000001 s',
      'wörd ' || g, NULLIF('c' || g % 5, 'c0'), jsonb_build_object('n', g), md5(g::text)::uuid,
      decode(md5(g::text), 'hex'), ARRAY[true, NULL, g % 2 = 0], ARRAY[g, NULL], '{}', ARRAY[g / 3.0, 'NaN'],
      ARRAY['a' || g, '', NULL]
    FROM generate_series(1, 1000) g
    """,
    "INSERT INTO every_type (id) SELECT generate_series(1001, 1010)",
    "CREATE TABLE empty_table (id int PRIMARY KEY, word text)",
    "CREATE TABLE flat (id bigint PRIMARY KEY, word text, at timestamptz NOT NULL)",
    """
    INSERT INTO flat SELECT g, CASE g % 4 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE 'a"b,' || chr(10) || g END,
      timestamptz '2026-01-01+00' + g * interval '1 s' FROM generate_series(1, 1000) g
    """,
)


def exports(root: Path) -> list[dict[str, Any]]:
    """One export for each way of planning and each format, in both tools' config language."""

    def export(name: str, table: str, mode: str, **options: Any) -> dict[str, Any]:
        destination = {"type": "local", "path": str(root / name)}
        return {
            "format": "parquet",
            **options,
            "name": name,
            "table": table,
            "mode": mode,
            "destination": destination,
        }

    return [
        export("full", "every_type", "full"),
        export("ranges", "every_type", "chunked", chunk_column="id", chunk_size=300),
        export("keyset", "every_type", "chunked", chunk_by_key="id", chunk_size=300),
        export("window", "every_type", "incremental", cursor_column="id"),
        export("empty", "empty_table", "full"),
        export("text_full", "flat", "full", format="csv"),
        export("text_ranges", "flat", "chunked", chunk_column="id", chunk_size=300, format="csv"),
    ]
