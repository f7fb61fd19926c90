"""The state's tables, one definition for SQLite and PostgreSQL.

Times (``*_at``) are whole milliseconds since 1970 UTC: both backends compare them alike and none
needs a type decoder. Leases and claims take them from the server's clock on PostgreSQL.
A change here needs a migration; a test compares this module with what the migrations make.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    literal_column,
)

metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

#: SQLite numbers rows by itself only in a column that is exactly INTEGER
RowId: Final = BigInteger().with_variant(Integer(), "sqlite")

chunk_run: Final = Table(
    "chunk_run",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("export_name", Text, nullable=False),
    Column("prefix", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("plan_hash", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("parent_run_id", Text),
    Column("consistency", Text),
    Column("schema_json", Text),
    Column("source_identity", Text, nullable=False),
    Column("max_chunk_attempts", Integer, nullable=False),
    Column("holder", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)
Index("ix_chunk_run_export", chunk_run.c.export_name, chunk_run.c.created_at)
_open: Final = chunk_run.c.status == literal_column("'in_progress'")
Index(
    "uq_chunk_run_open_export",
    chunk_run.c.export_name,
    unique=True,
    sqlite_where=_open,
    postgresql_where=_open,
)

chunk_task: Final = Table(
    "chunk_task",
    metadata,
    Column("run_id", Text, ForeignKey(chunk_run.c.run_id), primary_key=True),
    Column("chunk_index", Integer, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("partition_key", Text, nullable=False),
    Column("start_key", Text),
    Column("end_key", Text),
    Column("spec_json", Text, nullable=False),
    Column("est_rows", BigInteger),
    Column("status", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("is_final", Boolean, nullable=False),
    Column("claim_token", BigInteger, nullable=False),
    Column("claimed_by", Text),
    Column("claim_expires_at", BigInteger),
    Column("retry_at", BigInteger),
    Column("last_error_json", Text),
    Column("rows_written", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)
#: What a claim looks through: finished units are not in it, so the last claim costs what the first did.
unfinished: Final = chunk_task.c.status != literal_column("'completed'")
Index(
    "ix_chunk_task_unfinished",
    chunk_task.c.run_id,
    chunk_task.c.attempts,
    chunk_task.c.chunk_index,
    sqlite_where=unfinished,
    postgresql_where=unfinished,
)

file_log: Final = Table(
    "file_log",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("run_id", Text, ForeignKey(chunk_run.c.run_id), nullable=False),
    Column("export_name", Text, nullable=False),
    Column("chunk_index", Integer, nullable=False),
    Column("file_name", Text, nullable=False),
    Column("row_count", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("md5", Text, nullable=False),
    Column("format", Text, nullable=False),
    Column("compression", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("checksums_json", Text),
    Column("origin_run_id", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("stats_json", Text),
    UniqueConstraint("run_id", "file_name"),
)

export_state: Final = Table(
    "export_state",
    metadata,
    Column("export_name", Text, primary_key=True),
    Column("prefix", Text, primary_key=True),
    Column("last_cursor_value", Text, nullable=False),
    Column("cursor_column", Text, nullable=False),
    Column("cursor_type", Text, nullable=False),
    Column("stream", Text, nullable=False),
    Column("last_run_id", Text, nullable=False),
    Column("last_run_at", BigInteger, nullable=False),
)

export_progression: Final = Table(
    "export_progression",
    metadata,
    Column("export_name", Text, primary_key=True),
    Column("prefix", Text, primary_key=True),
    Column("last_committed_strategy", Text),
    Column("last_committed_cursor", Text),
    Column("last_committed_chunk_index", Integer),
    Column("last_committed_run_id", Text),
    Column("last_committed_at", BigInteger),
    Column("last_verified_strategy", Text),
    Column("last_verified_cursor", Text),
    Column("last_verified_chunk_index", Integer),
    Column("last_verified_run_id", Text),
    Column("last_verified_at", BigInteger),
)

export_schema: Final = Table(
    "export_schema",
    metadata,
    Column("export_name", Text, primary_key=True),
    Column("columns_json", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)

export_shape: Final = Table(
    "export_shape",
    metadata,
    Column("export_name", Text, primary_key=True),
    Column("widths_json", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)

export_metrics: Final = Table(
    "export_metrics",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("run_id", Text, ForeignKey(chunk_run.c.run_id), nullable=False, unique=True),
    Column("export_name", Text, nullable=False),
    Column("run_at", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("duration_ms", BigInteger),
    Column("total_rows", BigInteger),
    Column("files_produced", BigInteger),
    Column("bytes_written", BigInteger),
    Column("bytes_read", BigInteger),
    Column("retries", BigInteger),
    Column("peak_rss_mb", BigInteger),
    Column("longest_chunk_ms", BigInteger),
    Column("cursor_min", Text),
    Column("cursor_max", Text),
    Column("error_json", Text),
    Column("details_json", Text, nullable=False),
)
Index("ix_export_metrics_export", export_metrics.c.export_name, export_metrics.c.id)

run_aggregate: Final = Table(
    "run_aggregate",
    metadata,
    Column("run_aggregate_id", Text, primary_key=True),
    Column("started_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger, nullable=False),
    Column("duration_ms", BigInteger, nullable=False),
    Column("config_path", Text, nullable=False),
    Column("parallel_mode", Text, nullable=False),
    Column("total_exports", BigInteger, nullable=False),
    Column("success_count", BigInteger, nullable=False),
    Column("failed_count", BigInteger, nullable=False),
    Column("skipped_count", BigInteger, nullable=False),
    Column("total_rows", BigInteger, nullable=False),
    Column("total_files", BigInteger, nullable=False),
    Column("total_bytes", BigInteger, nullable=False),
    Column("details_json", Text, nullable=False),
)

run_journal: Final = Table(
    "run_journal",
    metadata,
    Column("seq", RowId, primary_key=True, autoincrement=True),
    Column("run_id", Text, ForeignKey(chunk_run.c.run_id), nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("event", Text, nullable=False),
    Column("json", Text, nullable=False),
)
Index("ix_run_journal_run", run_journal.c.run_id, run_journal.c.seq)

state_lease: Final = Table(
    "state_lease",
    metadata,
    Column("lease_key", Text, primary_key=True),
    Column("holder", Text),
    Column("token", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("pid_start", BigInteger, nullable=False),
    Column("boot_id", Text, nullable=False),
)
