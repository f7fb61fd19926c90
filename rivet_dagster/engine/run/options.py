"""Config of an export becomes the options of reading and writing."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any, Final

from rivet_dagster.engine.errors import UsageError
from rivet_dagster.engine.run.pacing import PaceRules
from rivet_dagster.engine.run.sink import BatchLimit, Checksum
from rivet_dagster.engine.sources.base import SourceFacts
from rivet_dagster.engine.sources.postgres.kernel import batch_checksums
from rivet_dagster.engine.sources.postgres.order import ReadOptions
from rivet_dagster.engine.state.lease import DEFAULT_TTL_S
from rivet_dagster.engine.write.base import WriteOptions

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig
    from rivet_dagster.config.tuning import Tuning

MIB = 1 << 20
LEASE_TTL_ENV = "RIVET_LEASE_TTL_S"
ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 16 * MIB
_ROW_GROUP_MB = 128  # of a `parquet:` block that names no size, as in the reference
_MAX_ROWS = 10_000_000
_ARROW_CODEC = {"none": None, "lz4": "lz4", "zstd": "zstd", "snappy": "snappy", "gzip": "gzip"}


def write_options(export: ExportConfig) -> WriteOptions:
    codec, level = export.compression_resolved()
    rows, size = ROW_GROUP_ROWS, ROW_GROUP_BYTES
    if export.parquet is not None and export.format == "parquet":
        block = export.parquet
        if block.row_group_rows is not None:
            rows, size = block.row_group_rows, 1024 * MIB
        elif block.target_row_group_mb is not None or block.row_group_strategy is not None:
            rows, size = _MAX_ROWS, (block.target_row_group_mb or _ROW_GROUP_MB) * MIB
        if block.max_row_group_mb is not None:
            size = min(size, block.max_row_group_mb * MIB)
    return WriteOptions(export.format, _ARROW_CODEC[codec], level, rows, size, export.max_file_bytes)


def read_options(write: WriteOptions, tuning: Tuning) -> ReadOptions:
    """A batch is a row group; the memory budget of the tuning caps it."""
    size = write.max_bytes
    if tuning.batch_size_memory_mb is not None:
        size = min(size, tuning.batch_size_memory_mb * MIB)
    if tuning.max_batch_memory_mb and tuning.on_batch_memory_exceeded == "auto_shrink":
        size = min(size, tuning.max_batch_memory_mb * MIB)
    return ReadOptions(
        max_rows=write.max_rows,
        max_bytes=size,
        max_value_bytes=min(tuning.max_value_mb, 1000) * MIB,
        throttle_ms=tuning.throttle_ms,
        throttle_rows=tuning.batch_size,
    )


def batch_limit(tuning: Tuning) -> BatchLimit | None:
    """What a batch is held to; ``auto_shrink`` needs nobody who looks, it is in ``read_options``."""
    if not tuning.max_batch_memory_mb or tuning.on_batch_memory_exceeded == "auto_shrink":
        return None
    return BatchLimit(tuning.max_batch_memory_mb * MIB, refuses=tuning.on_batch_memory_exceeded == "fail")


def pace_rules(tuning: Tuning, parallel: int) -> PaceRules:
    return PaceRules(
        parallel,
        min(tuning.min_parallel, parallel) if tuning.adaptive else None,
        tuning.memory_threshold_mb * MIB,
        tuning.lock_timeout_s,
    )


def checksum_key(export: ExportConfig, facts: SourceFacts) -> str | None:
    """The column whose cell is hashed before every other cell of its row, so that cells which swapped
    rows do not cancel out: the key that the export names, else a single-column primary key."""
    single = export.key_columns[0] if len(export.key_columns) == 1 else None
    for name in (single, export.chunk_column, export.cursor_column, *facts.primary_key[:1]):
        if name is not None and (name not in facts.primary_key or len(facts.primary_key) == 1):
            return name
    return None


def checksums(file_format: str, key: str | None) -> Checksum | None:
    """Sums of cell hashes per batch, each cell hashed after its row's key; CSV has none."""
    return (lambda batch: batch_checksums(batch, key)) if file_format == "parquet" else None


#: Keys of an export that decide which rows and columns go to which files.
_DECIDING: Final = (
    "name", "query", "query_file", "table", "mode", "cursor_column", "cursor_fallback_column", "settle",
    "late_rows", "open_transactions", "keyset_incremental", "time_column", "time_column_type", "days_window",
    "chunk_column", "chunk_size", "chunk_size_memory_mb", "chunk_count", "chunk_by_key", "chunk_by_days",
    "chunk_dense", "consistency", "partition_by", "partition_granularity", "format", "compression",
    "compression_level", "compression_profile", "parquet", "max_file_size", "meta_columns", "verify",
)  # fmt: skip


def plan_hash(export: ExportConfig, facts: SourceFacts, identity: str) -> str:
    """Changes when a run in progress could not be continued: other rows, other columns, other files."""
    parts = {
        "source": identity,
        "export": {key: _plain(getattr(export, key)) for key in _DECIDING},
        "query": export.query_text(),
        "destination": export.destination.where,
        "columns": [c.as_json() for c in facts.columns],
        "numbers": facts.numbers,
        "checksum_key": checksum_key(export, facts),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _plain(value: Any) -> Any:
    """A config value for JSON. The model's own dump would compile its serializer: 5 ms of each run."""
    if fields := getattr(type(value), "model_fields", None):
        return {name: _plain(getattr(value, name)) for name in fields}
    return value


def lease_ttl_s() -> float:
    """Seconds after its last renewal that a silent holder's lease can be taken: ``RIVET_LEASE_TTL_S``.

    Longer survives longer outages of the state; shorter lets another host take over sooner. A holder
    that died on the same host is told by its process, whatever this says.
    """
    text = os.environ.get(LEASE_TTL_ENV)
    if not text:
        return DEFAULT_TTL_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86_400:
        raise UsageError(f"{LEASE_TTL_ENV} takes 1 to 86400 seconds, not '{text}'", field=LEASE_TTL_ENV)
    return seconds
