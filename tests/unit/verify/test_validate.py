"""Every fault that is planted in a prefix is found, with its code and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pytest

from rivet_dagster.engine import names
from rivet_dagster.engine.destinations.base import Store
from rivet_dagster.engine.destinations.local import LocalStore
from rivet_dagster.engine.errors import EnvironmentFault, IntegrityError, TransientError
from rivet_dagster.engine.verify.manifest import Extraction
from rivet_dagster.engine.verify.report import KINDS, Depth, ValidationReport, reports_json
from rivet_dagster.engine.verify.validate import validate_prefix
from tests.unit.verify.prefixes import EXPORT, Prefix, table

FIRST = Extraction("incremental", cursor_column="id", cursor_high="9")
WINDOW = Extraction("incremental", cursor_column="id", cursor_low="9", cursor_high="99")


@pytest.fixture
def prefix(tmp_path: Path) -> Prefix:
    made = Prefix(tmp_path / "out")
    made.write_run([table(0, 100), table(100, 50)])
    return made


def check(prefix: Prefix, depth: Depth = "full", **options: Any) -> ValidationReport:
    return validate_prefix(prefix.store, str(prefix.root), depth=depth, export_name=EXPORT, **options)


def kinds(report: ValidationReport) -> list[str]:
    return [finding.kind for finding in report.findings]


@pytest.mark.parametrize(("depth", "parts"), [("light", 0), ("sample", 2), ("full", 2)])
def test_an_intact_prefix_passes_at_every_depth(prefix: Prefix, depth: Depth, parts: int) -> None:
    report = check(prefix, depth)
    assert report.passed
    assert report.status == "pass"
    report.raise_if_failed()
    assert (report.rows, report.parts) == (150, parts)
    assert report.as_json() == {
        "export_name": EXPORT,
        "resolved_prefix": str(prefix.root),
        "verification": {
            "manifest_found": True,
            "legacy_run": False,
            "parts_verified": parts,
            "parts_md5_verified": 2 if depth == "full" else 0,
            "parts_failed": 0,
            "success_marker_consistent": True,
            "manifest_self_consistent": True,
            "passed": True,
            "failures": [],
            "depth_level": depth,
            "run_id": prefix.runs[0].run_id,
        },
        "quarantine": {"files": 0, "bytes": 0},
    }


def flip_byte(prefix: Prefix) -> None:
    data = bytearray(prefix.path().read_bytes())
    data[len(data) // 3] ^= 1
    prefix.path().write_bytes(data)


def truncate(prefix: Prefix) -> None:
    os.truncate(prefix.path(), prefix.path().stat().st_size - 7)


def with_restamped_part(prefix: Prefix, data: bytes) -> None:
    """Replace the first part by other bytes, and everything that vouches for them but the content."""
    prefix.path().write_bytes(data)
    stamped = prefix.part(prefix.path().name, 0, None)

    def change(body: dict[str, Any]) -> None:
        body["parts"][0].update(
            size_bytes=stamped.size_bytes, content_fingerprint=stamped.fingerprint, content_md5=stamped.md5
        )

    prefix.edit_manifest(change)


Fault = tuple[str, Callable[[Prefix], object], str]
STRUCTURAL: list[Fault] = [
    ("part deleted", lambda p: p.path().unlink(), "part_missing"),
    ("part truncated", truncate, "part_size_mismatch"),
    (
        "size edited",
        lambda p: p.edit_manifest(lambda b: b["parts"][0].update(size_bytes=1)),
        "part_size_mismatch",
    ),
    ("manifest deleted", lambda p: (p.root / names.MANIFEST).unlink(), "manifest_missing_under_marker"),
    ("manifest is no JSON", lambda p: p.publish(b"{", p.runs[0].run_id), "manifest_self_inconsistent"),
    ("rows edited", lambda p: p.edit_manifest(lambda b: b.update(row_count=1)), "manifest_self_inconsistent"),
    ("marker missing", lambda p: (p.root / names.SUCCESS).unlink(), "success_marker_missing"),
    ("marker odd", lambda p: (p.root / names.SUCCESS).write_bytes(b"yes\n"), "success_marker_malformed"),
    (
        "marker binary",
        lambda p: (p.root / names.SUCCESS).write_bytes(b"\xff\x00"),
        "success_marker_malformed",
    ),
    ("marker huge", lambda p: (p.root / names.SUCCESS).write_bytes(b"x" * 10**6), "success_marker_malformed"),
    (
        "marker stale",
        lambda p: (p.root / names.SUCCESS).write_bytes(b"xxh3:0123456789abcdef\n"),
        "success_marker_stale",
    ),
    ("run failed", lambda p: p.edit_manifest(lambda b: b.update(status="failed")), "run_not_successful"),
    (
        "other export",
        lambda p: p.edit_manifest(lambda b: b.update(export_name="x", export_family="x")),
        "foreign_manifest",
    ),
    (
        "copy deleted",
        lambda p: (p.root / names.manifest_copy(p.runs[0].run_id)).unlink(),
        "manifest_copy_differs",
    ),
    (
        "copy edited",
        lambda p: (p.root / names.manifest_copy(p.runs[0].run_id)).write_bytes(b"{}"),
        "manifest_copy_differs",
    ),
]


@pytest.mark.parametrize(("fault", "expected"), [f[1:] for f in STRUCTURAL], ids=[f[0] for f in STRUCTURAL])
def test_a_structural_fault_is_found_without_reading_parts(
    prefix: Prefix, fault: Callable[[Prefix], object], expected: str
) -> None:
    fault(prefix)
    report = check(prefix, "sample")
    assert kinds(report) == [expected]
    assert not report.passed
    assert report.status == "fail"
    with pytest.raises(IntegrityError, match=KINDS[expected].code):
        report.raise_if_failed()


def test_an_edited_manifest_is_found_by_the_marker(prefix: Prefix) -> None:
    path = prefix.root / names.MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"zstd"', b'"zsTd"'))
    assert kinds(check(prefix, "light")) == ["success_marker_stale", "manifest_copy_differs"]


def test_a_flipped_byte_is_found_by_reading_the_part(prefix: Prefix) -> None:
    flip_byte(prefix)
    assert check(prefix, "sample").passed
    report = check(prefix)
    assert kinds(report) == ["part_checksum_mismatch", "part_checksum_mismatch"]
    assert [f.details["of"] for f in report.findings] == ["content_fingerprint", "content_md5"]
    assert (report.parts_verified, report.parts_failed, report.parts_md5_verified) == (1, 1, 1)


def swap_two_cells(rows: pa.Table) -> pa.Table:
    names_ = rows["name"].to_pylist()
    names_[1], names_[2] = names_[2], names_[1]
    return rows.set_column(1, rows.schema.field("name"), pa.array(names_, pa.string()))


def one_cell_null(rows: pa.Table) -> pa.Table:
    return rows.set_column(1, rows.schema.field("name"), pa.array([None, *rows["name"].to_pylist()[1:]]))


def other_values(rows: pa.Table) -> pa.Table:
    """As many rows, as many nulls, the same sum: two amounts moved against each other."""
    amounts = rows["amount"].to_pylist()
    amounts[3], amounts[4] = amounts[3] - 1, amounts[4] + 1
    return rows.set_column(2, rows.schema.field("amount"), pa.array(amounts, pa.decimal128(21, 2)))


def shifted_days(rows: pa.Table) -> pa.Table:
    days = [[v + 2] for v in range(rows.num_rows)]
    return rows.set_column(4, rows.schema.field("days"), pa.array(days, rows.schema.field("days").type))


@pytest.mark.parametrize(
    ("alter", "column"),
    [(swap_two_cells, "name"), (other_values, "amount"), (shifted_days, "days")],
)
def test_values_that_are_not_the_ones_read_are_found_by_column(
    tmp_path: Path, alter: Callable[[pa.Table], pa.Table], column: str
) -> None:
    """The writer's fault: bytes, sizes, counts and schema all agree with the manifest."""
    made = Prefix(tmp_path)
    made.write_run([table(1, 60)], alter=alter)
    assert check(made, "sample").passed
    report = check(made)
    assert kinds(report) == ["value_checksum_mismatch"]
    assert report.findings[0].details["column"] == column


