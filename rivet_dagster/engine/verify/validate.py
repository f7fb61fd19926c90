"""Checks a prefix against its manifest, from three cheap reads to reading every part again.

light: manifest, its consistency, its copy, the marker. sample: also presence and size of each part
(those of earlier runs that still count included), their bytes where a listing has their MD5, and files
that nobody lists. full: also the bytes,
rows, columns and values of each part of the run.
"""

from __future__ import annotations

import base64
import hashlib
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

import pyarrow as pa

from rivet_dagster.engine import names
from rivet_dagster.engine.destinations.base import Store, StoredObject
from rivet_dagster.engine.errors import IntegrityError, RivetError
from rivet_dagster.engine.verify import checksum
from rivet_dagster.engine.verify.fingerprint import (
    bytes_fingerprint,
    is_fingerprint,
    schema_fingerprint,
    stream_fingerprint,
)
from rivet_dagster.engine.verify.folders import folder_findings, is_sidecar
from rivet_dagster.engine.verify.history import still_counted
from rivet_dagster.engine.verify.manifest import (
    MAX_MANIFEST_BYTES,
    MAX_SUCCESS_BYTES,
    Manifest,
    ManifestError,
    MarkerError,
    PartRecord,
    parse_success,
)
from rivet_dagster.engine.verify.manifest_reader import parse_manifest
from rivet_dagster.engine.verify.part_reader import csv_rows, parquet_batches, parquet_header
from rivet_dagster.engine.verify.report import Depth, Finding, ValidationReport

History = Literal["presence", "full"]


def validate_prefix(
    store: Store,
    prefix: str,
    *,
    depth: Depth = "full",
    export_name: str | None = None,
    run_id: str | None = None,
    require_success: bool = True,
    history: History = "presence",
) -> ValidationReport:
    """Verdict about the prefix that ``store`` is rooted at; ``prefix`` is its name in the report.

    run_id: check that run's own manifest instead of the newest. require_success=False: the marker may
    be absent, for a check before it is written. history="full": read the parts of earlier runs that
    still count too, not only their sizes. Raises nothing for what it finds; see ``raise_if_failed``.
    """
    check = _Validation(store, depth, export_name, run_id, require_success, history)
    check.run()
    return check.report(prefix)


