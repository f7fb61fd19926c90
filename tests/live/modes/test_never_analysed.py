"""Tables that the server never counted: the plan goes by their size."""

from __future__ import annotations

from typing import Any

import pytest

from rivet_dagster.engine.errors import RefusalError
from tests.live.modes.kit import Project

ROWS = 20_000
KEYS: dict[str, Any] = {"mode": "chunked", "chunk_by_key": "n", "chunk_size": 1_000}


def fill(project: Project, table: str = "CREATE TABLE t") -> None:
    project.db.execute(
        f"{table} (n int PRIMARY KEY, at timestamptz) WITH (autovacuum_enabled = off)",
        f"INSERT INTO t SELECT n, now() FROM generate_series(0, {ROWS - 1}) AS n",
    )


@pytest.mark.parametrize("more", [{}, {"keyset_incremental": True}])
def test_a_key_is_cut_by_the_size(project: Project, more: dict[str, Any]) -> None:
    fill(project)
    ran = project.run(**KEYS, **more)
    assert 10 <= len(ran.units) <= 40
    assert max(unit.rows for unit in ran.units) < 4_000
    assert project.rows("n") == dict.fromkeys(range(ROWS), 1)
    assert project.reconcile() == "match"


def test_a_table_that_was_empty_when_it_was_analysed(project: Project) -> None:
    project.db.execute("CREATE TABLE t (n int PRIMARY KEY)", "ANALYZE t", "VACUUM t")
    project.db.execute("ALTER TABLE t SET (autovacuum_enabled = off)")
    project.db.execute(f"INSERT INTO t SELECT generate_series(0, {ROWS - 1})")
    assert len(project.run(**KEYS).units) > 5


def test_a_partitioned_table_of_which_a_part_is_counted(project: Project) -> None:
    project.db.execute("CREATE TABLE t (n int PRIMARY KEY) PARTITION BY RANGE (n)")
    for low in (0, 10_000):
        project.db.execute(
            f"CREATE TABLE t{low} PARTITION OF t FOR VALUES FROM ({low}) TO ({low + 10_000})"
            " WITH (autovacuum_enabled = off)",
            f"INSERT INTO t SELECT generate_series({low}, {low + 9_999})",
        )
    project.db.execute("ANALYZE t0")
    assert 10 <= len(project.run(**KEYS).units) <= 40


def test_chunks_by_memory_go_by_the_size_of_a_row(project: Project) -> None:
    """Narrow rows: more of them fit than of the 512 bytes that are taken for a row of no known size."""
    fill(project)
    assert len(project.run(mode="chunked", chunk_column="n", chunk_size_memory_mb=1).units) == 1


def test_a_guess_does_not_prove_that_a_key_is_sparse(project: Project) -> None:
    """The size holds six times as many rows as a guess by 32 bytes a text would have it."""
    project.db.execute(
        f"CREATE TABLE t (n int PRIMARY KEY, {', '.join(f'w{i} text' for i in range(20))})"
        " WITH (autovacuum_enabled = off)",
        "INSERT INTO t (n) SELECT generate_series(1, 20000)",
    )
    ran = project.run(mode="chunked", chunk_column="n", chunk_size=100)
    assert len(ran.units) == 201


def test_a_key_that_is_sparse_at_any_density_is_refused(project: Project) -> None:
    fill(project)
    project.db.execute("INSERT INTO t VALUES (200000000, now())")
    with pytest.raises(RefusalError) as caught:
        project.run(mode="chunked", chunk_column="n", chunk_size=1_000)
    assert caught.value.code == "RIVET_PLAN_CHUNK_KEY_SPARSE"
