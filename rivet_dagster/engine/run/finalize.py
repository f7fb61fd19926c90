"""The one end of every run: manifest, folder, marker, cursor (I3, I4, I6, I8; M1 to M7, M9)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from rivet_dagster.engine import names
from rivet_dagster.engine.destinations.local import destination_faults
from rivet_dagster.engine.errors import IntegrityError
from rivet_dagster.engine.memory import peak_bytes
from rivet_dagster.engine.plan.plan import ACCUMULATING, CursorWindow
from rivet_dagster.engine.plan.units import Part
from rivet_dagster.engine.run.added import row_hash_record
from rivet_dagster.engine.run.drift import Drift, widest, width_drift
from rivet_dagster.engine.run.events import Cleared, RunOutcome, RunPlan
from rivet_dagster.engine.run.faults import fault_point
from rivet_dagster.engine.run.fencing import FencedStore
from rivet_dagster.engine.run.figures import nulled_lines, policies_record, total, width_factor
from rivet_dagster.engine.run.options import checksum_key, checksums
from rivet_dagster.engine.run.quality import QualityReport, evaluate
from rivet_dagster.engine.sources.base import SourceFacts
from rivet_dagster.engine.state.models import (
    Boundary,
    CursorRow,
    JournalEvent,
    Lease,
    PartRow,
    RunFinish,
    RunHeader,
    RunStatus,
)
from rivet_dagster.engine.state.store import StateStore
from rivet_dagster.engine.types.decision import Column, arrow_schema
from rivet_dagster.engine.verify.folders import folder_manifests, held_manifest
from rivet_dagster.engine.verify.manifest import (
    MAX_MANIFEST_BYTES,
    MAX_SUCCESS_BYTES,
    Extraction,
    Manifest,
    SourceRecord,
    UnitParts,
    build_manifest,
    success_body,
)
from rivet_dagster.engine.verify.manifest_reader import parse_manifest
from rivet_dagster.engine.write.base import CSV_DIALECT

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig


#: Folders of partitions that are written side by side: what they wait for is the disk.
_AT_ONCE: Final = 8


@dataclass(slots=True)
class _Folders:
    """What belongs into the folders of partitions, by name. markers: due when all is verified."""

    markers: dict[str, bytes] = field(default_factory=dict)
    sidecars: set[str] = field(default_factory=set)


class Finalizer(Struct, frozen=True):
    """Ends one run. Every step may be repeated: a run killed between two of them is finished later."""

    state: StateStore
    lease: Lease
    store: FencedStore
    export: ExportConfig
    header: RunHeader
    columns: tuple[Column, ...]
    facts: SourceFacts
    window: CursorWindow | None
    notes: tuple[str, ...]
    started: float
    drift: Drift
    pace: Mapping[str, Any] = field(default_factory=dict)
    decisions: tuple[JournalEvent, ...] = ()

    def finish(self, plan: RunPlan) -> RunOutcome:
        """All units are complete: publish the run. Raises IntegrityError when a part is not there."""
        rows = self.state.parts(self.header.run_id)
        self._read_carried_back(rows)
        report = self._gates([row.as_part() for row in rows])
        manifest = self._manifest(plan, rows)
        data = manifest.to_bytes()
        self.store.put_bytes(names.manifest_copy(self.header.run_id), data)
        fault_point("after_manifest_copy")
        return self._publish(manifest, data, report)

    def _read_carried_back(self, rows: tuple[PartRow, ...]) -> None:
        """``verify: content`` for parts of an earlier run; this run's own were read before they counted."""
        if self.export.verify != "content":
            return
        from rivet_dagster.engine.verify.content import content_fault

        taken = checksums(self.export.format, checksum_key(self.export, self.facts))
        for row in rows:
            if row.origin_run_id != self.header.run_id:
                with destination_faults(self.store.uri(row.file_name)):
                    fault = content_fault(self.store, row.as_part(), taken)
                if fault is not None:
                    raise IntegrityError(fault, code="RIVET_VALIDATE_FAILED", export=self.export.name)

    def roll_forward(self) -> RunOutcome:
        """Finish a run whose manifest an earlier process had written: the very same bytes (M4)."""
        data = self.store.read_bytes(names.manifest_copy(self.header.run_id), MAX_MANIFEST_BYTES)
        assert data is not None
        return self._publish(parse_manifest(data), data, QualityReport())

    def skipped(self, reason: str) -> RunOutcome:
        """Nothing to do: the prefix stays as it is, marker and manifest included."""
        report = self._gates(())
        self._restore_marker()
        return self._outcome(
            "skipped",
            rows=0,
            files=0,
            size=0,
            units=0,
            manifest_uri=None,
            reason=reason,
            details={"quality": report.as_json(), "drift": self.drift.as_json()},
        )

    def _restore_marker(self) -> None:
        """A run that failed had taken the marker away; the folder is made exact again without its rows."""
        data = self.store.read_bytes(names.MANIFEST, MAX_MANIFEST_BYTES)
        if data is None or self.store.size(names.SUCCESS) is not None:
            return
        manifest = parse_manifest(data)
        last = self.state.latest_run(self.export.name, prefix=self.header.prefix)
        if last is not None and last.run_id == manifest.run_id:
            self._make_exact(manifest, data)

    def _gates(self, parts: Sequence[Part]) -> QualityReport:
        report = evaluate(self.export, parts, self.store)
        try:
            report.raise_if_failed(self.export.name)
        except IntegrityError as error:
            error.details["drift"] = self.drift.as_json()
            raise
        return report

    def _publish(self, manifest: Manifest, data: bytes, report: QualityReport) -> RunOutcome:
        self.store.put_bytes(names.MANIFEST, data)
        fault_point("after_manifest_update")
        cleared = self._make_exact(manifest, data)
        fault_point("after_success")
        size = sum(p.size_bytes for p in manifest.committed)
        figures = total(row.stats for row in self.state.parts(self.header.run_id))
        known = self.state.widths(self.export.name) or {}
        drift = replace(self.drift, wider=width_drift(known, figures.widths, width_factor(self.export)))
        details = {
            "nulled": dict(figures.nulled),
            "quality": report.as_json(),
            "drift": drift.as_json(),
            "folder": asdict(cleared),
            "pace": dict(self.pace),
        }
        retries = self.state.retries(self.header.run_id)
        self._complete(manifest, size, widest(known, figures.widths), {"retries": retries, **details})
        fault_point("after_cursor_commit")
        units = len(manifest.additions.units) if manifest.additions else 0
        kept_nothing = self.store.capabilities.kind == "stdout"
        return self._outcome(
            "success",
            rows=manifest.row_count,
            files=manifest.part_count,
            size=size,
            units=units,
            manifest_uri=None if kept_nothing else self.store.uri(names.manifest_copy(self.header.run_id)),
            warnings=(*nulled_lines(figures), *drift.shape_lines, *report.warnings),
            retries=retries,
            details=details,
        )

    def _make_exact(self, manifest: Manifest, data: bytes) -> Cleared:
        """Clear the folder and look at it; then, and only then, the markers."""
        below = self._publish_folders(manifest)
        cleared = self._clear_folder(manifest, below.sidecars | set(below.markers))
        fault_point("after_quarantine")
        self._verify(manifest, data)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self._mark, below.markers.items()))
        self.store.put_bytes(names.SUCCESS, success_body(data))
        return cleared

    def _publish_folders(self, manifest: Manifest) -> _Folders:
        """A manifest for each folder of a partition. One whose manifest lists its parts stays as it is."""
        sums = {row.file_name: row.checksums for row in self.state.parts(manifest.run_id)}
        found = _Folders()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for name, run_id, data in pool.map(self._publish_folder, folder_manifests(manifest, sums)):
                folder = name.removesuffix(names.MANIFEST)
                found.markers[folder + names.SUCCESS] = success_body(data)
                found.sidecars |= {name, folder + names.manifest_copy(run_id)}
        return found

    def _publish_folder(self, below: tuple[str, Manifest]) -> tuple[str, str, bytes]:
        """(name, run id, bytes) of the manifest that the folder has then."""
        folder, own = below
        name = f"{folder}/{names.MANIFEST}"
        data = self.store.read_bytes(name, MAX_MANIFEST_BYTES)
        held = held_manifest(data, own.parts)
        if data is not None and held is not None:
            return name, held.run_id, data
        data = own.to_bytes()
        self.store.put_bytes(f"{folder}/{names.manifest_copy(own.run_id)}", data)
        self.store.put_bytes(name, data)
        return name, own.run_id, data

    def _mark(self, marker: tuple[str, bytes]) -> None:
        name, body = marker
        if self.store.read_bytes(name, MAX_SUCCESS_BYTES) != body:
            self.store.put_bytes(name, body)

    def _manifest(self, plan: RunPlan, rows: tuple[PartRow, ...]) -> Manifest:
        parts: dict[int, list[Part]] = {}
        for row in rows:
            parts.setdefault(row.chunk_index, []).append(row.as_part())
        started = self.header.created_at or datetime.now(UTC) - timedelta(
            seconds=time.monotonic() - self.started
        )
        codec, _ = self.export.compression_resolved()
        supersedes = [self.header.parent_run_id] if self.header.parent_run_id else []
        return build_manifest(
            run_id=self.header.run_id,
            export_name=self.export.name,
            started_at=started,
            finished_at=datetime.now(UTC),
            source=SourceRecord("postgres", self.facts.schema, self.facts.table, self._extraction()),
            destination_kind=self.store.capabilities.kind,
            destination_uri=self.store.uri(),
            format=self.export.format,
            compression=codec,
            schema=arrow_schema(self.columns),
            units=[UnitParts(unit, parts.get(unit.index, ())) for unit in plan.units],
            consistency=self.header.consistency or "",
            supersedes=supersedes,
            policies=policies_record(self.export, self.columns, total(row.stats for row in rows)),
            row_hash=row_hash_record(self.export, self.columns),
            column_origins=self.facts.origins,
            csv=CSV_DIALECT if self.export.format == "csv" else None,
            checksum_key_column=checksum_key(self.export, self.facts),
        )

    def _extraction(self) -> Extraction:
        window = self.window
        if window is None:
            return Extraction(self.header.mode)
        return Extraction(
            self.header.mode,
            window.column,
            window.native_type,
            cursor_low=window.low,
            cursor_high=window.high,
        )

    def _clear_folder(self, manifest: Manifest, sidecars: set[str]) -> Cleared:
        """Move what killed attempts and superseded runs left to ``_quarantine``; remove torn temp files.

        Only names that this export's runs write are touched, and nothing is deleted that a reader
        could have taken for data.
        """
        mine = names.NameMatcher(self.export.name)
        known = self.state.all_part_names(self.export.name, self.header.prefix)
        keep = {part.path for part in manifest.committed}
        adds = self.header.mode in ACCUMULATING and manifest.source.extraction.cursor_low is not None
        if adds:
            # without a lower bound it is a whole pass, which replaces them
            keep |= self._earlier_deltas(known)
        found: Counter[str] = Counter()
        listed = tuple(self.store.list())
        for item in listed:
            # of a folder without rows by now; its marker comes first in a listing
            if not adds and mine.is_folder_sidecar(item.name) and item.name not in sidecars:
                self.store.delete(item.name)
        for item in listed:
            owned = mine.match(item.name)
            beside = names.is_sidecar(item.name) or mine.is_folder_sidecar(item.name)
            if item.name in keep or beside:
                continue
            if owned is None:
                found["untracked"] += 1
            elif owned.temporary:
                self.store.delete(item.name)
            else:
                _, status = known.get(item.name, ("", ""))
                found["superseded" if status == "completed" else "orphaned"] += 1
                self.store.set_aside(item.name, owned.run_id)
        return Cleared(found["superseded"], found["orphaned"], found["untracked"])

    def _earlier_deltas(self, known: Mapping[str, tuple[str, RunStatus]]) -> set[str]:
        """Parts of earlier complete incremental runs, which this run adds to: not of those repaired since."""
        replaced = self.state.replaced_runs(self.export.name) | {self.header.parent_run_id}
        return {
            name for name, (run, status) in known.items() if status == "completed" and run not in replaced
        }

    def _verify(self, manifest: Manifest, data: bytes) -> None:
        """M5 before the marker promises it: every part is there at its size, and the manifest too."""
        problems = manifest.inconsistencies()
        sizes = {item.name: item.size for item in self.store.list()}
        for part in manifest.committed:
            found = sizes.get(part.path)
            if found != part.size_bytes:
                problems.append(f"{part.path} has {found} bytes, the manifest says {part.size_bytes}")
        if self.store.read_bytes(names.MANIFEST, MAX_MANIFEST_BYTES) != data:
            problems.append("manifest.json is not what was written")
        if problems:
            raise IntegrityError(
                f"the run's output does not hold: {'; '.join(problems[:5])}",
                code="RIVET_VALIDATE_FAILED",
                export=self.export.name,
            )

    def _complete(
        self, manifest: Manifest, size: int, widths: dict[str, int], figures: dict[str, Any]
    ) -> None:
        units = manifest.additions.units if manifest.additions else ()
        extraction = manifest.source.extraction
        peak = peak_bytes()
        metrics: dict[str, Any] = {
            "peak_rss_mb": peak and peak >> 20,
            "duration_ms": int((time.monotonic() - self.started) * 1000),
            "total_rows": manifest.row_count,
            "files_produced": manifest.part_count,
            "bytes_written": size,
            "format": manifest.format,
            "mode": self.export.mode,
            "schema_fingerprint": manifest.schema_fingerprint,
            **figures,
        }
        self.state.finish_run(
            self.header.run_id,
            self.lease,
            RunFinish(
                "completed",
                metrics=metrics,
                cursor=self._cursor_of(manifest.source),
                schema_json=self.header.schema_json,
                widths=widths or None,
                committed=self._boundary(extraction, len(units)),
                events=(
                    *self.decisions,
                    JournalEvent("RunCompleted", {"status": "success", "rows": manifest.row_count}),
                ),
            ),
        )

    def _cursor_of(self, source: SourceRecord) -> CursorRow | None:
        """From the manifest, so that a run rolled forward moves the cursor exactly as it would have.

        The config may name another table by then, which must not inherit this cursor.
        """
        extraction = source.extraction
        if extraction.cursor_high is None or extraction.cursor_column is None:
            return None
        rows = f"{source.schema}.{source.table}" if source.table else "query"
        stream = f"{self.header.source_identity}/{rows}"
        return CursorRow(
            extraction.cursor_high,
            extraction.cursor_column,
            extraction.cursor_type or "",
            stream,
            self.header.run_id,
        )

    def _boundary(self, extraction: Extraction, units: int) -> Boundary | None:
        if extraction.cursor_high is not None:
            return Boundary("cursor", self.header.run_id, cursor=extraction.cursor_high)
        if units:
            return Boundary("chunk", self.header.run_id, chunk_index=units - 1)
        return None

    def _outcome(
        self,
        status: str,
        *,
        rows: int,
        files: int,
        size: int,
        units: int,
        manifest_uri: str | None,
        reason: str | None = None,
        warnings: tuple[str, ...] = (),
        retries: int = 0,
        details: dict[str, Any] | None = None,
    ) -> RunOutcome:
        return RunOutcome(
            status=status,
            run_id=self.header.run_id,
            export=self.export.name,
            mode=self.export.mode,
            rows=rows,
            files=files,
            bytes=size,
            seconds=time.monotonic() - self.started,
            units=units,
            columns=self.columns,
            prefix_uri=self.store.uri(),
            manifest_uri=manifest_uri,
            skip_reason=reason,
            notes=self.notes,
            warnings=warnings,
            retries=retries,
            details=details or {},
        )
