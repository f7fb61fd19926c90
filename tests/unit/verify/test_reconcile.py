"""Reconcile finds other counts and other values, names them, and never shows a value."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from msgspec.structs import replace

from rivet_dagster.engine.destinations.local import LocalStore
from rivet_dagster.engine.errors import IntegrityError, TransientError, UsageError
from rivet_dagster.engine.plan.units import Part, UnitKind, WorkUnit
from rivet_dagster.engine.types.aggregates import Aggregates, ColumnAggregate
from rivet_dagster.engine.types.decision import Column
from rivet_dagster.engine.verify.manifest import UnitParts
from rivet_dagster.engine.verify.reconcile import ReconcileReport, SourceAggregate, Whole, reconcile_units
from rivet_dagster.engine.verify.repair import plan_repair, read_report
from tests.unit.verify.prefixes import Prefix, table

ROWS = 50


def columns_of(schema: pa.Schema) -> list[Column]:
    return [Column(f.name, "x", f.type, f'"{f.name}"', 0) for f in schema]


def aggregate(batches: Iterable[pa.RecordBatch], columns: Sequence[Column]) -> Aggregates:
    """Nulls of each column, and bounds and sum of integers: the least that an engine offers."""
    schema = pa.schema([(c.name, c.arrow) for c in columns])
    rows = pa.Table.from_batches([b.select(schema.names).cast(schema) for b in batches], schema)
    found = {}
    for column in columns:
        values = rows[column.name]
        statistics: dict[str, Any] = {"nulls": values.null_count}
        if pa.types.is_integer(column.arrow):
            bounds = pc.min_max(values).as_py()
            statistics |= {**bounds, "sum": pc.sum(values).as_py()}
        found[column.name] = ColumnAggregate(statistics)
    return Aggregates(rows.num_rows, found)


class Source:
    """What the source holds now: the tables by unit, and everything for the whole table."""

    def __init__(self, tables: Sequence[pa.Table], columns: Sequence[Column]) -> None:
        self.tables = list(tables)
        self.columns = columns
        self.asked: list[WorkUnit] = []

    def __call__(self, unit: WorkUnit) -> Aggregates | None:
        self.asked.append(unit)
        tables = self.tables if unit.kind is UnitKind.WHOLE else [self.tables[unit.index]]
        return aggregate([b for t in tables for b in t.to_batches()], self.columns)


class Case:
    def __init__(self, root: Path, file_format: str = "parquet", kind: UnitKind = UnitKind.RANGE) -> None:
        self.prefix = Prefix(root, format=file_format)
        self.tables = [table(0, ROWS), table(100, ROWS)]
        if file_format == "csv":
            self.tables = [t.select(["id", "name"]) for t in self.tables]
        self.columns = columns_of(self.tables[0].schema)
        manifest = self.prefix.write_run(self.tables)
        self.source = Source(self.tables, list(self.columns))
        self.units = [
            UnitParts(
                WorkUnit(i, kind, f"c{i}", {}, str(100 * i), str(100 * i + 99)),
                [Part(p.path, p.rows, p.size_bytes, p.content_fingerprint)],
            )
            for i, p in enumerate(manifest.parts)
        ]

    def run(self, ask: SourceAggregate | None = None, **options: Any) -> ReconcileReport:
        return reconcile_units(
            ask or self.source,
            self.units,
            self.prefix.store,
            self.columns,
            batch_aggregate=aggregate,
            export_name="orders",
            run_id="r1",
            strategy="chunked",
            file_format=self.prefix.format,
            **options,
        )


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


@pytest.mark.parametrize("file_format", ["parquet", "csv"])
def test_equal_data_matches_in_the_shape_of_the_reference(tmp_path: Path, file_format: str) -> None:
    report = Case(tmp_path, file_format).run()
    assert report.status == "match"
    report.raise_if_mismatch()
    body = report.as_json()
    assert body["summary"] == {
        "total_partitions": 2,
        "matches": 2,
        "mismatches": 0,
        "unknown": 0,
        "total_source_rows": 100,
        "total_exported_rows": 100,
    }
    assert body["partitions"][1] == {
        "kind": "chunk",
        "identifier": "chunk 1 [100..199]",
        "source_count": 50,
        "exported_count": 50,
        "status": "match",
        "chunk_index": 1,
        "start_key": "100",
        "end_key": "199",
        "partition": "c1",
    }


def test_rows_that_went_away_are_a_mismatch_with_the_references_note(case: Case) -> None:
    case.source.tables[0] = case.tables[0].slice(21)
    report = case.run()
    assert [u.status for u in report.units] == ["mismatch", "match"]
    assert report.units[0].note is not None
    assert report.units[0].note.startswith("source=29, exported=50, diff=-21")
    with pytest.raises(IntegrityError, match="1 of 2 partitions") as caught:
        report.raise_if_mismatch()
    assert caught.value.code == "RIVET_RECONCILE_MISMATCH"


def changed(rows: pa.Table, name: str, values: list[Any]) -> pa.Table:
    index = rows.schema.get_field_index(name)
    return rows.set_column(index, rows.schema.field(name), pa.array(values, rows.schema.field(name).type))


@pytest.mark.parametrize("file_format", ["parquet", "csv"])
def test_a_column_that_became_null_is_found_at_an_equal_count(tmp_path: Path, file_format: str) -> None:
    case = Case(tmp_path, file_format)
    case.source.tables[1] = changed(case.tables[1], "name", ["x"] * ROWS)
    report = case.run()
    assert report.units[1].note == "columns that differ: name: nulls"
    assert report.as_json()["partitions"][1]["columns"] == [{"name": "name", "differs": ["nulls"]}]


def test_another_value_is_found_at_an_equal_count(case: Case) -> None:
    ids = list(range(100, 100 + ROWS))
    ids[7] = 123_456_789
    case.source.tables[1] = changed(case.tables[1], "id", ids)
    report = case.run()
    assert report.units[1].columns == (("id", ("max", "sum")),)
    text = json.dumps(report.as_json())
    assert "123456789" not in text
    assert report.units[0].status == "match"


def test_many_columns_that_differ_are_named_up_to_ten() -> None:
    from rivet_dagster.engine.verify.reconcile import _compared

    def side(value: int) -> Aggregates:
        return Aggregates(1, {f"c{i:02d}": ColumnAggregate({"sum": value}) for i in range(12)})

    verdict = _compared(side(1), side(2))
    assert len(verdict["columns"]) == 12
    assert verdict["note"].endswith("c09: sum; and 2 more")


def test_only_statistics_that_both_sides_have_are_compared() -> None:
    left = ColumnAggregate({"nulls": 0, "sum": 3, "min": 1})
    assert left.differences(ColumnAggregate({"nulls": 0, "max": 9})) == []
    assert left.differences(ColumnAggregate({"sum": 4, "min": 2})) == ["sum", "min"]


def test_what_the_source_cannot_say_is_unknown(case: Case) -> None:
    report = case.run(lambda unit: None)
    assert report.status == "unknown"
    report.raise_if_mismatch()
    assert report.as_json()["summary"]["unknown"] == 2
    assert report.units[0].source_rows is None
    assert report.units[0].exported_rows == ROWS


def test_a_failing_source_is_not_an_answer(case: Case) -> None:
    def broken(unit: WorkUnit) -> Aggregates | None:
        raise TransientError("gone")

    with pytest.raises(TransientError):
        case.run(broken)


def test_page_ranges_are_compared_as_one_table(tmp_path: Path) -> None:
    case = Case(tmp_path, kind=UnitKind.PAGES)
    report = case.run(whole=Whole())
    assert [(u.index, u.identifier, u.status, u.exported_rows) for u in report.units] == [
        (None, "table", "match", 100)
    ]
    assert [unit.kind for unit in case.source.asked] == [UnitKind.WHOLE]
    assert report.as_json()["partitions"][0]["kind"] == "table"
    unknown = case.run(whole=Whole(None, "gone"))
    found = unknown.units[0]
    assert (unknown.status, found.exported_rows, found.note) == ("unknown", 100, "gone")


@pytest.mark.parametrize("damage", ["missing", "short", "torn"])
def test_a_part_that_cannot_be_read_is_a_mismatch(case: Case, damage: str) -> None:
    if damage == "missing":
        case.prefix.path(0).unlink()
    else:
        size = case.prefix.path(0).stat().st_size
        case.prefix.path(0).write_bytes(b"x" * size if damage == "torn" else b"x")
    report = case.run()
    assert [u.status for u in report.units] == ["mismatch", "match"]
    assert report.units[0].exported_rows is None
    assert "part" in (report.units[0].note or "")


def test_a_part_that_cannot_be_reached_now_is_unknown(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(store: LocalStore, name: str) -> int | None:
        raise TransientError("gone", code="RIVET_DEST_UNAVAILABLE")

    monkeypatch.setattr(LocalStore, "size", unreachable)
    report = case.run()
    assert [u.status for u in report.units] == ["unknown", "unknown"]
    assert report.units[0].note == "a part could not be read: RIVET_DEST_UNAVAILABLE"


def test_csv_columns_that_are_text_in_the_file_are_compared_by_their_nulls(tmp_path: Path) -> None:
    case = Case(tmp_path, "csv")
    # as far as the source knows, the text in the file is a uuid
    case.columns[1] = replace(case.columns[1], arrow=pa.uuid())
    assert case.run().status == "match"
    case.source.tables[0] = changed(case.tables[0], "name", ["x"] * ROWS)
    assert case.run().units[0].columns == (("name", ("nulls",)),)


def test_a_report_without_units_is_unknown() -> None:
    assert ReconcileReport("e", "r", "chunked", ()).status == "unknown"


def test_a_repair_runs_what_differs_and_skips_what_nobody_knows(case: Case) -> None:
    case.source.tables[0] = case.tables[0].slice(21)
    report = case.run(lambda unit: case.source(unit) if unit.index == 0 else None)
    plan = plan_repair(report)
    assert plan.partitions == ("c0",)
    assert not plan.fresh_run
    body = plan.as_json()
    assert list(body)[:5] == ["rivet_version", "export_name", "reconcile_run_id", "strategy", "actions"]
    action = body["actions"][0]
    assert (action["chunk_index"], action["start_key"], action["end_key"]) == (0, "0", "99")
    assert action["reason"].startswith("source=29, exported=50, diff=-21")
    assert body["skipped"][0]["identifier"] == "chunk 1 [100..199]"
    assert [a.chunk_index for a in plan_repair(report, include_unknown=True).actions] == [0, 1]


def test_nothing_is_repaired_where_everything_matches(case: Case) -> None:
    plan = plan_repair(case.run())
    assert (plan.actions, plan.skipped, plan.fresh_run) == ((), (), False)


def test_a_table_read_by_pages_is_repaired_by_a_fresh_run(tmp_path: Path) -> None:
    case = Case(tmp_path, kind=UnitKind.PAGES)
    case.source.tables[0] = case.tables[0].slice(1)
    plan = plan_repair(case.run(whole=Whole()))
    assert plan.fresh_run
    assert plan.actions == ()
    assert plan.skipped[0][0] == "table"


def test_a_stored_report_gives_the_same_plan(case: Case) -> None:
    case.source.tables[0] = case.tables[0].slice(21)
    report = case.run()
    again = read_report(json.loads(json.dumps(report.as_json())))
    assert plan_repair(again) == plan_repair(report)
    assert again.units == tuple(replace(u, columns=()) for u in report.units)


def test_a_report_of_the_reference_is_read() -> None:
    body = {
        "rivet_version": "0.32.2",
        "export_name": "orders",
        "run_id": "r",
        "strategy": "chunked",
        "partitions": [
            {"kind": "chunk", "identifier": "chunk 3 [-5..400]", "source_count": 1, "exported_count": 2,
             "status": "mismatch", "note": "source=1, exported=2, diff=-1"},
            {"kind": "chunk", "identifier": "chunk 4 [a..b..c]", "source_count": 1, "exported_count": 2,
             "status": "mismatch"},
        ],
        "summary": {},
    }  # fmt: skip
    plan = plan_repair(read_report(body))
    assert [(a.chunk_index, a.start_key, a.end_key) for a in plan.actions] == [(3, "-5", "400")]
    assert plan.skipped[0][0] == "chunk 4 [a..b..c]"


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"export_name": "e", "run_id": "r", "strategy": "s", "partitions": {}},
        {"export_name": "e", "run_id": "r", "strategy": "s", "partitions": [1]},
        {
            "export_name": "e",
            "run_id": "r",
            "strategy": "s",
            "partitions": [{"identifier": "x", "status": "odd"}],
        },
        {"export_name": 1, "run_id": "r", "strategy": "s", "partitions": []},
    ],
)
def test_something_else_than_a_report_is_refused(body: object) -> None:
    with pytest.raises(UsageError):
        read_report(body)