def test_without_a_key_swapped_cells_are_beyond_the_checksum(tmp_path: Path) -> None:
    made = Prefix(tmp_path, key=None)
    made.write_run([table(1, 60)], alter=swap_two_cells)
    assert check(made).passed
    made.write_run([table(1, 60)], number=2, alter=other_values)
    assert "value_checksum_mismatch" in kinds(check(made))


def test_a_part_with_other_rows_is_found_however_well_it_is_stamped(prefix: Prefix, tmp_path: Path) -> None:
    other = Prefix(tmp_path / "other")
    other.write_run([table(0, 99)])
    with_restamped_part(prefix, other.path().read_bytes())
    assert kinds(check(prefix)) == ["part_row_count_mismatch"]


def test_a_part_of_another_schema_is_found(prefix: Prefix, tmp_path: Path) -> None:
    other = Prefix(tmp_path / "other")
    other.write_run([table(0, 100).rename_columns(["id", "name", "amount", "tags", "days", "uuid"])])
    with_restamped_part(prefix, other.path().read_bytes())
    assert kinds(check(prefix)) == ["schema_fingerprint_mismatch"]


@pytest.mark.parametrize("data", [b"", b"not parquet", b"PAR1" + b"\x00" * 50 + b"PAR1"], ids=range(3))
def test_a_part_that_is_no_parquet_is_found(prefix: Prefix, data: bytes) -> None:
    with_restamped_part(prefix, data)
    assert kinds(check(prefix)) == ["part_unreadable"]


