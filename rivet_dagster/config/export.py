"""One entry of ``exports:``."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr

from rivet_dagster.config.base import Context, Flag, Int, Name, Number, Problem, Section, Text, TextList
from rivet_dagster.config.cdc import CdcConfig
from rivet_dagster.config.column_types import ValuePolicy
from rivet_dagster.config.dagster_block import ExportDagster
from rivet_dagster.config.destination import DestinationConfig
from rivet_dagster.config.export_rules import export_problems
from rivet_dagster.config.identifiers import ColumnList, ColumnName, column_key, table_parts
from rivet_dagster.config.load import LoadOverride
from rivet_dagster.config.parquet import ParquetConfig
from rivet_dagster.config.quality import MetaColumns, QualityConfig
from rivet_dagster.config.settle import SettleConfig
from rivet_dagster.config.sizes import parse_duration, parse_size
from rivet_dagster.config.tuning import TuningConfig

Mode = Literal["full", "incremental", "chunked", "time_window", "cdc"]
Format = Literal["parquet", "csv"]
Codec = Literal["zstd", "snappy", "gzip", "lz4", "none"]
CompressionProfile = Literal["none", "fast", "balanced", "compact"]

DEFAULT_CHUNK_SIZE = 100_000
_PROFILE_CODEC: dict[CompressionProfile, tuple[Codec, int | None]] = {
    "none": ("none", None),
    "fast": ("snappy", None),
    "balanced": ("zstd", 3),
    "compact": ("zstd", 9),
}
_DEFAULT_LEVEL: dict[Codec, int] = {"zstd": 3, "gzip": 6}


class ExportConfig(Section):
    name: Text
    query: Text | None = None
    query_file: Name | None = None
    table: Text | None = None
    tables: TextList | None = None
    mode: Mode = "full"
    cdc: CdcConfig | None = None
    cursor_column: ColumnName | None = None
    cursor_fallback_column: ColumnName | None = None
    incremental_cursor_mode: Literal["single_column", "coalesce"] = "single_column"
    settle: SettleConfig | None = None
    late_rows: Text | None = None
    open_transactions: Literal["wait", "ignore"] = "wait"
    chunk_column: ColumnName | None = None
    chunk_dense: Flag = False
    chunk_size: Annotated[Int, Field(ge=1)] = DEFAULT_CHUNK_SIZE
    chunk_size_memory_mb: Annotated[Int, Field(ge=1)] | None = None
    chunk_count: Annotated[Int, Field(ge=1)] | None = None
    chunk_by_days: Annotated[Int, Field(ge=1)] | None = None
    chunk_by_key: ColumnName | ColumnList | None = None
    chunk_checkpoint: Flag = False
    chunk_max_attempts: Annotated[Int, Field(ge=1)] | None = None
    keyset_incremental: Flag = False
    consistency: Literal["snapshot", "chunk"] | None = None
    allow_scan: Flag = False
    parallel: Annotated[Int, Field(ge=1)] = 1
    wave: Annotated[Int, Field(ge=0)] | None = None
    parallel_safe: Flag | None = None
    time_column: ColumnName | None = None
    time_column_type: Literal["timestamp", "unix"] = "timestamp"
    days_window: Annotated[Int, Field(ge=1)] | None = None
    partition_by: ColumnName | None = None
    partition_granularity: Literal["day", "month", "year"] = "day"
    format: Format
    compression: Codec = "zstd"
    compression_level: Annotated[Int, Field(ge=0)] | None = None
    compression_profile: CompressionProfile | None = None
    parquet: ParquetConfig | None = None
    max_file_size: Text | None = None
    skip_empty: Flag = False
    destination: DestinationConfig
    verify: Literal["size", "content"] = "size"
    meta_columns: MetaColumns = MetaColumns()
    quality: QualityConfig | None = None
    columns: Mapping[Text, Text] = {}
    value_policy: Mapping[ColumnName, ValuePolicy] = {}
    target: Text | None = None
    on_schema_drift: Literal["warn", "continue", "fail"] = "warn"
    shape_drift_warn_factor: Annotated[Number, Field(ge=0)] | None = None
    source_group: Text | None = None
    reconcile_required: Flag = False
    tuning: TuningConfig | None = None
    load: LoadOverride | None = None
    lock_wait: Annotated[Int, Field(ge=0)] | None = None
    dagster: ExportDagster = ExportDagster()

    _dir: Path | None = PrivateAttr(None)

    def problems(self, context: Context) -> Iterator[Problem]:
        return export_problems(self, context)

    @property
    def asset_name(self) -> str:
        """The name with everything that Dagster does not take replaced by ``_``; unique in a config."""
        return re.sub(r"[^A-Za-z0-9_]", "_", self.name)

    @property
    def relation(self) -> tuple[str | None, str] | None:
        """(schema or None, table) of the ``table:`` form; None for a query."""
        if self.table is None:
            return None
        *schema, table = table_parts(self.table)
        return (schema[0] if schema else None, table)

    def query_text(self) -> str | None:
        """The SQL of ``query`` or ``query_file`` without a closing semicolon; None for a table.

        Raises OSError if the file went away since the config was loaded.
        """
        text = self.query
        if self.query_file is not None:
            text = ((self._dir or Path()) / self.query_file).read_text(encoding="utf-8-sig")
        return None if text is None else text.strip().rstrip(";").rstrip()

    @property
    def column_types(self) -> dict[str, str]:
        """``columns`` by column name; ``table.column`` wins over ``column``."""
        keys = [(*column_key(name), kind) for name, kind in self.columns.items()]
        plain = {column: kind for table, column, kind in keys if not table}
        qualified = {column: kind for table, column, kind in keys if table}
        return plain | qualified

    @property
    def value_policies(self) -> dict[str, ValuePolicy]:
        """``value_policy`` of the columns that it names."""
        return {name: policy for name, policy in self.value_policy.items() if name != "*"}

    @property
    def default_policy(self) -> ValuePolicy:
        return self.value_policy.get("*", "error")

    @property
    def max_file_bytes(self) -> int | None:
        return None if self.max_file_size is None else parse_size(self.max_file_size)

    def compression_resolved(self) -> tuple[Codec, int | None]:
        """(codec, level): the profile wins over ``compression``; CSV is never compressed."""
        if self.format == "csv":
            return ("none", None)
        if self.compression_profile is not None:
            return _PROFILE_CODEC[self.compression_profile]
        level = self.compression_level
        return (self.compression, _DEFAULT_LEVEL.get(self.compression) if level is None else level)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of ``chunk_by_key`` in their order; empty without it."""
        key = self.chunk_by_key
        return () if key is None else (key,) if isinstance(key, str) else key

    @property
    def late_rows_s(self) -> int | None:
        """Seconds below the watermark in which rows that came late are looked for; None: not at all."""
        return None if self.late_rows is None else parse_duration(self.late_rows)

    @property
    def waits_for_writers(self) -> bool:
        """Whether a cursor stops below what open transactions may still bring."""
        return self.open_transactions == "wait" and self.settle is None and self.late_rows is None

    @property
    def accumulates(self) -> bool:
        """Whether a run goes on where the last one stopped, and adds its files to those."""
        return self.mode == "incremental" or self.keyset_incremental

    @property
    def reads_one_snapshot(self) -> bool:
        """Whether all units of a run read the same snapshot, rather than each its own."""
        if self.consistency is not None:
            return self.consistency == "snapshot"
        return self.mode != "chunked" and not self.partitions_full

    @property
    def shared(self) -> bool:
        """Whether several processes work on a run of it; one stream has one writer."""
        return self.dagster.workers > 1 and self.destination.type != "stdout"

    @property
    def partitions_full(self) -> bool:
        """Whether a whole pass is cut by ``partition_by`` alone: its units outlive a snapshot."""
        return self.mode == "full" and self.partition_by is not None

    @property
    def chunk_strategy(self) -> Literal["key", "count", "memory", "size"] | None:
        """How ``mode: chunked`` cuts; None in other modes. ``chunk_count`` wins over sizes."""
        if self.mode != "chunked":
            return None
        if self.chunk_by_key is not None:
            return "key"
        if self.chunk_count is not None:
            return "count"
        return "size" if self.chunk_size_memory_mb is None else "memory"