@dataclass
class _Validation:
    store: Store
    depth: Depth
    export_name: str | None
    run_id: str | None
    require_success: bool
    history: History
    findings: list[Finding] = field(default_factory=list)
    manifest: Manifest | None = None
    found: bool = False
    legacy: bool = False
    marker_ok: bool = False
    verified: int = 0
    failed: int = 0
    md5_verified: int = 0
    quarantined: tuple[int, int] = (0, 0)
    #: by name, as a listing told
    stored_md5: dict[str, str] = field(default_factory=dict)

    def report(self, prefix: str) -> ValidationReport:
        inconsistent = any(f.kind == "manifest_self_inconsistent" for f in self.findings)
        name = self.export_name or (self.manifest.export_name if self.manifest else "")
        return ValidationReport(
            export_name=name,
            resolved_prefix=prefix,
            depth=self.depth,
            run_id=self.manifest.run_id if self.manifest else self.run_id,
            manifest_found=self.found,
            legacy_run=self.legacy,
            parts_verified=self.verified,
            parts_md5_verified=self.md5_verified,
            parts_failed=self.failed,
            success_marker_consistent=self.marker_ok,
            manifest_self_consistent=self.manifest is not None and not inconsistent,
            rows=self.manifest.row_count if self.manifest else 0,
            bytes=sum(p.size_bytes for p in self.manifest.committed) if self.manifest else 0,
            quarantined_files=self.quarantined[0],
            quarantined_bytes=self.quarantined[1],
            findings=tuple(self.findings),
        )

    def run(self) -> None:
        name = names.MANIFEST if self.run_id is None else names.manifest_copy(self.run_id)
        data = self._read_manifest(name)
        self._check_marker(data if self.run_id is None else self._read_manifest(names.MANIFEST, quiet=True))
        if data is None:
            return
        self.found = True
        self.manifest = self._parse(name, data)
        if self.manifest is None:
            return
        self._check_manifest(self.manifest, data)
        if self.depth == "light":
            return
        found = self._list()
        if found is None:
            return
        self.stored_md5 = {name: item.md5 for name, item in found.items() if item.md5}
        sizes = {name: item.size for name, item in found.items()}
        self._check_parts(self.manifest, sizes, full=self.depth == "full")
        self.findings.extend(folder_findings(self.store, self.manifest))
        self._check_folder(self.manifest, sizes)

    def _note(self, kind: str, **details: Any) -> None:
        self.findings.append(Finding(kind, details))

    def _read_manifest(self, name: str, *, quiet: bool = False) -> bytes | None:
        """The bytes of a manifest; None when absent or unreadable, which is noted unless ``quiet``."""
        try:
            return self.store.read_bytes(name, MAX_MANIFEST_BYTES)
        except IntegrityError:
            if not quiet:
                self.found = True
                self._note("manifest_self_inconsistent", detail=f"{name} is larger than any manifest")
        except RivetError as error:
            if not quiet:
                self.found = True
                self._note("manifest_read_error", name=name, error=error.code)
        return None

    def _parse(self, name: str, data: bytes) -> Manifest | None:
        try:
            return parse_manifest(data)
        except ManifestError as error:
            self._note("manifest_self_inconsistent", detail=f"{name}: {error.message}")
            return None

    def _check_marker(self, manifest: bytes | None) -> None:
        try:
            body = self.store.read_bytes(names.SUCCESS, MAX_SUCCESS_BYTES)
            marker = None if body is None else parse_success(body)
        except MarkerError:
            preview = (body or b"")[:32].decode("ascii", errors="replace")
            self._note("success_marker_malformed", body_preview=preview)
            return
        except IntegrityError:
            self._note("success_marker_malformed", body_preview="", detail=f"over {MAX_SUCCESS_BYTES} bytes")
            return
        except RivetError as error:
            self._note("success_read_error", error=error.code)
            return
        if manifest is None:
            self._no_manifest(marker)
        elif marker is None:
            if self.require_success:
                self._note("success_marker_missing")
        elif marker != (actual := bytes_fingerprint(manifest)):
            self._note("success_marker_stale", marker_fingerprint=marker, manifest_fingerprint=actual)
        else:
            self.marker_ok = True

    def _no_manifest(self, marker: str | None) -> None:
        if self.found:  # it is there and could not be read, which is noted already
            return
        if marker is not None:
            self._note("manifest_missing_under_marker", prefix="")
        else:
            self.legacy = True

    def _check_manifest(self, manifest: Manifest, data: bytes) -> None:
        for detail in manifest.inconsistencies():
            self._note("manifest_self_inconsistent", detail=detail)
        if self.run_id is not None and manifest.run_id != self.run_id:
            self._note("manifest_self_inconsistent", detail="the copy of one run holds another run's id")
        if manifest.status != "success":
            self._note("run_not_successful", status=manifest.status)
        if self.export_name not in {None, manifest.export_name, manifest.export_family}:
            self._note("foreign_manifest", export_name=manifest.export_name)
        if self.run_id is None:
            copy = names.manifest_copy(manifest.run_id)
            other = self._read_manifest(copy)
            if other != data:
                self._note(
                    "manifest_copy_differs", name=copy, reason="missing" if other is None else "differs"
                )

    def _list(self) -> dict[str, StoredObject] | None:
        try:
            aside = [item.size for item in self.store.list_quarantine()]
            self.quarantined = len(aside), sum(aside)
            return {item.name: item for item in self.store.list()}
        except RivetError as error:
            self._note("list_error", error=error.code)
            return None

    def _check_parts(
        self, manifest: Manifest, sizes: dict[str, int], *, full: bool, run: str | None = None
    ) -> None:
        """Parts of one manifest; ``run`` names the run in findings when it is not the one asked about."""
        where = {} if run is None else {"run_id": run}
        values = _ValueCheck(manifest) if full else None
        failed = 0
        for part in manifest.committed:
            found = list(self._part_findings(manifest, part, sizes, values))
            self.findings.extend(Finding(f.kind, {**f.details, **where}) for f in found)
            failed += bool(found)
        if run is None or full:
            self.failed += failed
            self.verified += len(manifest.committed) - failed
        if values is not None and not failed:  # a sum over some of the parts says nothing
            self.findings.extend(Finding(f.kind, {**f.details, **where}) for f in values.findings())

    def _part_findings(
        self, manifest: Manifest, part: PartRecord, sizes: dict[str, int], values: _ValueCheck | None
    ) -> Iterator[Finding]:
        place = {"part_id": part.part_id, "path": part.path}
        size = sizes.get(part.path)
        if size is None:
            yield Finding("part_missing", place)
        elif size != part.size_bytes:
            yield Finding("part_size_mismatch", {**place, "expected": part.size_bytes, "actual": size})
        elif differs := self._listed_findings(part, place):
            yield from differs
        elif values is not None:
            try:
                changed = self._bytes_findings(part, place)
                # bytes that nobody wrote are not handed to a decoder
                yield from changed or self._content_findings(manifest, part, place, values)
            except RivetError as error:
                yield Finding("part_read_error", {**place, "error": error.code})
            except OSError as error:
                # pyarrow raises OSError without a number for bytes that are no Parquet
                kind = "part_unreadable" if error.errno is None else "part_read_error"
                yield Finding(kind, {**place, "error": type(error).__name__})
            except (pa.ArrowException, ValueError) as error:
                yield Finding("part_unreadable", {**place, "error": type(error).__name__})

    def _listed_findings(self, part: PartRecord, place: dict[str, Any]) -> list[Finding]:
        """The bytes of a part by the MD5 that the store took of them: nothing is read for it."""
        stored = self.stored_md5.get(part.path)
        if not part.content_md5 or stored is None:
            return []
        if stored == part.content_md5:
            self.md5_verified += 1
            return []
        found = {"of": "content_md5", "expected": part.content_md5, "actual": stored}
        return [Finding("part_checksum_mismatch", {**place, **found})]

    def _bytes_findings(self, part: PartRecord, place: dict[str, Any]) -> list[Finding]:
        found = []
        if is_fingerprint(part.content_fingerprint):
            with self.store.open_input(part.path) as file:
                actual = stream_fingerprint(file)
            if actual != part.content_fingerprint:
                found.append(("content_fingerprint", part.content_fingerprint, actual))
        if part.content_md5 and part.path not in self.stored_md5:
            actual = self._md5(part.path)
            if actual == part.content_md5:
                self.md5_verified += 1
            else:
                found.append(("content_md5", part.content_md5, actual))
        return [
            Finding("part_checksum_mismatch", {**place, "of": what, "expected": expected, "actual": actual})
            for what, expected, actual in found
        ]

    def _md5(self, name: str) -> str:
        with self.store.open_input(name) as file:
            digest = hashlib.file_digest(cast(Any, file), partial(hashlib.md5, usedforsecurity=False))
        return base64.b64encode(digest.digest()).decode()

    def _content_findings(
        self, manifest: Manifest, part: PartRecord, place: dict[str, Any], values: _ValueCheck
    ) -> list[Finding]:
        found = []
        with self.store.open_input(part.path) as file:
            if manifest.format == "parquet":
                schema, _ = parquet_header(file)
                actual = schema_fingerprint(schema)
                if actual != manifest.schema_fingerprint:
                    details = {**place, "expected": manifest.schema_fingerprint, "actual": actual}
                    return [Finding("schema_fingerprint_mismatch", details)]
                file.seek(0)
                rows = sum(values.add(batch) for batch in parquet_batches(file))
            else:
                rows = csv_rows(file)
        if rows != part.rows:
            found.append(Finding("part_row_count_mismatch", {**place, "expected": part.rows, "actual": rows}))
        return found

    def _check_folder(self, manifest: Manifest, sizes: dict[str, int]) -> None:
        """Earlier runs that still count, and files that no manifest lists."""
        others = list(self._other_manifests(manifest, sizes))
        counted = still_counted([m for m in (*others, manifest) if m.export_name == manifest.export_name])
        listed = [manifest, *(other for other in others if other.run_id in counted)]
        tracked = {part.path for one in listed for part in one.parts}
        for other in others:
            counts = other.run_id in counted
            if other.export_name == manifest.export_name and other.status == "success":
                if not counts:
                    self._note_superseded(other, tracked, sizes)
                elif self.run_id is None:
                    self._check_parts(other, sizes, full=self._reads_history, run=other.run_id)
            tracked |= {part.path for part in other.parts}
        known = dict.fromkeys(posixpath.dirname(path) for path in tracked)
        for name in sorted(sizes.keys() - tracked):
            if not (names.is_sidecar(name) or is_sidecar(name, known)):
                self._note("untracked_object", key=name, size_bytes=sizes[name])

    def _note_superseded(self, other: Manifest, tracked: set[str], sizes: dict[str, int]) -> None:
        for part in other.committed:
            if part.path in sizes and part.path not in tracked:
                self._note(
                    "superseded_object", key=part.path, size_bytes=sizes[part.path], run_id=other.run_id
                )

    @property
    def _reads_history(self) -> bool:
        return self.depth == "full" and self.history == "full"

    def _other_manifests(self, manifest: Manifest, sizes: dict[str, int]) -> Iterator[Manifest]:
        own = names.manifest_copy(manifest.run_id)
        for name in sorted(sizes):
            if name != own and names.is_manifest_copy(name):
                data = self._read_manifest(name)
                parsed = None if data is None else self._parse(name, data)
                if parsed is not None:
                    yield parsed