def test_a_checksum_of_a_column_that_is_not_there_is_found(prefix: Prefix) -> None:
    prefix.edit_manifest(lambda b: b["column_checksums"].append({"name": "ghost", "checksum": "1"}))
    report = check(prefix)
    assert [(f.kind, f.details["column"]) for f in report.findings] == [("value_checksum_mismatch", "ghost")]


def test_one_edited_checksum_is_found(prefix: Prefix) -> None:
    prefix.edit_manifest(lambda b: b["column_checksums"][0].update(checksum="5"))
    report = check(prefix)
    assert [(f.kind, f.details["column"]) for f in report.findings] == [("value_checksum_mismatch", "amount")]


def test_an_unknown_render_is_reported_and_not_compared(prefix: Prefix) -> None:
    prefix.edit_manifest(lambda b: b.update(checksum_render="xxh3-64-sum-v9"))
    report = check(prefix)
    assert report.passed
    assert kinds(report) == ["value_check_not_available"]


def test_files_that_nobody_lists_are_reported_and_do_not_fail(prefix: Prefix) -> None:
    for name in ("stray.parquet", ".left.parquet.1a2b.tmp", "sub/deep.parquet"):
        path = prefix.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    for name in (".rivet_doctor_probe", "_quarantine/old/x.parquet"):
        (prefix.root / name).parent.mkdir(parents=True, exist_ok=True)
        (prefix.root / name).write_bytes(b"x")
    report = check(prefix, "sample")
    assert report.passed
    assert [(f.kind, f.path) for f in report.findings] == [
        ("untracked_object", ".left.parquet.1a2b.tmp"),
        ("untracked_object", "stray.parquet"),
        ("untracked_object", "sub/deep.parquet"),
    ]
    output = reports_json([report])
    assert output["warnings"][1] == {
        "export_name": EXPORT,
        "warning": {
            "kind": "untracked_object",
            "key": "stray.parquet",
            "size_bytes": 1,
            "code": "RIVET_VERIFY_UNTRACKED_OBJECT",
        },
    }
    assert check(prefix, "light").findings == ()


@pytest.mark.parametrize("stray", [None, "data.parquet"])
def test_a_prefix_without_a_manifest_is_legacy_and_never_passes(tmp_path: Path, stray: str | None) -> None:
    made = Prefix(tmp_path / "none")
    if stray is not None:
        made.root.mkdir()
        (made.root / stray).write_bytes(b"x")
    report = check(made)
    assert (report.legacy_run, report.passed, report.status) == (True, False, "unverified")
    with pytest.raises(EnvironmentFault, match="holds no manifest"):
        report.raise_if_failed()


