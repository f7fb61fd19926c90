"""``quality:`` gates and drift of the shape: what stops a run, what it leaves, what only warns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rivet_dagster.engine.errors import ConfigError, IntegrityError, SchemaDriftError
from rivet_dagster.engine.run.events import RunNote
from rivet_dagster.engine.run.unique import in_doubt
from tests.services.exporting import Exporter
from tests.services.postgres import TestDatabase

CHUNKS: dict[str, Any] = {"mode": "chunked", "chunk_column": "id", "chunk_size": 20, "chunk_checkpoint": True}
MODES: dict[str, dict[str, Any]] = {
    "full": {},
    "chunked": CHUNKS,
    "parallel": {**CHUNKS, "parallel": 2},
    "keyset": {"mode": "chunked", "chunk_by_key": "id", "chunk_size": 20},
    "incremental": {"mode": "incremental", "cursor_column": "id"},
    "rotated": {"max_file_size": "1B", "parquet": {"row_group_rows": 10}},
    "csv": {"format": "csv"},
}


@pytest.fixture
def exporter(db: TestDatabase, tmp_path: Path) -> Exporter:
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, word text, code text, u uuid)",
        "INSERT INTO t SELECT g, CASE WHEN g % 4 = 0 THEN NULL ELSE 'w' || g END, 'c' || g,"
        " md5(g::text)::uuid FROM generate_series(1, 100) g",
        "ANALYZE t",
    )
    return Exporter(db, tmp_path)


PASSING: dict[str, Any] = {
    "row_count_min": 100, "row_count_max": 100, "null_ratio_max": {"id": 0, "word": 0.25},
    "unique_columns": ["id", "word", "u"],
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_gates_that_hold_are_reported_in_every_mode(exporter: Exporter, mode: str) -> None:
    outcome = exporter.run(quality=PASSING, **MODES[mode])
    gates = outcome.details["quality"]
    assert gates["passed"]
    assert [g["status"] for g in gates["gates"]] == ["pass"] * 7
    assert [g["found"] for g in gates["gates"]] == [100, 100, 0, 0.25, 0, 0, 0]
    assert exporter.marked


FAILING: dict[str, Any] = {
    "row_count_max": 99, "null_ratio_max": {"word": 0.24}, "unique_columns": ["code"]
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_gates_that_fail_stop_the_run_in_every_mode(exporter: Exporter, mode: str) -> None:
    exporter.db.execute("UPDATE t SET code = 'c1' WHERE id = 100")
    with pytest.raises(IntegrityError) as caught:
        exporter.run(quality=FAILING, **MODES[mode])
    assert (caught.value.code, caught.value.exit_code) == ("RIVET_QUALITY_FAILED", 3)
    assert caught.value.export == "o"
    assert caught.value.message.split("; ") == [
        "row_count_max: 100, limit 99",
        "null_ratio_max of word: 0.25, limit 0.24",
        "unique_columns of code: 1, limit 0",
    ]
    names = [p.name for p in (exporter.root / "out").iterdir()]
    assert any(name.endswith((".parquet", ".csv")) for name in names)
    assert not [name for name in names if name.startswith(("manifest", "_SUCCESS"))]
    with exporter.engine(**MODES[mode]) as engine:
        assert engine.state.cursor("o", str(exporter.root / "out")) is None
        assert engine.state.accepted_schema("o") is None


def test_a_failed_gate_leaves_the_cursor_and_the_last_good_manifest(exporter: Exporter) -> None:
    keys = {**MODES["incremental"], "quality": {"unique_columns": ["code"]}}
    exporter.run(**keys)
    good = exporter.manifest()
    exporter.db.execute("INSERT INTO t (id, code) VALUES (101, 'same'), (102, 'same')")
    with pytest.raises(IntegrityError):
        exporter.run(**keys)
    assert exporter.manifest() == good
    assert not exporter.marked
    exporter.db.execute("UPDATE t SET code = 'other' WHERE id = 102")
    exporter.run(**keys)
    assert exporter.column("id") == [101, 102]
    assert exporter.marked


def test_a_resumed_run_counts_the_units_before_it(exporter: Exporter) -> None:
    exporter.db.execute(
        "UPDATE t SET code = 'c1' WHERE id = 100",
        "UPDATE t SET word = NULL WHERE id <= 20",
        "UPDATE t SET u = NULL WHERE id <= 10",
    )
    keys = {**CHUNKS, "quality": {"null_ratio_max": {"word": 0.3}, "unique_columns": ["code"]}}
    exporter.stopped(1, **keys)
    with pytest.raises(IntegrityError) as caught:
        exporter.run(**keys)
    assert "word: 0.4" in caught.value.message
    assert "code: 1" in caught.value.message
    # the gate was loosened: the same files are published, none is read from the source again
    loose = {**CHUNKS, "quality": {"null_ratio_max": {"u": 0.2, "word": 0.5}}}
    outcome = exporter.run(**loose)
    assert [g["found"] for g in outcome.details["quality"]["gates"]] == [0.1, 0.4]
    assert not [e for e in exporter.events if getattr(e, "carried", True) is False]
    assert exporter.marked


def test_gates_on_no_rows(exporter: Exporter) -> None:
    exporter.db.execute("TRUNCATE t")
    with pytest.raises(IntegrityError):
        exporter.run(quality={"row_count_min": 1})
    exporter.run(quality={"row_count_max": 0, "null_ratio_max": {"word": 0.0}, "unique_columns": ["id"]})
    keys = {**MODES["incremental"], "quality": {"row_count_min": 1}}
    exporter.db.execute("INSERT INTO t VALUES (1)")
    exporter.run(**keys)
    with pytest.raises(IntegrityError):
        exporter.run(**keys)


def in_doubt_now(exporter: Exporter, column: str, **keys: Any) -> int:
    """How many parts of the last run have to be read again to tell whether the column's values repeat."""
    with exporter.engine(**keys) as engine:
        run = engine.state.latest_run("o")
        assert run is not None
        return len(in_doubt([row.as_part() for row in engine.state.parts(run.run_id)], column))


