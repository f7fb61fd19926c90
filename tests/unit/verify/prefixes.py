"""Writes whole prefixes for tests: real parts, manifest, copy and marker, on the local file system."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from rivet_dagster.engine import names
from rivet_dagster.engine.destinations.local import LocalStore
from rivet_dagster.engine.plan.units import Part, UnitKind, WorkUnit
from rivet_dagster.engine.run.fencing import FencedStore
from rivet_dagster.engine.verify.checksum import column_checksum
from rivet_dagster.engine.verify.fingerprint import bytes_fingerprint
from rivet_dagster.engine.verify.manifest import (
    Extraction,
    Manifest,
    SourceRecord,
    UnitParts,
    build_manifest,
    success_body,
)

EXPORT = "orders"
AT = datetime(2026, 11, 29, 20, 4, 6, 997170, tzinfo=UTC)


def table(start: int, rows: int) -> pa.Table:
    ids = range(start, start + rows)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array([None if i % 7 == 0 else f"n{i}" for i in ids], pa.string()),
            "amount": pa.array([i * 100 for i in ids], pa.int64()).cast(pa.decimal128(21, 2)),
            "tags": pa.array([[i, None] for i in ids], pa.list_(pa.field("item", pa.int32()))),
            "days": pa.array([[i] for i in ids], pa.list_(pa.field("item", pa.date32()))),
            "uid": pa.ExtensionArray.from_storage(
                pa.uuid(), pa.array([i.to_bytes(16, "big") for i in ids], pa.binary(16))
            ),
        }
    )


@dataclass
class Prefix:
    """A folder that holds one or more runs of the export ``orders``."""

    root: Path
    format: str = "parquet"
    key: str | None = "id"
    md5: bool = True
    runs: list[Manifest] = field(default_factory=list)

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.root)

    def write_run(
        self,
        tables: Sequence[pa.Table],
        *,
        number: int = 1,
        extraction: Extraction | None = None,
        supersedes: Sequence[str] = (),
        alter: Callable[[pa.Table], pa.Table] = lambda t: t,
    ) -> Manifest:
        """One unit and part a table. ``alter`` changes what is written after its sums were taken."""
        self.root.mkdir(parents=True, exist_ok=True)
        run_id = f"{EXPORT}_20261129T20040{number}.000_abcde{number}"
        units = []
        for index, rows in enumerate(tables):
            name = names.part_name(run_id, index, 1, 0, self.format)
            self._write_part(alter(rows), name)
            unit = WorkUnit(index, UnitKind.RANGE, f"c{index}", {}, str(index * 100), str(index * 100 + 99))
            units.append(UnitParts(unit, [self.part(name, rows.num_rows, self._sums(rows))]))
        manifest = build_manifest(
            run_id=run_id,
            export_name=EXPORT,
            started_at=AT,
            finished_at=AT + timedelta(minutes=number),
            source=SourceRecord("postgres", None, "orders", extraction or Extraction("chunked")),
            destination_kind="local",
            destination_uri=self.root.as_uri(),
            format=self.format,
            compression="zstd" if self.format == "parquet" else "none",
            schema=tables[0].schema,
            units=units,
            supersedes=supersedes,
            checksum_key_column=self.key,
        )
        self.publish(manifest.to_bytes(), run_id)
        self.runs.append(manifest)
        return manifest

    def publish(self, data: bytes, run_id: str) -> None:
        held = FencedStore(self.store, EXPORT, lambda: None)
        held.put_bytes(names.manifest_copy(run_id), data)
        held.put_bytes(names.MANIFEST, data)
        held.put_bytes(names.SUCCESS, success_body(data))

    def edit_manifest(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the manifest and everything that vouches for it, as a careful forger would."""
        body = json.loads((self.root / names.MANIFEST).read_bytes())
        change(body)
        self.publish(json.dumps(body, indent=2).encode(), self.runs[-1].run_id)

    def part(self, name: str, rows: int, sums: dict[str, int] | None) -> Part:
        data = (self.root / name).read_bytes()
        md5 = base64.b64encode(hashlib.md5(data).digest()).decode() if self.md5 else ""
        return Part(name, rows, len(data), bytes_fingerprint(data), md5, sums)

    def path(self, part: int = 0) -> Path:
        return self.root / self.runs[-1].parts[part].path

    def _sums(self, rows: pa.Table) -> dict[str, int] | None:
        if self.format != "parquet":
            return None
        batch = rows.combine_chunks().to_batches()[0] if rows.num_rows else None
        if batch is None:
            return {}
        key = batch.column(self.key) if self.key else None
        return {name: column_checksum(batch.column(name), key) for name in batch.schema.names}

    def _write_part(self, rows: pa.Table, name: str) -> None:
        if self.format == "csv":
            pc.write_csv(rows.select(["id", "name"]), self.root / name)
        else:
            pq.write_table(rows, self.root / name, compression="zstd", row_group_size=40)
