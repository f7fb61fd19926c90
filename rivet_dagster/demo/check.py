"""Reads the exported files as a stranger would, without manifest or state, and counts."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rivet_dagster.config import ExportConfig

KEY = "id"  # of every table of the shop


@dataclass(frozen=True, slots=True)
class Checked:
    """One export's files against its table. ``keys``: distinct keys in the files.

    bytes and files: of the folder's data files. rows_per_second: of the last run that wrote, from its
    manifest; None when ``fresh`` is False: this command found nothing new to write.
    """

    export: str
    mode: str
    expected: int
    rows: int
    keys: int
    files: int
    bytes: int
    rows_per_second: float | None
    fresh: bool

    @property
    def ok(self) -> bool:
        return self.rows == self.keys == self.expected


def check(export: ExportConfig, expected: int, since: datetime) -> Checked:
    """Compare the folder of ``export`` with ``expected`` rows; ``since``: when this command began (UTC)."""
    folder = Path(str(export.destination.path).replace("{export}", export.name))
    files = sorted(folder.glob(f"*.{export.format}"))
    keys = _csv_keys(files) if export.format == "csv" else _parquet_keys(files)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    fresh = datetime.fromisoformat(manifest["finished_at"]) >= since
    return Checked(
        export=export.name,
        mode=export.mode,
        expected=expected,
        rows=len(keys),
        keys=pc.count_distinct(keys).as_py(),
        files=len(files),
        bytes=sum(file.stat().st_size for file in files),
        rows_per_second=_rate(manifest) if fresh else None,
        fresh=fresh,
    )


def _parquet_keys(files: list[Path]) -> pa.ChunkedArray:
    if not files:
        return pa.chunked_array([], pa.int64())
    keys = pa.concat_tables([pq.read_table(file, columns=[KEY], partitioning=None) for file in files]).column(
        KEY
    )
    if isinstance(keys.type, pa.BaseExtensionType):  # uuid: counting works on the bytes below it
        keys = pa.chunked_array([chunk.storage for chunk in keys.chunks], keys.type.storage_type)
    return keys


def _csv_keys(files: list[Path]) -> pa.ChunkedArray:
    keys: list[str] = []
    for file in files:
        with file.open(newline="", encoding="utf-8") as lines:
            keys += [row[KEY] for row in csv.DictReader(lines)]
    return pa.chunked_array([keys], pa.string())


def _rate(manifest: Mapping[str, Any]) -> float | None:
    begun, ended = (datetime.fromisoformat(manifest[key]) for key in ("started_at", "finished_at"))
    seconds = (ended - begun).total_seconds()
    return manifest["row_count"] / seconds if seconds > 0 else None