def test_before_the_marker_is_written_its_absence_is_no_fault(prefix: Prefix) -> None:
    (prefix.root / names.SUCCESS).unlink()
    report = check(prefix, require_success=False)
    assert report.passed
    assert not report.success_marker_consistent


class Unreadable(LocalStore):
    """A store whose chosen operation fails as a network would."""

    def __init__(self, root: Path, fails: str) -> None:
        super().__init__(root)
        self.fails = fails

    def read_bytes(self, name: str, limit: int) -> bytes | None:
        if name == self.fails:
            raise TransientError("gone", code="RIVET_DEST_UNAVAILABLE")
        return super().read_bytes(name, limit)

    def list(self) -> Any:
        if self.fails == "list":
            raise TransientError("gone", code="RIVET_DEST_UNAVAILABLE")
        return super().list()

    def open_input(self, name: str) -> BinaryIO:
        if self.fails == "open":
            raise TransientError("gone", code="RIVET_DEST_UNAVAILABLE")
        return super().open_input(name)


@pytest.mark.parametrize(
    ("fails", "expected"),
    [
        (names.MANIFEST, ["manifest_read_error"]),
        (names.SUCCESS, ["success_read_error"]),
        ("list", ["list_error"]),
        ("open", ["part_read_error", "part_read_error"]),
    ],
)
def test_what_cannot_be_read_is_unverified_and_not_wrong(
    prefix: Prefix, fails: str, expected: list[str]
) -> None:
    store: Store = Unreadable(prefix.root, fails)
    report = validate_prefix(store, str(prefix.root), export_name=EXPORT)
    assert kinds(report) == expected
    assert report.status == "unverified"
    with pytest.raises(EnvironmentFault) as caught:
        report.raise_if_failed()
    assert caught.value.code == "RIVET_VALIDATE_UNVERIFIED"


def deltas(tmp_path: Path) -> Prefix:
    made = Prefix(tmp_path)
    made.write_run([table(0, 10)], number=1, extraction=FIRST)
    made.write_run([table(10, 10)], number=2, extraction=WINDOW)
    return made


def test_windows_of_a_cursor_add_up_and_all_are_checked(tmp_path: Path) -> None:
    made = deltas(tmp_path)
    assert check(made).findings == ()
    old = made.root / made.runs[0].parts[0].path
    data = bytearray(old.read_bytes())
    data[20] ^= 1
    old.write_bytes(data)
    assert check(made).passed  # sizes only, unless asked for
    changed = check(made, history="full")
    assert {f.kind for f in changed.findings} == {"part_checksum_mismatch"}
    assert changed.findings[0].details["run_id"] == made.runs[0].run_id
    old.unlink()
    report = check(made, "sample")
    assert kinds(report) == ["part_missing"]
    assert report.findings[0].details["run_id"] == made.runs[0].run_id


def test_a_malformed_manifest_of_an_earlier_window_is_found(tmp_path: Path) -> None:
    made = deltas(tmp_path)
    (made.root / names.manifest_copy(made.runs[0].run_id)).write_bytes(b"[]")
    assert kinds(check(made, "sample")) == ["manifest_self_inconsistent", "untracked_object"]


def test_parts_that_a_whole_pass_replaced_are_not_missed_and_not_welcome(tmp_path: Path) -> None:
    made = Prefix(tmp_path)
    made.write_run([table(0, 10)], number=1)
    made.write_run([table(0, 12)], number=2)
    left = check(made, "sample")
    assert left.passed
    assert [(f.kind, f.details["run_id"]) for f in left.findings] == [
        ("superseded_object", made.runs[0].run_id)
    ]
    (made.root / made.runs[0].parts[0].path).unlink()
    assert check(made, "sample").findings == ()


