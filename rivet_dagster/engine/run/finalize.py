"""The one end of every run: manifest, folder, marker, cursor (I3, I4, I6, I8; M1 to M7, M9)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from rivet_dagster.engine import names
from rivet_dagster.engine.destinations.base import Store
from rivet_dagster.engine.errors import IntegrityError
from rivet_dagster.engine.plan.plan import ACCUMULATING, CursorWindow
from rivet_dagster.engine.plan.units import Part
from rivet_dagster.engine.run.added import row_hash_record
from rivet_dagster.engine.run.drift import widest, width_drift
from rivet_dagster.engine.run.events import RunOutcome, RunPlan
from rivet_dagster.engine.run.faults import fault_point
from rivet_dagster.engine.run.figures import policies_record, total, width_factor
from rivet_dagster.engine.run.options import checksum_key
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


@dataclass(slots=True)
class _Folders:
    """What belongs into the folders of partitions, by name. markers: due when all is verified."""

    markers: dict[str, bytes] = field(default_factory=dict)
    sidecars: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Finalizer:
    """Ends one run. Every step may be repeated: a run killed between two of them is finished later."""

    state: StateStore
    lease: Lease
    store: Store
    export: ExportConfig
    header: RunHeader
    columns: tuple[Column, ...]
    facts: SourceFacts
    window: CursorWindow | None
    notes: tuple[str, ...]
    started: float

    def finish(self, plan: RunPlan) -> RunOutcome:
        """All units are complete: publish the run. Raises IntegrityError when a part is not there."""
        rows = self.state.parts(self.header.run_id)
        report = evaluate(self.export, [row.as_part() for row in rows], self.store)
        report.raise_if_failed(self.export.name)
        manifest = self._manifest(plan, rows)
        data = manifest.to_bytes()
        self.store.put_bytes(names.manifest_copy(self.header.run_id), data)
        fault_point("after_manifest_copy")
        return self._publish(manifest, data, report)

    def roll_forward(self) -> RunOutcome:
        """Finish a run whose manifest an earlier process had written: the very same bytes (M4)."""
        data = self.store.read_bytes(names.manifest_copy(self.header.run_id), MAX_MANIFEST_BYTES)
        assert data is not None
        return self._publish(parse_manifest(data), data, QualityReport())

    def skipped(self, reason: str) -> RunOutcome:
        """Nothing to do: the prefix stays as it is, marker and manifest included."""
        evaluate(self.export, (), self.store).raise_if_failed(self.export.name)
        return self._outcome("skipped", rows=0, files=0, size=0, units=0, manifest_uri=None, reason=reason)

    def _publish(self, manifest: Manifest, data: bytes, report: QualityReport) -> RunOutcome:
        self.store.put_bytes(names.MANIFEST, data)
        fault_point("after_manifest_update")
        below = self._publish_folders(manifest)
        self._clear_folder(manifest, below.sidecars | set(below.markers))
        fault_point("after_quarantine")
        self._verify(manifest, data)
        for name, body in below.markers.items():
            if self.store.read_bytes(name, MAX_SUCCESS_BYTES) != body:
                self.store.put_bytes(name, body)
        self.store.put_bytes(names.SUCCESS, success_body(data))
        fault_point("after_success")
        size = sum(p.size_bytes for p in manifest.committed)
        figures = total(row.stats for row in self.state.parts(self.header.run_id))
        known = self.state.widths(self.export.name) or {}
        grown = width_drift(known, figures.widths, width_factor(self.export))
        replaced = [
            f"{count} values of '{name}' have no form in its type and are NULL"
            for name, count in figures.nulled.items()
        ]
        details = {"nulled": dict(figures.nulled), "quality": report.as_json()}
        retries = self.state.retries(self.header.run_id)
        self._complete(manifest, size, widest(known, figures.widths), {"retries": retries, **details})
        fault_point("after_cursor_commit")
        units = len(manifest.additions.units) if manifest.additions else 0
        return self._outcome(
            "success",
            rows=manifest.row_count,
            files=manifest.part_count,
            size=size,
            units=units,
            manifest_uri=self.store.uri(names.manifest_copy(self.header.run_id)),
            warnings=(*replaced, *grown, *report.warnings),
            retries=retries,
            details=details,
        )

    def _publish_folders(self, manifest: Manifest) -> _Folders:
        """A manifest for each folder of a partition. One whose manifest lists its parts stays as it is."""
        sums = {row.file_name: row.checksums for row in self.state.parts(self.header.run_id)}
        found = _Folders()
        for folder, own in folder_manifests(manifest, sums):
            name = f"{folder}/{names.MANIFEST}"
            data = self.store.read_bytes(name, MAX_MANIFEST_BYTES)
            held = held_manifest(data, own.parts)
            if data is None or held is None:
                held, data = own, own.to_bytes()
                self.store.put_bytes(f"{folder}/{names.manifest_copy(own.run_id)}", data)
                self.store.put_bytes(name, data)
            found.markers[f"{folder}/{names.SUCCESS}"] = success_body(data)
            found.sidecars |= {name, f"{folder}/{names.manifest_copy(held.run_id)}"}
        return found

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

    def _clear_folder(self, manifest: Manifest, sidecars: set[str]) -> None:
        """Move what killed attempts and superseded runs left to ``_quarantine``; remove torn temp files.

        Only names that this export's runs write are touched, and nothing is deleted that a reader
        could have taken for data.
        """
        mine = names.NameMatcher(self.export.name)
        keep = {part.path for part in manifest.committed}
        adds = self.header.mode in ACCUMULATING and manifest.source.extraction.cursor_low is not None
        if adds:
            keep |= self._earlier_deltas()  # without a lower bound it is a whole pass, which replaces them
        found = tuple(self.store.list())
        for item in found:
            # of a folder without rows by now; its marker comes first in a listing
            if not adds and mine.is_folder_sidecar(item.name) and item.name not in sidecars:
                self.store.delete(item.name)
        for item in found:
            owned = mine.match(item.name)
            if owned is None or item.name in keep:
                continue
            if owned.temporary:
                self.store.delete(item.name)
            else:
                self.store.move(item.name, f"{names.QUARANTINE}/{owned.run_id}/{item.name}")

    def _earlier_deltas(self) -> set[str]:
        """Parts of earlier complete incremental runs, which this run adds to."""
        known = self.state.all_part_names(self.export.name, self.header.prefix)
        return {name for name, (_, status) in known.items() if status == "completed"}

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
        metrics: dict[str, Any] = {
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
                events=(JournalEvent("RunCompleted", {"status": "success", "rows": manifest.row_count}),),
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