class _ValueCheck:
    """Recomputes the column checksums of one run while its parts go by."""

    def __init__(self, manifest: Manifest) -> None:
        self._format = manifest.format
        self._render = manifest.checksum_render
        self._key = manifest.checksum_key_column
        comparable = manifest.format == "parquet" and self._render == checksum.RENDER
        self._expected = manifest.checksums if comparable else {}
        self._sums = dict.fromkeys(self._expected, 0)
        self._absent: set[str] = set()
        self._rows = manifest.row_count

    def add(self, batch: pa.RecordBatch) -> int:
        """Take a batch in; returns its rows."""
        key = self._column(batch, self._key) if self._key is not None and self._expected else None
        for name in self._sums:
            column = self._column(batch, name)
            if column is not None and (self._key is None or key is not None):
                self._sums[name] = checksum.add(self._sums[name], checksum.column_checksum(column, key))
        return int(batch.num_rows)

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array | None:
        index = batch.schema.get_field_index(name)
        if index < 0 or not checksum.covers(batch.schema.field(index).type):
            self._absent.add(name)
            return None
        return batch.column(index)

    def findings(self) -> list[Finding]:
        if not self._expected:
            if not self._rows:
                return []
            return [Finding("value_check_not_available", {"format": self._format, "render": self._render})]
        absent = [
            Finding(
                "value_checksum_mismatch", {"column": name, "detail": "the parts have no such column to hash"}
            )
            for name in sorted(self._absent)
        ]
        return absent + [
            Finding(
                "value_checksum_mismatch",
                {"column": name, "expected": str(value), "actual": str(self._sums[name])},
            )
            for name, value in self._expected.items()
            if name not in self._absent and value != self._sums[name]
        ]


__all__ = ["Depth", "Finding", "History", "ValidationReport", "validate_prefix"]
