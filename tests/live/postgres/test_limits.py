"""What a run costs: statements stay short, memory stays flat, however large the table is."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pyarrow.parquet as pq
import pytest

from rivet_dagster.engine.plan.units import UnitKind
from rivet_dagster.engine.run.events import UnitCommitted
from tests.live.postgres.rig import EXPORT, Rig

MIB = 1 << 20


def logged(rig: Rig, needle: str) -> list[str]:
    """Statements of this database that the server logged, by a name that no other one has."""
    text = rig.db.server.log.read_text(errors="replace")
    return [line for line in text.splitlines() if needle in line]


def test_servers_before_14_read_a_heap_in_one_piece(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no TID range scans: each range of pages would cost a read of the whole heap."""
    monkeypatch.setattr("rivet_dagster.engine.plan.sizing.UNIT_MIN_BYTES", 2 * MIB)
    table = f"old_{rig.db.name}"
    rig.db.execute(
        f"CREATE TABLE {table} (id int, pad text)",
        f"INSERT INTO {table} SELECT g, repeat('x', 900) FROM generate_series(1, 8000) g",
        f"ALTER DATABASE {rig.db.name} SET log_statement = 'all'",
    )

    def read() -> list[tuple[UnitKind, int]]:
        assert rig.export(table, parallel=2).run().rows == 8000
        assert rig.engine.reconcile(EXPORT).status == "match"
        return [(e.unit.kind, e.rows) for e in rig.events if isinstance(e, UnitCommitted)]

    assert {kind for kind, _ in read()} == {UnitKind.PAGES}
    assert any("ctid" in line for line in logged(rig, table))
    told = len(logged(rig, table))
    monkeypatch.setattr("rivet_dagster.engine.sources.postgres.facts._TID_RANGE_SCAN", 990_000)
    assert read() == [(UnitKind.WHOLE, 8000)]
    assert not [line for line in logged(rig, table)[told:] if "ctid" in line]


