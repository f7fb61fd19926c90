"""A unit that is read in pieces has the rows of one that is read at once, whatever it is cut by."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import pyarrow.parquet as pq
import pytest

from rivet_dagster.engine.sources.postgres import pieces, source
from rivet_dagster.engine.sources.postgres.order import ReadOrder
from tests.live.postgres.rig import Rig, read_parquet, source_rows

CUTS: Final[dict[str, dict[str, Any]]] = {
    "range": {"chunk_column": "n", "chunk_size": 40},
    "ties": {"chunk_column": "few", "chunk_size": 2},
    "key": {"chunk_by_key": "id", "chunk_size": 100},
    "text_key": {"chunk_by_key": "word", "chunk_size": 100},
    "composite": {"chunk_by_key": ["few", "id"], "chunk_size": 100},
    "days": {"chunk_column": "at", "chunk_by_days": 7},
    "dense": {"chunk_column": "word", "chunk_dense": True, "chunk_size": 90},
    "cursor": {"mode": "incremental", "cursor_column": "at"},
}


@pytest.fixture(autouse=True)
def _pieces(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "ReadOrder", partial(ReadOrder, pieces=set(range(1000))))
    monkeypatch.setattr(pieces, "FIRST_ROWS", 7)
    rig.db.execute(
        "CREATE TABLE things (id int PRIMARY KEY, n int, few int NOT NULL, word text NOT NULL UNIQUE,"
        " at timestamptz, UNIQUE (few, id))",
        "INSERT INTO things SELECT g, nullif(g % 97, 5), g % 3, chr(65 + g % 60) || g,"
        " '2026-01-01'::timestamptz + g * interval '1 hour' FROM generate_series(1, 500) g",
        "ANALYZE things",
    )


@pytest.mark.parametrize("cut", CUTS)
def test_pieces_are_the_whole(rig: Rig, cut: str) -> None:
    rig.configure({"table": "things", "mode": "chunked", **CUTS[cut]})
    assert rig.run().rows == 500
    assert rig.read() == source_rows(rig.db)


def test_pieces_are_joined_to_batches_of_their_usual_size(rig: Rig) -> None:
    groups = {"parquet": {"row_group_strategy": "fixed_rows", "row_group_rows": 200}}
    rig.configure(
        {"table": "things", "mode": "chunked", "chunk_by_key": "id", "chunk_size": 10_000, **groups}
    ).run()
    (part,) = rig.parts()
    sizes = [
        pq.ParquetFile(part).metadata.row_group(i).num_rows
        for i in range(pq.read_metadata(part).num_row_groups)
    ]
    assert sum(sizes) == 500
    assert len(sizes) <= 5


def test_wide_rows_make_smaller_pieces(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.db.execute("ALTER TABLE things ADD pad text", "UPDATE things SET pad = repeat('x', 100000)")
    rig.tuning = {"profile": "fast", "batch_size_memory_mb": 1}
    monkeypatch.setattr(pieces, "FIRST_ROWS", 400)  # 40 MB, of which 1 MiB may be held
    rig.configure({"table": "things", "mode": "chunked", "chunk_by_key": "id", "chunk_size": 10_000}).run()
    assert read_parquet(rig.parts(), "count(*), sum(length(pad))") == [(500, 50_000_000)]
