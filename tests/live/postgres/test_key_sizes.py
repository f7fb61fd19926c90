"""How many rows a range of a key holds when nobody says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rivet_dagster.engine.sources.postgres import bounds
from tests.services.exporting import Exporter
from tests.services.postgres import TestDatabase

ROWS = 600_000
KEYSET: dict[str, Any] = {"mode": "chunked", "chunk_by_key": "id"}


@pytest.fixture
def exporter(db: TestDatabase, tmp_path: Path) -> Exporter:
    db.execute(
        f"CREATE TABLE t AS SELECT g AS id, g * 7919::bigint % {ROWS} AS shuffled"
        f" FROM generate_series(1, {ROWS}) g",
        "ALTER TABLE t ADD PRIMARY KEY (id), ALTER shuffled SET NOT NULL, ADD UNIQUE (shuffled)",
        "VACUUM ANALYZE t",
    )
    return Exporter(db, tmp_path)


def ranges(exporter: Exporter, **keys: Any) -> int:
    with exporter.engine(**{**KEYSET, **keys}) as engine, engine.session("o", holder="test") as session:
        return len(session.plan().units)


def test_ranges_of_a_key_in_order_are_as_large_as_other_units(exporter: Exporter) -> None:
    assert ranges(exporter) == 2  # of 16 MiB each
    assert ranges(exporter, keyset_incremental=True) == 2
    # along an index that the rows do not follow, each row may lie in a page of its own
    assert ranges(exporter, chunk_by_key="shuffled") == 6
    # a size that is named is kept, the default one too
    assert ranges(exporter, chunk_size=100_000) == 6
    assert ranges(exporter, chunk_size_memory_mb=4) > 2
    assert exporter.run(**KEYSET, parallel=2).rows == ROWS
    assert sorted(exporter.column("id")) == list(range(1, ROWS + 1))


#: Type -> (a key of it, whether its sample is cut by percentiles). An array is in no array.
KEYS = {
    "array": ("array[g % 7, g]", False),
    "domain over an array": ("array[g]::path_of", False),
    "range": ("int4range(g, g + 1)", False),
    "char": ("g::char(9)", False),
    "integer": ("g", True),
    "bigint": ("g::bigint", True),
    "text": ("g::text", True),
    "timestamp": ("to_timestamp(g)", True),
}


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_cut_in_its_own_order(
    db: TestDatabase, tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    sampled = bounds.sampled_boundaries

    def noted(*args: Any) -> str:
        asked.append(sampled(*args))
        return asked[-1]

    monkeypatch.setattr(bounds, "sampled_boundaries", noted)
    value, quick = KEYS[key]
    db.execute(
        "CREATE DOMAIN path_of AS int[]",
        f"CREATE TABLE t AS SELECT g AS id, {value} AS k FROM generate_series(1, 5000) g",
        "ALTER TABLE t ALTER k SET NOT NULL, ADD UNIQUE (k)",
        "VACUUM ANALYZE t",
    )
    exporter = Exporter(db, tmp_path)
    keys = {**KEYSET, "chunk_by_key": "k", "chunk_size": 700}
    assert ranges(exporter, **keys) == 8
    assert ["percentile_disc" in statement for statement in asked] == [quick]
    assert exporter.run(**keys).rows == 5000
    assert sorted(exporter.column("id")) == list(range(1, 5001))