def rows_of(mib: int) -> int:
    """Rows of the table below that are so many MiB in Arrow: int8, an offset of four, 96 of text."""
    return -(-mib * MIB // 108)


@pytest.mark.parametrize(
    ("block", "size"),
    [
        ({"row_group_rows": 7_000}, 7_000),
        ({"target_row_group_mb": 1}, rows_of(1)),
        ({"row_group_strategy": "fixed_memory"}, 40_000),
        ({"row_group_strategy": "auto"}, 40_000),
        ({"row_group_strategy": "fixed_memory", "target_row_group_mb": 3}, rows_of(3)),
        ({"row_group_strategy": "fixed_memory", "max_row_group_mb": 2}, rows_of(2)),
        ({"row_group_rows": 30_000, "max_row_group_mb": 1}, rows_of(1)),
        (None, 15_000),
    ],
)
def test_row_groups_are_as_large_as_the_config_says(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, block: dict[str, Any] | None, size: int
) -> None:
    """size: rows of every row group but the last. Without a ``parquet:`` block our own default holds."""
    monkeypatch.setattr("rivet_dagster.engine.run.options.ROW_GROUP_ROWS", 15_000)
    rig.db.execute(
        "CREATE TABLE things AS SELECT g::int8 AS id, repeat(md5(g::text), 3) AS pad"
        " FROM generate_series(1, 40000) g"
    )
    rig.export(parquet=block).run()
    (part,) = rig.parts()
    found = pq.read_metadata(part)
    *full, last = [found.row_group(i).num_rows for i in range(found.num_row_groups)]
    assert full == [size] * ((40_000 - 1) // size)
    assert last == 40_000 - sum(full)


def test_a_large_unit_is_read_in_several_statements(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rivet_dagster.engine.plan.sizing.UNIT_MIN_BYTES", 2 * MIB)
    monkeypatch.setattr("rivet_dagster.engine.plan.sizing.STATEMENT_BYTES", MIB // 2)
    table = f"big_{rig.db.name}"
    rig.db.execute(
        f"CREATE TABLE {table} (id int, pad text)",
        f"INSERT INTO {table} SELECT g, repeat('x', 900) FROM generate_series(1, 8000) g",
        f"ALTER DATABASE {rig.db.name} SET log_statement = 'all'",
    )
    assert rig.export(table, parallel=2).run().rows == 8000
    units = [e.unit for e in rig.events if isinstance(e, UnitCommitted)]
    copies = logged(rig, f'COPY (SELECT "id", "pad" FROM ONLY "public"."{table}"')
    assert len(units) == 4
    assert 4 * 4 <= len(copies) <= 4 * 5
    assert len(set(copies)) == len({line.split("WHERE ")[1] for line in copies}) == len(copies)


def test_every_read_is_in_one_pinned_transaction(rig: Rig) -> None:
    """Nothing is set that outlives a transaction: a pooler hands the connection to somebody else."""
    table = f"small_{rig.db.name}"
    rig.db.execute(
        f"CREATE TABLE {table} (id int)", f"ALTER DATABASE {rig.db.name} SET log_statement = 'all'"
    )
    rig.tuning = {"profile": "fast", "lock_timeout_s": 7, "statement_timeout_s": 77}
    rig.export(table).run()
    text = rig.db.server.log.read_text(errors="replace")
    (copy,) = [i for i, line in enumerate(text.splitlines()) if "COPY (" in line and table in line]
    pid = text.splitlines()[copy].split("[")[1].split("]")[0]
    session = [line for line in text.splitlines() if f"[{pid}]" in line and "statement: " in line]
    pinned = [line for line in session if "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" in line]
    assert "SET LOCAL lock_timeout = '7000'" in pinned[-1]
    assert "SET LOCAL statement_timeout = '77000'" in pinned[-1]
    assert "SET TRANSACTION SNAPSHOT" in pinned[-1]
    assert not [line for line in session if "statement: SET " in line]


def test_a_timeout_of_the_server_does_not_end_a_read(rig: Rig) -> None:
    """A transaction lasts as long as its unit, or as the run; its statements are what is limited."""
    rig.db.execute(
        "CREATE TABLE things AS SELECT g AS id FROM generate_series(1, 60) g",
        "CREATE VIEW slow AS SELECT id, pg_sleep(0.01)::text AS slept FROM things",
        f"ALTER DATABASE {rig.db.name} SET transaction_timeout = '300ms'",
    )
    assert rig.export("slow").run().rows == 60


def peak_mib(rig: Rig) -> float:
    """Peak memory of a process that runs the export, in MiB."""
    command = [sys.executable, "-m", "rivet_dagster.cli", "run", "-c", str(rig.config), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    assert process.returncode == 0, said.decode()
    return usage.ru_maxrss / 1024


ROWS_OF_1K = "SELECT g AS id, repeat(md5(g::text), 30) AS pad FROM generate_series(1, {count}) g"
VALUES_OF_1M = "SELECT g AS id, repeat(md5(g::text), 32768) AS pad FROM generate_series(1, {count}) g"
#: (rows of the small table and of the large one, which is 10 times as large)
SHAPES: dict[str, tuple[str, int, int]] = {
    "rows": (ROWS_OF_1K, 25_000, 250_000),
    "values": (VALUES_OF_1M, 30, 300),
}


EXPORTS: dict[str, dict[str, Any]] = {
    "full": {},
    "one_range": {"mode": "chunked", "chunk_column": "id", "chunk_size": 10**9},
    "csv": {"format": "csv"},
}


@pytest.mark.parametrize(
    ("shape", "export"), [("rows", "full"), ("rows", "one_range"), ("values", "full"), ("values", "csv")]
)
def test_memory_does_not_grow_with_the_table(rig: Rig, shape: str, export: str) -> None:
    select, *counts = SHAPES[shape]
    peaks = []
    for count in counts:
        rig.db.execute(
            f"DROP TABLE IF EXISTS {EXPORT}", f"CREATE TABLE {EXPORT} AS {select.format(count=count)}"
        )
        rig.export(**EXPORTS[export])
        peaks.append(peak_mib(rig))
    assert peaks[1] < peaks[0] + 64  # of 240 to 270 MiB that the table has grown
