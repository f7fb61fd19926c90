"""The manifest: shape of the reference, consistency, and a reader that trusts nothing."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivet_dagster.engine.errors import InternalError
from rivet_dagster.engine.plan.units import Part, UnitKind, WorkUnit
from rivet_dagster.engine.verify.fingerprint import bytes_fingerprint
from rivet_dagster.engine.verify.manifest import (
    Extraction,
    Manifest,
    ManifestError,
    MarkerError,
    SourceRecord,
    UnitParts,
    build_manifest,
    parse_success,
    success_body,
)
from rivet_dagster.engine.verify.manifest_reader import parse_manifest

#: What rivet-cli 0.32.2 wrote for an incremental export, its part list cut to one.
REFERENCE: dict[str, Any] = {
    "manifest_version": 1,
    "run_id": "inc_20261129T205716.425_12503",
    "export_name": "inc",
    "export_family": "inc",
    "mode": "batch",
    "started_at": "2026-11-29T20:57:16.425718789+00:00",
    "finished_at": "2026-11-29T20:57:16.539394521+00:00",
    "status": "success",
    "source": {
        "engine": "postgres",
        "schema": None,
        "table": "orders",
        "extraction": {
            "strategy": "incremental",
            "cursor_column": "id",
            "cursor_low": "1000",
            "cursor_high": "1005",
        },
    },
    "destination": {"kind": "local", "uri": "file:///out/inc"},
    "format": "parquet",
    "compression": "zstd",
    "schema_fingerprint": "xxh3:1c80fded66f3c0a2",
    "row_count": 5,
    "part_count": 1,
    "parts": [
        {
            "part_id": 1,
            "path": "inc_20261129_205716_425_12503_0b1e7ff1915bf1a0.parquet",
            "rows": 5,
            "size_bytes": 3131,
            "content_fingerprint": "xxh3:f7b04c872e67cd35",
            "content_md5": "qpWMyodJ2UA5r2B7zqv/SA==",
            "status": "committed",
        }
    ],
    "column_checksums": [{"name": "id", "checksum": "15911997093142097512"}],
    "checksum_render": "xxh3-64-sum-v2",
    "checksum_key_column": "id",
}

SCHEMA = pa.schema([("id", pa.int64()), ("days", pa.list_(pa.date32()))])
AT = datetime(2026, 11, 29, 20, 4, 6, 997170, tzinfo=UTC)


def unit(index: int) -> WorkUnit:
    return WorkUnit(index, UnitKind.RANGE, f"c{index}", {}, str(index * 10), str(index * 10 + 9))


def part(name: str, rows: int, sums: dict[str, int] | None) -> Part:
    return Part(f"{name}.parquet", rows, 100 + rows, "xxh3:" + "0" * 16, checksums=sums)


def built(units: list[UnitParts], **options: Any) -> Manifest:
    return build_manifest(
        run_id="orders_20261129T200406.997_abcdef",
        export_name="orders",
        started_at=AT,
        finished_at=AT,
        source=SourceRecord("postgres", "public", "orders", Extraction("chunked")),
        destination_kind="local",
        destination_uri="file:///out/orders",
        format="parquet",
        compression="zstd",
        schema=SCHEMA,
        units=units,
        **options,
    )


def two_units() -> list[UnitParts]:
    return [
        UnitParts(
            unit(1), [part("b0", 5, {"id": 7, "days": 1}), part("b1", 1, {"id": 2**64 - 3, "days": 1})]
        ),
        UnitParts(unit(0), [part("a0", 4, {"id": 10, "days": 5})]),
        UnitParts(unit(2), []),
    ]


def test_a_manifest_of_the_reference_is_read_and_written_alike() -> None:
    manifest = parse_manifest(json.dumps(REFERENCE).encode())
    assert manifest.inconsistencies() == []
    assert manifest.checksums == {"id": 15911997093142097512}
    assert manifest.source.extraction == Extraction("incremental", "id", None, "1000", "1005")
    assert manifest.to_bytes() == json.dumps(REFERENCE, indent=2).encode()  # key order included


def test_parts_are_numbered_in_unit_order_and_sums_are_merged() -> None:
    manifest = built(two_units(), consistency="snapshot", supersedes=["old"], policies={"nan": "null"})
    assert [(p.part_id, p.path) for p in manifest.parts] == [
        (1, "a0.parquet"),
        (2, "b0.parquet"),
        (3, "b1.parquet"),
    ]
    assert manifest.row_count == 10
    assert manifest.part_count == 3
    assert manifest.column_checksums == {"id": 14}  # 7 + 10 + (2^64 - 3), wrapped
    assert manifest.additions is not None
    assert manifest.additions.column_checksums == {"days": 7}  # the reference has no form for it
    assert [(u.index, u.parts, u.rows) for u in manifest.additions.units] == [
        (0, (1,), 4),
        (1, (2, 3), 6),
        (2, (), 0),
    ]
    assert manifest.inconsistencies() == []


def test_what_is_built_survives_the_reader() -> None:
    manifest = built(two_units(), checksum_key_column="id", supersedes=["old"])
    data = manifest.to_bytes()
    assert parse_manifest(data) == manifest
    body = json.loads(data)
    assert list(body)[-4:] == ["column_checksums", "checksum_render", "checksum_key_column", "rivet_dagster"]
    assert body["started_at"] == "2026-11-29T20:04:06.997170+00:00"
    assert body["rivet_dagster"]["units"][1] == {
        "index": 1,
        "partition": "c1",
        "kind": "range",
        "start_key": "10",
        "end_key": "19",
        "parts": [2, 3],
        "rows": 6,
    }


def test_no_checksums_taken_means_no_checksum_keys() -> None:
    manifest = built([UnitParts(unit(0), [part("a", 1, None)])], checksum_key_column="id")
    assert manifest.column_checksums is None
    assert "checksum_render" not in json.loads(manifest.to_bytes())
    assert "checksum_key_column" not in json.loads(manifest.to_bytes())


def test_a_run_without_rows_is_consistent() -> None:
    empty = built([UnitParts(unit(0), [part("a", 0, {})])])
    assert (empty.row_count, empty.part_count, empty.inconsistencies()) == (0, 1, [])
    assert built([]).inconsistencies() == []


@pytest.mark.parametrize(
    "second",
    [None, {}, {"id": 1}, {"id": 1, "days": 1, "ghost": 1}],
    ids=["none", "empty", "column missing", "unknown column"],
)
def test_a_gap_in_the_checksums_is_a_defect(second: dict[str, int] | None) -> None:
    parts = [part("a", 1, {"id": 1, "days": 1}), part("b", 1, second)]
    with pytest.raises(InternalError):
        built([UnitParts(unit(0), parts)])


def tampered(change: Callable[[dict[str, Any]], object]) -> bytes:
    body = copy.deepcopy(json.loads(built(two_units()).to_bytes()))
    change(body)
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: b.update(row_count=11), "row_count declares 11 rows"),
        (lambda b: b.update(part_count=1), "part_count declares 1 parts"),
        (lambda b: b["parts"][0].update(rows=3), "row_count declares 10 rows but committed parts sum to 9"),
        (lambda b: b["parts"][0].update(part_id=2), "part_id is not unique"),
        (lambda b: b["parts"][0].update(path="b0.parquet"), "path is not unique"),
        (lambda b: b["parts"][0].update(status="quarantined"), "part_count declares 3"),
        (lambda b: b["rivet_dagster"]["units"][0].update(parts=[1, 1]), "each committed part exactly once"),
        (lambda b: b["rivet_dagster"]["units"][0].update(rows=3), "unit 0 declares 3 rows"),
    ],
)
def test_a_manifest_that_contradicts_itself_says_how(
    change: Callable[[dict[str, Any]], object], words: str
) -> None:
    assert any(words in text for text in parse_manifest(tampered(change)).inconsistencies())


@pytest.mark.parametrize(
    "path",
    ["../x.parquet", "a/../../x", "/etc/passwd", "", ".", "a//b", "./a", "a\\..\\b", "a\nb", "a\x00b", "a/"],
)
def test_a_part_path_never_leaves_the_prefix(path: str) -> None:
    with pytest.raises(ManifestError, match="below the prefix"):
        parse_manifest(tampered(lambda b: b["parts"][0].update(path=path)))


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b.update(manifest_version=2),
        lambda b: b.update(manifest_version=True),
        lambda b: b.update(manifest_version="1"),
        lambda b: b.update(status="done"),
        lambda b: b.update(row_count=-1),
        lambda b: b.update(row_count=1.0),
        lambda b: b.update(row_count=2**63),
        lambda b: b.update(parts={}),
        lambda b: b.update(parts=[1]),
        lambda b: b.update(run_id=7),
        lambda b: b.pop("run_id"),
        lambda b: b.pop("source"),
        lambda b: b["source"].update(extraction=[]),
        lambda b: b["parts"][0].update(status="lost"),
        lambda b: b["parts"][0].pop("size_bytes"),
        lambda b: b["column_checksums"][0].update(checksum=1),
        lambda b: b["column_checksums"][0].update(checksum="-1"),
        lambda b: b["column_checksums"][0].update(checksum=str(2**64)),
        lambda b: b["column_checksums"][0].update(checksum="٣"),
        lambda b: b["column_checksums"].append(b["column_checksums"][0]),
        lambda b: b.update(rivet_dagster=[]),
        lambda b: b["rivet_dagster"].update(supersedes=[1]),
        lambda b: b["rivet_dagster"]["units"][0].update(parts=["1"]),
    ],
)
def test_a_wrong_shape_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(ManifestError):
        parse_manifest(tampered(change))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe{}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"manifest_version": ' + b"1" * 10_000 + b"}",
        json.dumps(REFERENCE).encode()[:-1] + b', "row_count": 5}',
        tampered(lambda b: b.update(note=float("nan"))),
        tampered(lambda b: b.update(note="\ud800")),
        json.dumps(REFERENCE).encode()[:-1] + b', "x": 1e999}',
    ],
    ids=range(12),
)
def test_hostile_bytes_are_refused_with_a_typed_error(data: bytes) -> None:
    with pytest.raises(ManifestError):
        parse_manifest(data)


def test_too_many_bytes_are_refused_before_they_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rivet_dagster.engine.verify.manifest_reader.MAX_MANIFEST_BYTES", 100)
    with pytest.raises(ManifestError, match="larger than 100 bytes"):
        parse_manifest(json.dumps(REFERENCE).encode())


def test_unknown_keys_are_ignored_everywhere() -> None:
    def change(body: dict[str, Any]) -> None:
        for node in (body, body["source"], body["parts"][0], body["rivet_dagster"]):
            node["from_the_future"] = {"deep": [1, None]}

    assert parse_manifest(tampered(change)) == built(two_units())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
PLACES: list[tuple[str | int, ...]] = [
    *((key,) for key in REFERENCE),
    *(("parts", 0, key) for key in REFERENCE["parts"][0]),
    ("source", "extraction"),
    ("source", "extraction", "cursor_high"),
    ("rivet_dagster",),
    ("rivet_dagster", "units"),
    ("rivet_dagster", "policies"),
    ("rivet_dagster", "units", 0, "parts"),
]


@given(place=st.sampled_from(PLACES), value=JSON)
def test_any_value_in_any_place_is_read_or_refused(place: tuple[str | int, ...], value: object) -> None:
    body = json.loads(built(two_units()).to_bytes())
    node = body
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    try:
        manifest = parse_manifest(json.dumps(body).encode())
    except ManifestError:
        return
    manifest.inconsistencies()
    assert parse_manifest(manifest.to_bytes()) == manifest


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ManifestError):
        parse_manifest(data)


def test_the_marker_holds_the_fingerprint_of_the_exact_bytes() -> None:
    data = built(two_units()).to_bytes()
    assert success_body(data) == bytes_fingerprint(data).encode() + b"\n"
    assert parse_success(success_body(data)) == bytes_fingerprint(data)
    assert parse_success(success_body(data).rstrip()) == bytes_fingerprint(data)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\n",
        b"ok",
        b"xxh3:804d7de70888baf9\n\n",
        b" xxh3:804d7de70888baf9",
        b"xxh3:804D7DE70888BAF9\n",
        b"xxh3:804d7de70888baf\n",
        b"xxh3:804d7de70888baf9\r\n",
        b"xxh3:804d7de70888baf\xff\n",
        "xxh3:804d7de70888baf٣\n".encode(),
    ],
)
def test_an_odd_marker_is_refused(body: bytes) -> None:
    with pytest.raises(MarkerError):
        parse_success(body)
