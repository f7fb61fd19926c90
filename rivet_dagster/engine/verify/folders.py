"""The folders of a run with ``partition_by``: each has a manifest and a marker of its own.

They follow from the run's manifest and the recorded parts alone, so that a run which another process
completes leaves the same bytes.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

from msgspec.structs import replace

from rivet_dagster.engine import names
from rivet_dagster.engine.destinations.base import Store
from rivet_dagster.engine.errors import RivetError
from rivet_dagster.engine.verify import checksum
from rivet_dagster.engine.verify.manifest import (
    MAX_MANIFEST_BYTES,
    MAX_SUCCESS_BYTES,
    Manifest,
    PartRecord,
    UnitRecord,
    success_body,
)
from rivet_dagster.engine.verify.manifest_reader import parse_manifest
from rivet_dagster.engine.verify.report import Finding

#: Path of a part below the prefix -> its column checksums, None when none were taken.
Sums = Mapping[str, Mapping[str, int] | None]


def folders(manifest: Manifest) -> dict[str, list[PartRecord]]:
    """Folder -> its committed parts; parts in the prefix itself belong to none."""
    found: dict[str, list[PartRecord]] = {}
    for part in manifest.committed:
        if folder := posixpath.dirname(part.path):
            found.setdefault(folder, []).append(part)
    return found


def folder_manifests(manifest: Manifest, sums: Sums) -> Iterator[tuple[str, Manifest]]:
    """(folder, its manifest), with part names relative to the folder."""
    found = folders(manifest)
    units = _units(manifest, found)
    for folder, parts in found.items():
        ids = {part.part_id: number for number, part in enumerate(parts, 1)}
        records = tuple(
            replace(part, part_id=ids[part.part_id], path=posixpath.basename(part.path)) for part in parts
        )
        added = _sum([sums.get(part.path) for part in parts])
        extra = manifest.additions
        if extra is not None:
            extra = replace(
                extra,
                units=tuple(replace(u, parts=tuple(ids[part] for part in u.parts)) for u in units[folder]),
                column_checksums=_only(added, extra.column_checksums) or {},
            )
        uri = f"{manifest.destination_uri.rstrip('/')}/{quote(folder, safe='/=')}"
        own = replace(
            manifest,
            destination_uri=uri,
            row_count=sum(part.rows for part in records),
            part_count=len(records),
            parts=records,
            column_checksums=_only(added, manifest.column_checksums),
            additions=extra,
        )
        yield folder, own


def _units(manifest: Manifest, found: Mapping[str, Sequence[PartRecord]]) -> dict[str, list[UnitRecord]]:
    """Units by folder. A unit has one; a unit without parts has none."""
    where = {part.part_id: folder for folder, parts in found.items() for part in parts}
    units: dict[str, list[UnitRecord]] = {folder: [] for folder in found}
    for unit in manifest.additions.units if manifest.additions else ():
        if unit.parts and unit.parts[0] in where:
            units[where[unit.parts[0]]].append(unit)
    return units


def _sum(parts: Sequence[Mapping[str, int] | None]) -> dict[str, int]:
    total: dict[str, int] = {}
    for sums in parts:
        for name, value in (sums or {}).items():
            total[name] = checksum.add(total.get(name, 0), value)
    return total


def _only(sums: Mapping[str, int], columns: Mapping[str, int] | None) -> dict[str, int] | None:
    """Those of ``columns``: 0 of a column without rows, None when none were taken."""
    return None if columns is None else {name: sums.get(name, 0) for name in columns}


def held_manifest(data: bytes | None, parts: Sequence[PartRecord]) -> Manifest | None:
    """A folder's manifest if it lists exactly ``parts``, whichever run it speaks of; else None."""
    if data is None:
        return None
    try:
        held = parse_manifest(data)
    except RivetError:
        return None
    same = sorted(map(_identity, held.committed)) == sorted(map(_identity, parts))
    return held if same else None


def _identity(part: PartRecord) -> tuple[str, int, str]:
    return posixpath.basename(part.path), part.size_bytes, part.content_fingerprint


def is_sidecar(name: str, known: Mapping[str, object]) -> bool:
    """Whether ``name`` is a manifest or marker in one of the folders ``known``."""
    folder, file = posixpath.split(name)
    copy = file.startswith("manifest-") and file.endswith(".json")
    return folder in known and (copy or file in {names.MANIFEST, names.SUCCESS})


def folder_findings(store: Store, manifest: Manifest) -> Iterator[Finding]:
    """Folders whose own manifest or marker does not say what the run's manifest says."""
    for folder, parts in folders(manifest).items():
        try:
            data = store.read_bytes(f"{folder}/{names.MANIFEST}", MAX_MANIFEST_BYTES)
            marker = store.read_bytes(f"{folder}/{names.SUCCESS}", MAX_SUCCESS_BYTES)
        except RivetError as error:
            yield Finding("manifest_read_error", {"name": f"{folder}/{names.MANIFEST}", "error": error.code})
            continue
        if data is None or held_manifest(data, parts) is None:
            detail = "its manifest is missing or lists other parts"
        elif marker != success_body(data):
            detail = "its _SUCCESS is missing or stale"
        else:
            continue
        yield Finding("folder_inconsistent", {"folder": folder, "detail": detail})