@pytest.mark.parametrize("mode", MODES)
def test_keys_that_rise_are_unique_without_reading_the_files_again(exporter: Exporter, mode: str) -> None:
    keys = {**MODES[mode], "quality": {"unique_columns": ["id", "u"]}}
    exporter.run(**keys)
    assert in_doubt_now(exporter, "id", **keys) == 0
    assert in_doubt_now(exporter, "u", **keys) > 0


#: Where a value comes twice: the row that takes it from row 1. The chunks have 20 rows each.
TWICE = {"in one part": 3, "in another part": 70}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", TWICE)
def test_values_that_come_twice_are_found_wherever_they_are(
    exporter: Exporter, mode: str, where: str
) -> None:
    exporter.db.execute(
        "ALTER TABLE t ADD n bigint, ADD amount numeric(20,2), ADD day date, ADD body bytea",
        "ALTER TABLE t ADD ratio float8",
        "UPDATE t SET n = id * 1000, amount = id / 4.0, day = date '2000-01-01' + id, ratio = id / 3.0,"
        " body = decode(md5(id::text), 'hex')",
        "VACUUM FULL t",
        "UPDATE t SET (n, amount, day, body, ratio, u, word)"
        " = (SELECT n, amount, day, body, ratio, u, word FROM t WHERE id = 1)"
        f" WHERE id = {TWICE[where]}",
    )
    columns = ["n", "amount", "day", "body", "ratio", "u", "word"]
    with pytest.raises(IntegrityError) as caught:
        exporter.run(quality={"unique_columns": ["id", *columns]}, **MODES[mode])
    assert caught.value.message.split("; ") == [f"unique_columns of {c}: 1, limit 0" for c in columns]


def test_text_keys_in_the_order_of_their_bytes_are_proven_by_it(exporter: Exporter) -> None:
    exporter.db.execute(
        'CREATE TABLE k (word text COLLATE "C" PRIMARY KEY)',
        "INSERT INTO k SELECT chr(65 + g % 26) || g FROM generate_series(1, 200) g",
        "ANALYZE k",
    )
    keys: dict[str, Any] = {"table": "k", "mode": "chunked", "chunk_by_key": "word", "chunk_size": 40}
    keys["quality"] = {"unique_columns": ["word"]}
    assert exporter.run(**keys).details["quality"]["passed"]
    assert in_doubt_now(exporter, "word", **keys) == 0


def test_a_key_of_two_columns_is_one_gate_for_each(exporter: Exporter) -> None:
    exporter.db.execute(
        "CREATE TABLE k (a int, b int, PRIMARY KEY (a, b))",
        "INSERT INTO k SELECT g % 10, g FROM generate_series(1, 100) g",
        "ANALYZE k",
    )
    keys: dict[str, Any] = {"table": "k", "mode": "chunked", "chunk_by_key": ["a", "b"], "chunk_size": 30}
    assert exporter.run(**keys, quality={"unique_columns": ["b"]}).details["quality"]["passed"]
    with pytest.raises(IntegrityError, match="unique_columns of a: 90"):
        exporter.run(**keys, quality={"unique_columns": ["a", "b"]})