def test_a_superseded_window_does_not_count(tmp_path: Path) -> None:
    made = deltas(tmp_path)
    made.write_run([table(0, 30)], number=3, extraction=WINDOW, supersedes=[r.run_id for r in made.runs])
    for run in made.runs[:2]:
        (made.root / run.parts[0].path).unlink()
    assert check(made).findings == ()


@pytest.mark.parametrize("between", [None, FIRST], ids=["pass", "cursor"])
def test_windows_before_a_whole_pass_do_not_count_after_it(
    tmp_path: Path, between: Extraction | None
) -> None:
    made = deltas(tmp_path)
    made.write_run([table(0, 20)], number=3, extraction=between)
    made.write_run([table(20, 10)], number=4, extraction=WINDOW if between else FIRST)
    for run in made.runs[: 2 if between else 3]:
        (made.root / run.parts[0].path).unlink()
    assert check(made).findings == ()
    (made.root / made.runs[-1].parts[0].path).unlink()
    assert kinds(check(made, "sample")) == ["part_missing"]


def test_a_whole_pass_after_windows_stands_alone(tmp_path: Path) -> None:
    made = deltas(tmp_path)
    made.write_run([table(0, 30)], number=3)
    for run in made.runs[:2]:
        (made.root / run.parts[0].path).unlink()
    assert check(made).findings == ()


@pytest.mark.parametrize("number", [4, 5])
def test_windows_before_a_whole_pass_do_not_count(tmp_path: Path, number: int) -> None:
    """Whether that pass began a cursor anew or was of another mode, and with windows after it or none."""
    made = deltas(tmp_path)
    made.write_run([table(0, 30)], number=3, extraction=FIRST)
    if number == 5:
        made.write_run([table(30, 5)], number=4, extraction=WINDOW)
    for run in made.runs[:2]:
        (made.root / run.parts[0].path).unlink()
    assert check(made).findings == ()
    (made.root / made.runs[2].parts[0].path).unlink()
    assert kinds(check(made, "sample")) == ["part_missing"]


def test_one_earlier_run_can_be_asked_for(tmp_path: Path) -> None:
    made = deltas(tmp_path)
    report = check(made, run_id=made.runs[0].run_id)
    assert report.passed
    assert (report.run_id, report.rows) == (made.runs[0].run_id, 10)
    (made.root / made.runs[0].parts[0].path).unlink()
    assert kinds(check(made, run_id=made.runs[0].run_id)) == ["part_missing"]


def test_a_copy_under_another_runs_name_is_found(tmp_path: Path) -> None:
    made = deltas(tmp_path)
    first, second = (made.root / names.manifest_copy(r.run_id) for r in made.runs)
    first.write_bytes(second.read_bytes())
    assert kinds(check(made, "light", run_id=made.runs[0].run_id)) == ["manifest_self_inconsistent"]


def test_csv_parts_are_counted_and_say_that_values_are_not_compared(tmp_path: Path) -> None:
    made = Prefix(tmp_path, format="csv")
    made.write_run([table(0, 30)])
    report = check(made)
    assert report.passed
    assert kinds(report) == ["value_check_not_available"]
    assert report.findings[0].as_json()["format"] == "csv"
    with made.path().open("ab") as file:
        file.write(b'31,"a\nb"\n')
    data = made.path().read_bytes()
    with_restamped_part(made, data)
    assert kinds(check(made)) == ["part_row_count_mismatch"]


def test_a_run_without_rows_passes(tmp_path: Path) -> None:
    for part_format in ("parquet", "csv"):
        made = Prefix(tmp_path / part_format, format=part_format)
        made.write_run([table(0, 0)])
        assert check(made).findings == ()


def test_no_value_of_a_row_is_in_a_report(tmp_path: Path) -> None:
    made = Prefix(tmp_path)
    secret = pa.table({"id": pa.array([1], pa.int64()), "name": ["s3cret-value"]})
    made.write_run([secret], alter=lambda t: t.set_column(1, "name", pa.array(["0ther-value"])))
    text = json.dumps(reports_json([check(made)]))
    assert "VALUE_CHECKSUM" in text
    assert "s3cret" not in text
    assert "0ther" not in text
