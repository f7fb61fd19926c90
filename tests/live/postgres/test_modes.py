"""Every mode over a table of mixed types: the files hold the table, row by row."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import duckdb
import pyarrow.parquet as pq
import pytest

from rivet_dagster.engine.plan.units import UnitKind
from rivet_dagster.engine.run.events import UnitCommitted
from tests.live.postgres.rig import EXPORT, Rig, read_parquet, source_rows
from tests.services.postgres import TestDatabase

ROWS: Final = 4_000
TABLE: Final = """
CREATE TABLE things (
  id bigint PRIMARY KEY, code text NOT NULL UNIQUE, uid uuid NOT NULL UNIQUE,
  made timestamptz NOT NULL UNIQUE, small int2, flag bool, ratio float4, precise float8, amount numeric(12,2),
  wide numeric(38,10), loose numeric, day date, naive timestamp, clock time, word text, doc jsonb, raw bytea,
  numbers int[], words text[])"""
FILL: Final = f"""
INSERT INTO things SELECT g * 3 - 6000, substr('aBé', g % 3 + 1, 1) || md5(g::text),
  md5(g::text)::uuid, timestamptz '2026-01-01+00' + g * interval '0.123457 s',
  g % 7, g % 3 = 0, g / 3.0, CASE g % 50 WHEN 0 THEN 'NaN' WHEN 1 THEN '-0' ELSE g / 7.0 END,
  g * 0.13, -g * 1e17 + 0.0000000001, CASE WHEN g % 9 > 0 THEN g / 3.0::numeric END,
  date '1960-01-01' + g * 31, timestamp '1960-01-01' + g * interval '7 h 1 us',
  time '00:00' + g * interval '1.000001 s', NULLIF('wörd ' || g % 100, 'wörd 7'),
  jsonb_build_object('n', g), decode(md5(g::text), 'hex'), ARRAY[g, NULL], ARRAY['a' || g, '', NULL]