def test_a_run_that_goes_on_compares_with_the_units_before_it(exporter: Exporter) -> None:
    exporter.db.execute(
        "ALTER TABLE t ADD n bigint", "UPDATE t SET n = id", "UPDATE t SET n = 5 WHERE id = 95"
    )
    keys = {**CHUNKS, "quality": {"unique_columns": ["n"]}}
    exporter.stopped(1, **keys)
    with pytest.raises(IntegrityError, match="unique_columns of n: 1, limit 0"):
        exporter.run(**keys)


def test_a_gate_that_comes_between_looks_at_the_parts_before_it(exporter: Exporter) -> None:
    exporter.db.execute(
        "ALTER TABLE t ADD n bigint", "UPDATE t SET n = id", "UPDATE t SET n = 5 WHERE id = 95"
    )
    exporter.stopped(1, **CHUNKS)
    gate = {**CHUNKS, "quality": {"unique_columns": ["n", "id"]}}
    with pytest.raises(IntegrityError, match="unique_columns of n: 1, limit 0"):
        exporter.run(**gate)


def test_the_cap_on_unique_values_warns(exporter: Exporter) -> None:
    gate = {"unique_columns": ["code"], "unique_max_entries": 50}
    outcome = exporter.run(quality=gate)
    assert outcome.details["quality"]["gates"][0]["status"] == "warn"
    assert "only 50 of 100 rows were looked at" in " ".join(outcome.warnings)
    exporter.db.execute("UPDATE t SET code = 'c1' WHERE id = 2")
    with pytest.raises(IntegrityError):
        exporter.run(quality=gate, mode="chunked", chunk_column="id", chunk_size=20)


def test_a_gate_on_an_unknown_column_is_refused_before_the_first_row(exporter: Exporter) -> None:
    for gate, field in [
        ({"unique_columns": ["Code"]}, "quality.unique_columns"),
        ({"null_ratio_max": {"zzz": 0.5}}, "quality.null_ratio_max.zzz"),
    ]:
        with pytest.raises(ConfigError) as caught:
            exporter.run(quality=gate)
        assert caught.value.field == field
    assert not (exporter.root / "out").exists()


def test_drift_stops_the_run_and_keeps_the_baseline(exporter: Exporter) -> None:
    exporter.run(on_schema_drift="fail")
    manifest = exporter.manifest()
    exporter.db.execute(
        "ALTER TABLE t ADD extra int", "ALTER TABLE t ALTER id TYPE bigint", "ALTER TABLE t DROP u"
    )
    for _ in range(2):
        with pytest.raises(SchemaDriftError) as caught:
            exporter.run(on_schema_drift="fail")
        assert (caught.value.code, caught.value.exit_code) == ("RIVET_SCHEMA_DRIFT", 4)
        for words in ("added: extra", "removed: u", "retyped: id"):
            assert words in caught.value.message
    assert exporter.manifest() == manifest
    assert exporter.marked
    exporter.run(on_schema_drift="warn")
    assert "schema drift: columns added: extra" in [e.text for e in exporter.events if isinstance(e, RunNote)]
    exporter.run(on_schema_drift="fail")


def test_what_the_config_changes_is_no_drift_of_the_source(exporter: Exporter) -> None:
    exporter.run(on_schema_drift="fail")
    exporter.run(on_schema_drift="fail", columns={"id": "text"}, meta_columns={"row_hash": True})
    exporter.run(on_schema_drift="fail")
    exporter.db.execute("ALTER TABLE t ALTER id TYPE bigint")
    with pytest.raises(SchemaDriftError):
        exporter.run(on_schema_drift="fail", columns={"id": "text"})


def test_values_that_grew_are_told(exporter: Exporter) -> None:
    exporter.run()
    exporter.db.execute("UPDATE t SET code = repeat('ü', 10) WHERE id = 50")
    grown = "shape drift: 'code' holds 20 bytes, 5.0 times the longest so far"
    assert exporter.run(shape_drift_warn_factor=5).warnings == ()
    exporter.db.execute("UPDATE t SET code = repeat('ü', 50) WHERE id = 50")
    assert exporter.run(**CHUNKS).warnings == (grown.replace("20", "100"),)
    exporter.db.execute("UPDATE t SET code = repeat('ü', 500) WHERE id = 50")
    assert exporter.run(shape_drift_warn_factor=0).warnings == ()
    assert exporter.run().warnings == (grown.replace("20", "1000").replace("5.0", "10.0"),)
    assert exporter.run().warnings == ()
