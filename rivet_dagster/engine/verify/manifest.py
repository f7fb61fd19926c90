"""Manifest version 1: what one run left at a destination, and the marker that says it is whole.

A reader needs ``manifest.json`` alone: its ``parts`` are the export's rows of that run. The key names,
their order and the algorithms are those of the reference, so that its tools read our prefixes and we
read theirs. What it has no key for stands under one key of ours, ``rivet_dagster``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct, field

from rivet_dagster.engine.errors import IntegrityError, InternalError
from rivet_dagster.engine.plan.units import Part, WorkUnit
from rivet_dagster.engine.verify import checksum
from rivet_dagster.engine.verify.fingerprint import bytes_fingerprint, is_fingerprint, schema_fingerprint

MANIFEST_VERSION: Final = 1
EXTENSION_KEY: Final = "rivet_dagster"
COMMITTED: Final = "committed"
QUARANTINED: Final = "quarantined"

#: Most bytes of a manifest that a reader takes in: about 200,000 parts.
MAX_MANIFEST_BYTES: Final = 64 << 20
#: Most bytes of a marker that a reader takes in.
MAX_SUCCESS_BYTES: Final = 64


class ManifestError(IntegrityError):
    """The bytes are no manifest that this version can read."""

    default_code = "RIVET_VERIFY_MANIFEST_INCONSISTENT"


class MarkerError(IntegrityError):
    """``_SUCCESS`` holds something else than a fingerprint."""

    default_code = "RIVET_VERIFY_SUCCESS_MALFORMED"


class Extraction(Struct, frozen=True):
    """How the rows were chosen. Bounds are the source's own text; None where the strategy has none."""

    strategy: str
    cursor_column: str | None = None
    cursor_type: str | None = None
    cursor_low: str | None = None
    cursor_high: str | None = None
    source_row_count: int | None = None

    def as_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in values.items() if value is not None}


class SourceRecord(Struct, frozen=True):
    engine: str
    schema: str | None
    table: str | None
    extraction: Extraction

    def as_json(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "schema": self.schema,
            "table": self.table,
            "extraction": self.extraction.as_json(),
        }


class PartRecord(Struct, frozen=True):
    """One part: its identity is (path, size_bytes, content_fingerprint) (M3)."""

    part_id: int
    path: str
    rows: int
    size_bytes: int
    content_fingerprint: str
    content_md5: str = ""
    status: str = COMMITTED

    @property
    def committed(self) -> bool:
        return self.status == COMMITTED

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__struct_fields__}


class UnitRecord(Struct, frozen=True):
    """One work unit and the ids of its parts."""

    index: int
    partition: str
    kind: str
    start_key: str | None
    end_key: str | None
    parts: tuple[int, ...]
    rows: int

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__struct_fields__} | {"parts": list(self.parts)}


class Additions(Struct, frozen=True):
    """What the reference's format has no key for.

    consistency: what the parts agree on, e.g. ``snapshot`` or ``per_unit``. supersedes: run ids whose
    parts this run replaces. policies: value policies that were applied, by name. column_checksums: of
    columns whose type the reference does not check. column_origins: columns that the source's server
    fills, and how. csv: how to take the parts apart; empty for other formats.
    """

    units: tuple[UnitRecord, ...] = ()
    consistency: str = ""
    supersedes: tuple[str, ...] = ()
    policies: Mapping[str, Any] = field(default_factory=dict)
    column_checksums: Mapping[str, int] = field(default_factory=dict)
    column_origins: Mapping[str, str] = field(default_factory=dict)
    csv: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        optional = {"column_origins": dict(self.column_origins), "csv": dict(self.csv)}
        return {
            "consistency": self.consistency,
            "supersedes": list(self.supersedes),
            "policies": dict(self.policies),
            "column_checksums": _checksums_json(self.column_checksums),
            **{name: value for name, value in optional.items() if value},
            "units": [unit.as_json() for unit in self.units],
        }