FROM generate_series(0, {ROWS} - 1) g"""

_SAME: Final = "id, code, small, flag, precise, amount, wide, day, clock, word, raw, numbers, words"
#: The same values, asked of the server and of DuckDB over the files.
ASKED: Final = (
    f"{_SAME}, uid::text, (extract(epoch FROM made) * 1000000)::bigint, ratio::float8, loose::text,"
    " (extract(epoch FROM naive) * 1000000)::bigint, (doc->>'n')::int"
)
READ: Final = (
    f"{_SAME}, uid::text, epoch_us(made), ratio::double, loose::text, epoch_us(naive), (doc->>'n')::int"
)

MODES: Final[dict[str, dict[str, Any]]] = {
    "full": {"mode": "full"},
    "ranges": {"mode": "chunked", "chunk_column": "id", "chunk_size": 5_000},
    "auto_key": {"mode": "chunked", "chunk_size": 5_000},
    "count": {"mode": "chunked", "chunk_column": "id", "chunk_count": 3},
    "memory": {"mode": "chunked", "chunk_column": "id", "chunk_size_memory_mb": 1},
    "key_int": {"mode": "chunked", "chunk_by_key": "id", "chunk_size": 700},
    "key_text": {"mode": "chunked", "chunk_by_key": "code", "chunk_size": 700},
    "key_uuid": {"mode": "chunked", "chunk_by_key": "uid", "chunk_size": 700},
    "key_timestamp": {"mode": "chunked", "chunk_by_key": "made", "chunk_size": 700},
    "window": {"mode": "incremental", "cursor_column": "made"},
}


def things(db: TestDatabase) -> None:
    db.execute(TABLE, FILL, "ANALYZE things")


def shown(rows: list[tuple[Any, ...]]) -> list[str]:
    """Rows as text, in which NaN equals NaN and -0 is not 0."""
    return sorted(map(repr, rows))


def assert_exact(rig: Rig) -> None:
    assert shown(rig.read(READ)) == shown(source_rows(rig.db, ASKED))


def committed(rig: Rig) -> list[UnitCommitted]:
    return sorted((e for e in rig.events if isinstance(e, UnitCommitted)), key=lambda e: e.unit.index)


def assert_folder_is_the_manifest(rig: Rig) -> None:
    """Nothing is in the folder but what the manifest lists, its copies, the marker and the quarantine."""
    manifest = rig.manifest()
    paths = {p["path"] for p in manifest["parts"]}
    here = {f for f in rig.files() if not f.startswith("_quarantine/")}
    assert here - {f for f in here if f.startswith("manifest")} == {*paths, "_SUCCESS"}
    assert manifest["row_count"] == sum(p["rows"] for p in manifest["parts"])


@pytest.mark.parametrize("mode", MODES)
def test_the_files_hold_the_table(rig: Rig, mode: str) -> None:
    things(rig.db)
    outcome = rig.export(**MODES[mode]).run()
    assert (outcome.status, outcome.rows) == ("success", ROWS)
    assert_exact(rig)
    assert_folder_is_the_manifest(rig)
    assert rig.engine.validate(EXPORT).passed
    units = committed(rig)
    if mode in {"full", "window"}:
        assert [e.unit.kind for e in units] == [UnitKind.PAGES]
    if mode.startswith("key"):
        assert 5 <= len(units) <= 6
        assert all(400 < e.rows < 1_000 for e in units)  # boundaries split the table evenly
    if mode == "count":
        assert len(units) == 3


def test_statements_change_no_byte(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    things(rig.db)
    seen = []
    for size in (50_000, 10**9):
        monkeypatch.setattr("rivet_dagster.engine.plan.sizing.STATEMENT_BYTES", size)
        rig.export().run()
        seen.append([p.fingerprint for e in committed(rig) for p in e.parts])
    assert seen[0] == seen[1]


def test_a_full_run_takes_the_place_of_the_one_before(rig: Rig) -> None:
    things(rig.db)
    for mode, divisor in (("full", 2), ("ranges", 7)):
        rig.export(**MODES[mode])
        first = rig.run()
        old = {p.name for p in rig.parts()}
        rig.db.execute(
            f"DELETE FROM things WHERE id % {divisor} = 0", "UPDATE things SET word = 'new' WHERE id % 5 = 0"
        )
        second = rig.run()
        assert_exact(rig)
        assert_folder_is_the_manifest(rig)
        assert not old & {p.name for p in rig.parts()}
        kept = {f"_quarantine/{first.run_id}/{name}" for name in old}
        assert kept <= set(rig.files())
        assert (
            sum(rows for (rows,) in read_parquet([rig.folder() / k for k in kept], "count(*)")) == first.rows
        )
        assert second.rows < first.rows


def test_chosen_partitions_run_alone_and_the_manifest_is_whole(rig: Rig) -> None:
    things(rig.db)
    rig.export(**MODES["ranges"])
    first = rig.run()
    before = {e.unit.partition: e.parts for e in committed(rig)}
    chosen = sorted(before)[1:2]
    rig.db.execute("UPDATE things SET word = 'changed'")
    second = rig.run(only=set(chosen))
    ran = [e for e in committed(rig) if not e.carried]
    assert [e.unit.partition for e in ran] == chosen
    assert {e.unit.partition: e.parts for e in committed(rig) if e.carried} == {
        k: v for k, v in before.items() if k not in chosen
    }
    assert_folder_is_the_manifest(rig)
    manifest = rig.manifest()
    assert manifest["run_id"] == second.run_id != first.run_id
    changed = sum(row == ("changed",) for row in rig.read("word"))
    assert changed == ran[0].rows
    assert rig.engine.validate(EXPORT).passed
    assert rig.run().rows == ROWS
    assert_exact(rig)


CODECS: Final[list[tuple[dict[str, Any], str]]] = [
    ({"compression": "none"}, "UNCOMPRESSED"),
    ({"compression": "snappy"}, "SNAPPY"),
    ({"compression": "gzip", "compression_level": 1}, "GZIP"),
    ({"compression": "lz4"}, "LZ4"),
    ({"compression": "zstd", "compression_level": 7}, "ZSTD"),
    ({}, "ZSTD"),
    ({"compression_profile": "fast"}, "SNAPPY"),
]


def test_codecs(rig: Rig) -> None:
    things(rig.db)
    for options, codec in CODECS:
        rig.export(**options).run()
        found = pq.ParquetFile(rig.parts()[0]).metadata.row_group(0)
        assert {found.column(i).compression for i in range(found.num_columns)} == {codec}
        assert_exact(rig)


def test_files_turn_over_at_their_size(rig: Rig) -> None:
    things(rig.db)
    options: dict[str, Any] = {"compression": "none", "parquet": {"row_group_rows": 200}}
    rig.export(**options, max_file_size="100KB").run()
    parts = rig.parts()
    assert len(parts) > 3
    assert [p.name.rsplit("-p", 1)[1] for p in parts] == [f"{i:03d}.parquet" for i in range(len(parts))]
    # past the limit by one row group and a footer at most
    assert all(100 * 1024 <= p.stat().st_size < 240 * 1024 for p in parts[:-1])
    assert_exact(rig)
    assert_folder_is_the_manifest(rig)


def test_csv_of_every_mode(rig: Rig) -> None:
    rig.db.execute(
        "CREATE TABLE things (id int PRIMARY KEY, word text)",
        "INSERT INTO things SELECT g, CASE g % 4 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE 'a\"b,\n' || g END"
        " FROM generate_series(1, 900) g",
        "ANALYZE things",
    )
    for mode in (MODES["full"], {"mode": "chunked", "chunk_column": "id", "chunk_size": 300}):
        rig.export(format="csv", **mode).run()
        names = [str(p) for p in rig.parts()]
        with duckdb.connect() as duck:
            rows = duck.execute(
                "SELECT id, word FROM read_csv(?, header=true, nullstr='', allow_quoted_nulls=false,"
                " quote='\"', escape='\"', columns={'id': 'int', 'word': 'text'})",
                [names],
            ).fetchall()
        assert Counter(rows) == Counter(source_rows(rig.db))
