"""What holds in every mode: each gate looks at each run, and the same rows are the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from rivet_dagster.config.export import ExportConfig
from rivet_dagster.engine import names
from rivet_dagster.engine.errors import IntegrityError, SchemaDriftError
from rivet_dagster.engine.verify.manifest import success_body
from rivet_dagster.engine.verify.repair import plan_repair
from rivet_dagster.engine.verify.report import Depth
from tests.live.modes import walk
from tests.live.modes.kit import Project
from tests.live.modes.walk import MODES, ROWS

#: Keys that say what is read or where it is cut: each is in some way of the walk.
_CUTTING: Final = (
    *("chunk_", "keyset_", "cursor_", "incremental_", "settle", "late_", "time_column", "days_"),
    "partition_",
)
_NOT_CUTTING: Final = {"chunk_checkpoint", "chunk_max_attempts", "time_column_type"}

GATES: Final[dict[str, Any]] = {
    "on_schema_drift": "fail",
    "verify": "content",
    "value_policy": {"odd": "null"},
    "meta_columns": {"exported_at": True, "row_hash": True},
    "quality": {"row_count_max": ROWS, "null_ratio_max": {"word": 0}, "unique_columns": ["n"]},
}
NO_DRIFT: Final[dict[str, Any]] = {"added": [], "removed": [], "retyped": [], "wider": {}}
DEPTHS: Final[tuple[Depth, ...]] = ("light", "sample", "full")
FAILING: Final[dict[str, Any]] = {"row_count_max": ROWS - 1, "unique_columns": ["k"]}


def test_every_key_that_cuts_is_walked() -> None:
    known = {key for key in ExportConfig.model_fields if key.startswith(_CUTTING)} - _NOT_CUTTING
    assert known <= {key for way in MODES.values() for key in way.keys}


@pytest.mark.parametrize("mode", MODES)
def test_every_gate_looks_at_every_mode(project: Project, mode: str) -> None:
    way = MODES[mode]
    walk.create(project, way)
    walk.fill(project, way)
    quality_stops_a_run(project, way)
    first_run_passes(project, way)
    each_depth_of_validate_sees_its_part(project)
    the_verified_boundary_follows_a_comparison(project)
    cells_that_changed_places_are_seen_by_whole_rows_alone(project, way)
    a_changed_cell_is_found_and_repaired(project, way)
    drift_of_the_shape_is_told(project, way)
    drift_of_the_schema_stops_a_run(project, way)


def quality_stops_a_run(project: Project, way: walk.Way) -> None:
    with pytest.raises(IntegrityError) as caught:
        project.run(**way.keys, parallel=2, **{**GATES, "quality": FAILING})
    assert caught.value.code == "RIVET_QUALITY_FAILED"
    assert [text.split(":")[0] for text in caught.value.message.split("; ")] == [
        "row_count_max",
        "unique_columns of k",
    ]
    assert not caught.value.details["quality"]["passed"]
    assert not [p for p in project.prefix.iterdir() if p.name.startswith((names.SUCCESS, "manifest"))]


def first_run_passes(project: Project, way: walk.Way) -> None:
    project.db.execute(f"UPDATE {way.base} SET odd = 'infinity' WHERE n = 4")
    ran = project.run(**GATES)
    assert ran.outcome.rows == ROWS
    assert project.rows("n") == dict.fromkeys(range(1, ROWS + 1), 1)
    assert ran.outcome.details["nulled"] == {"odd": 1}
    assert [g["status"] for g in ran.outcome.details["quality"]["gates"]] == ["pass"] * 3
    assert ran.outcome.details["drift"] == NO_DRIFT
    with project.engine() as engine:
        assert engine.quality("o").passed
        assert engine.drift("o").as_json() == NO_DRIFT
        assert engine.state.accepted_schema("o") is not None
        committed = engine.state.progression("o", str(project.prefix)).committed
        assert committed is not None
        assert committed.run_id == ran.outcome.run_id


def each_depth_of_validate_sees_its_part(project: Project) -> None:
    """A file that nobody lists, and one sum that differs in a manifest that agrees with itself otherwise."""
    with project.engine() as engine:

        def found(depth: Depth) -> list[str]:
            return [finding.kind for finding in engine.validate("o", depth=depth).findings]

        report = engine.validate("o")
        assert (report.passed, report.rows) == (True, ROWS)
        assert [found(depth) for depth in DEPTHS] == [[], [], []]

        stray = project.prefix / "stray.parquet"
        stray.write_bytes(b"nobody's")
        assert [found(depth) for depth in DEPTHS] == [[], ["untracked_object"], ["untracked_object"]]
        stray.unlink()

        kept = {p: p.read_bytes() for p in project.prefix.glob("[m_]*") if p.is_file()}
        body = json.loads((project.prefix / names.MANIFEST).read_bytes())
        sums = body["column_checksums"]
        assert {entry["name"] for entry in sums} >= {"n", "word", "_rivet_exported_at", "_rivet_row_hash"}
        sums[-1]["checksum"] = str(int(sums[-1]["checksum"]) ^ 1)
        data = json.dumps(body).encode()
        for path in kept:
            path.write_bytes(success_body(data) if path.name == names.SUCCESS else data)
        assert [found(depth) for depth in DEPTHS] == [[], [], ["value_checksum_mismatch"]]
        for path, before in kept.items():
            path.write_bytes(before)


def the_verified_boundary_follows_a_comparison(project: Project) -> None:
    with project.engine() as engine:
        progression = engine.state.progression("o", str(project.prefix))
        assert progression.verified is None
        assert engine.reconcile("o").status == "match"
        again = engine.state.progression("o", str(project.prefix))
    assert again.verified is not None
    assert again.committed is not None
    seen = [(b.strategy, b.run_id, b.cursor, b.chunk_index) for b in (again.verified, again.committed)]
    assert seen[0] == seen[1]


def cells_that_changed_places_are_seen_by_whole_rows_alone(project: Project, way: walk.Way) -> None:
    """Two rows of one unit, whatever the table is cut by."""
    with project.engine() as engine:
        assert engine.reconcile("o", depth="rows").status == "match"
        first, other = walk.NEIGHBOURS
        project.db.execute(
            f"UPDATE {way.base} t SET word = o.word FROM {way.base} o"
            f" WHERE t.n IN ({first}, {other}) AND o.n = {first + other} - t.n"
        )
        # a row of late_rows is a version, and these are of a later transaction
        sums = "mismatch" if "late_rows" in way.keys else "match"
        assert [engine.reconcile("o", depth=d).status for d in ("sums", "rows")] == [sums, "mismatch"]


def a_changed_cell_is_found_and_repaired(project: Project, way: walk.Way) -> None:
    project.db.execute(f"UPDATE {way.base} SET word = 'changed' WHERE n = 5")
    report = project.reconciled()
    assert report.count("mismatch") == 1
    plan = plan_repair(report)
    assert bool(plan.actions) != plan.fresh_run
    assert len(plan.actions) <= 1
    if "late_rows" not in way.keys:
        assert all(unit.source_rows == unit.exported_rows for unit in report.units)
    project.repair("rows")
    assert project.reconciled("rows").status == "match"
    assert project.validate().findings == ()
    assert project.rows("n") == dict.fromkeys(range(1, ROWS + 1), 1)
    assert project.rows("word")["changed"] == 1


def drift_of_the_shape_is_told(project: Project, way: walk.Way) -> None:
    walk.insert(project, way, ROWS + 1, ROWS + 1, "repeat('w', 999)")
    ran = project.run(quality={"row_count_min": 1})
    assert project.rows("n")[ROWS + 1] == 1
    assert [w.split(",")[0] for w in ran.outcome.warnings if "'word'" in w] == [
        "shape drift: 'word' holds 999 bytes"
    ]
    wider = ran.outcome.details["drift"]["wider"]
    assert [size for size, _ in wider.values()] == [999]
    assert project.validate().findings == ()


def drift_of_the_schema_stops_a_run(project: Project, way: walk.Way) -> None:
    good = project.manifest()
    walk.add_a_column(project, way)
    walk.insert(project, way, ROWS + 2, ROWS + 2)
    with pytest.raises(SchemaDriftError) as caught:
        project.run()
    assert "added: extra" in caught.value.message
    assert caught.value.details["drift"] == {**NO_DRIFT, "added": ["extra"]}
    with project.engine() as engine:
        assert engine.drift("o").added == ("extra",)
    assert project.manifest() == good


def test_a_window_that_nobody_compared_holds_the_verified_boundary_back(project: Project) -> None:
    way = MODES["incremental"]
    walk.create(project, way)
    walk.fill(project, way)

    def run(compared: bool) -> tuple[str | None, str | None]:
        project.run(**way.keys)
        with project.engine() as engine:
            if compared:
                assert engine.reconcile("o").status == "match"
            known = engine.state.progression("o", str(project.prefix))
        cursors = [None if b is None else b.cursor for b in (known.committed, known.verified)]
        return cursors[0], cursors[1]

    first, verified = run(compared=True)
    assert verified == first
    seen = []
    for row, compared in ((1, True), (2, False), (3, True)):
        walk.insert(project, way, ROWS + row, ROWS + row)
        seen.append(run(compared))
    assert [verified for _, verified in seen] == [seen[0][0]] * 3
    assert seen[0][0] != first


@pytest.mark.parametrize("mode", MODES)
def test_workers_change_no_byte(
    project: Project, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rivet_dagster.engine.plan.sizing.UNIT_MIN_BYTES", 16_384)
    monkeypatch.setattr("rivet_dagster.engine.plan.sizing.STATEMENT_BYTES", 8_192)
    monkeypatch.setattr("rivet_dagster.engine.plan.guards.MEMORY_CHUNK_ROWS", (5, 10))
    way = MODES[mode]
    walk.create(project, way)
    walk.fill(project, way)
    seen: dict[str, list[Any]] = {"parquet": [], "csv": []}
    for written, parallel in (("parquet", 1), ("parquet", 2), ("parquet", 4), ("csv", 1), ("csv", 4)):
        other = Project(tmp_path / f"{written}{parallel}", project.db)
        other.folder.mkdir()
        (other.folder / "rows.sql").write_text("SELECT * FROM t")
        ran = other.run(**way.keys, parallel=parallel, format=written)
        seen[written].append(
            [[(p.fingerprint, p.size_bytes, p.checksums) for p in u.parts] for u in ran.units]
        )
        assert ran.outcome.rows == ROWS
        assert (len(ran.units) > 2) == way.splits
    for runs in seen.values():
        assert all(run == runs[0] for run in runs)