class Manifest(Struct, frozen=True):
    """A manifest as read or built. column_checksums: None when the writer took none."""

    run_id: str
    export_name: str
    export_family: str
    mode: str
    started_at: str
    finished_at: str
    status: str
    source: SourceRecord
    destination_kind: str
    destination_uri: str
    format: str
    compression: str
    schema_fingerprint: str
    row_count: int
    part_count: int
    parts: tuple[PartRecord, ...]
    column_checksums: Mapping[str, int] | None = None
    checksum_render: str | None = None
    checksum_key_column: str | None = None
    row_hash: Mapping[str, Any] | None = None
    additions: Additions | None = None

    def as_json(self) -> dict[str, Any]:
        """The JSON object, keys in the reference's order."""
        body: dict[str, Any] = {
            "manifest_version": MANIFEST_VERSION,
            "run_id": self.run_id,
            "export_name": self.export_name,
            "export_family": self.export_family,
            "mode": self.mode,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "status": self.status,
            "source": self.source.as_json(),
            "destination": {"kind": self.destination_kind, "uri": self.destination_uri},
            "format": self.format,
            "compression": self.compression,
            "schema_fingerprint": self.schema_fingerprint,
            "row_count": self.row_count,
            "part_count": self.part_count,
            "parts": [part.as_json() for part in self.parts],
        }
        if self.column_checksums is not None:
            body["column_checksums"] = _checksums_json(self.column_checksums)
        if self.checksum_render is not None:
            body["checksum_render"] = self.checksum_render
        if self.checksum_key_column is not None:
            body["checksum_key_column"] = self.checksum_key_column
        if self.row_hash is not None:
            body["row_hash"] = dict(self.row_hash)
        if self.additions is not None:
            body[EXTENSION_KEY] = self.additions.as_json()
        return body

    def to_bytes(self) -> bytes:
        """The exact bytes to store; ``_SUCCESS`` holds their fingerprint."""
        return json.dumps(self.as_json(), indent=2, ensure_ascii=False, allow_nan=False).encode()

    @property
    def committed(self) -> tuple[PartRecord, ...]:
        return tuple(part for part in self.parts if part.committed)

    @property
    def checksums(self) -> dict[str, int]:
        """Every column checksum of the run, whichever key it stands under."""
        extra = self.additions.column_checksums if self.additions else {}
        return {**(self.column_checksums or {}), **extra}

    def inconsistencies(self) -> list[str]:
        """What the manifest says against itself; empty when it is consistent."""
        committed = self.committed
        found = []
        if self.part_count != len(committed):
            found.append(f"part_count declares {self.part_count} parts but {len(committed)} are committed")
        rows = sum(part.rows for part in committed)
        if self.row_count != rows:
            found.append(f"row_count declares {self.row_count} rows but committed parts sum to {rows}")
        for what, values in (
            ("part_id", [p.part_id for p in self.parts]),
            ("path", [p.path for p in self.parts]),
        ):
            if len(set(values)) != len(values):
                found.append(f"{what} is not unique among the parts")
        return found + self._unit_inconsistencies()

    def _unit_inconsistencies(self) -> list[str]:
        if self.additions is None or not self.additions.units:
            return []
        rows = {part.part_id: part.rows for part in self.committed}
        listed = [part_id for unit in self.additions.units for part_id in unit.parts]
        if sorted(listed) != sorted(rows):
            return ["the units do not list each committed part exactly once"]
        held = {unit.index: sum(rows[part] for part in unit.parts) for unit in self.additions.units}
        return [
            f"unit {unit.index} declares {unit.rows} rows but its parts hold {held[unit.index]}"
            for unit in self.additions.units
            if unit.rows != held[unit.index]
        ]


class UnitParts(Struct, frozen=True):
    """A completed unit and the parts that hold it, in order."""

    unit: WorkUnit
    parts: Sequence[Part]


def build_manifest(
    *,
    run_id: str,
    export_name: str,
    started_at: datetime,
    finished_at: datetime,
    source: SourceRecord,
    destination_kind: str,
    destination_uri: str,
    format: str,
    compression: str,
    schema: pa.Schema,
    units: Sequence[UnitParts],
    consistency: str = "",
    supersedes: Sequence[str] = (),
    policies: Mapping[str, Any] | None = None,
    checksum_key_column: str | None = None,
    row_hash: Mapping[str, Any] | None = None,
    column_origins: Mapping[str, str] | None = None,
    csv: Mapping[str, Any] | None = None,
    export_family: str | None = None,
    mode: str = "batch",
    status: str = "success",
) -> Manifest:
    """The manifest of a completed run. Parts are numbered from 1 in the order of the units.

    schema: as written to the files. checksum_key_column: the column whose cell was hashed before every
    other cell of its row, None when cells were hashed alone. row_hash: column, covered columns and render
    of the hash that every row carries. Raises InternalError when some parts
    carry checksums and others do not: a sum over half of the rows would look like a fault of the data.
    """
    records: list[PartRecord] = []
    unit_records: list[UnitRecord] = []
    for entry in sorted(units, key=lambda item: item.unit.index):
        ids = range(len(records) + 1, len(records) + 1 + len(entry.parts))
        records.extend(_record(number, part) for number, part in zip(ids, entry.parts, strict=True))
        unit_records.append(_unit_record(entry, tuple(ids)))
    sums = merge_checksums([part for entry in units for part in entry.parts], schema)
    covered = {name: value for name, value in sums.items() if checksum.peer_covers(schema.field(name).type)}
    return Manifest(
        run_id=run_id,
        export_name=export_name,
        export_family=export_name if export_family is None else export_family,
        mode=mode,
        started_at=_timestamp(started_at),
        finished_at=_timestamp(finished_at),
        status=status,
        source=source,
        destination_kind=destination_kind,
        destination_uri=destination_uri,
        format=format,
        compression=compression,
        schema_fingerprint=schema_fingerprint(schema),
        row_count=sum(record.rows for record in records),
        part_count=len(records),
        parts=tuple(records),
        column_checksums=covered or None,
        checksum_render=checksum.RENDER if sums else None,
        checksum_key_column=checksum_key_column if sums else None,
        row_hash=row_hash,
        additions=Additions(
            units=tuple(unit_records),
            consistency=consistency,
            supersedes=tuple(supersedes),
            policies=dict(policies or {}),
            column_checksums={name: value for name, value in sums.items() if name not in covered},
            column_origins=dict(column_origins or {}),
            csv=dict(csv or {}),
        ),
    )


def merge_checksums(parts: Sequence[Part], schema: pa.Schema) -> dict[str, int]:
    """Column checksums over all ``parts``; empty when none was taken. Raises InternalError on a gap."""
    taken = [part for part in parts if part.checksums is not None]
    if not taken:
        return {}
    if len(taken) != len(parts):
        raise InternalError("some parts carry value checksums and others do not")
    names = {name for part in taken for name in part.checksums or {}}
    if not names <= set(schema.names):
        raise InternalError("parts carry checksums of columns that the schema does not have")
    total = dict.fromkeys((name for name in schema.names if name in names), 0)
    for part in taken:
        sums = part.checksums or {}
        if part.rows and names != sums.keys():
            raise InternalError(f"part {part.path} lacks the value checksum of a column")
        for name, value in sums.items():
            total[name] = checksum.add(total[name], value)
    return total


def success_body(manifest: bytes) -> bytes:
    """What ``_SUCCESS`` holds for a stored manifest: its fingerprint and a newline (M2)."""
    return f"{bytes_fingerprint(manifest)}\n".encode()


def parse_success(body: bytes) -> str:
    """The fingerprint in a marker. Raises MarkerError for anything but that and one newline."""
    text = body.decode("ascii", errors="replace").removesuffix("\n")
    if not is_fingerprint(text):
        raise MarkerError(f"_SUCCESS holds {len(body)} bytes that are no fingerprint")
    return text


def _record(number: int, part: Part) -> PartRecord:
    return PartRecord(number, part.path, part.rows, part.size_bytes, part.fingerprint, part.md5)


def _unit_record(entry: UnitParts, ids: tuple[int, ...]) -> UnitRecord:
    unit = entry.unit
    rows = sum(part.rows for part in entry.parts)
    return UnitRecord(unit.index, unit.partition, str(unit.kind), unit.start_key, unit.end_key, ids, rows)


def _timestamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def _checksums_json(sums: Mapping[str, int]) -> list[dict[str, str]]:
    # decimal text: JSON readers that hold numbers as doubles would round 64 bits
    return [{"name": name, "checksum": str(value)} for name, value in sorted(sums.items())]


__all__ = [
    "COMMITTED",
    "EXTENSION_KEY",
    "MANIFEST_VERSION",
    "MAX_MANIFEST_BYTES",
    "MAX_SUCCESS_BYTES",
    "QUARANTINED",
    "Additions",
    "Extraction",
    "Manifest",
    "ManifestError",
    "MarkerError",
    "PartRecord",
    "SourceRecord",
    "UnitParts",
    "UnitRecord",
    "build_manifest",
    "merge_checksums",
    "parse_success",
    "success_body",
]
