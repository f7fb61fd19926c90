"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _runs()
    _exports()
    _leases()


def _runs() -> None:
    """Runs, their units, parts, events and figures."""
    op.create_table(
        "chunk_run",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("export_name", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("plan_hash", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("parent_run_id", sa.Text(), nullable=True),
        sa.Column("consistency", sa.Text(), nullable=True),
        sa.Column("schema_json", sa.Text(), nullable=True),
        sa.Column("source_identity", sa.Text(), nullable=False),
        sa.Column("max_chunk_attempts", sa.Integer(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_chunk_run")),
    )
    op.create_index("ix_chunk_run_export", "chunk_run", ["export_name", "created_at"], unique=False)
    op.create_index(
        "uq_chunk_run_open_export",
        "chunk_run",
        ["export_name"],
        unique=True,
        sqlite_where=sa.text("status = 'in_progress'"),
        postgresql_where=sa.text("status = 'in_progress'"),
    )
    op.create_table(
        "chunk_task",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("chunk_index", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("partition_key", sa.Text(), nullable=False),
        sa.Column("start_key", sa.Text(), nullable=True),
        sa.Column("end_key", sa.Text(), nullable=True),
        sa.Column("spec_json", sa.Text(), nullable=False),
        sa.Column("est_rows", sa.BigInteger(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("is_final", sa.Boolean(), nullable=False),
        sa.Column("claim_token", sa.BigInteger(), nullable=False),
        sa.Column("claimed_by", sa.Text(), nullable=True),
        sa.Column("claim_expires_at", sa.BigInteger(), nullable=True),
        sa.Column("retry_at", sa.BigInteger(), nullable=True),
        sa.Column("last_error_json", sa.Text(), nullable=True),
        sa.Column("rows_written", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["chunk_run.run_id"], name=op.f("fk_chunk_task_run_id")),
        sa.PrimaryKeyConstraint("run_id", "chunk_index", name=op.f("pk_chunk_task")),
    )
    op.create_index(
        "ix_chunk_task_unfinished",
        "chunk_task",
        ["run_id", "attempts", "chunk_index"],
        unique=False,
        sqlite_where=sa.text("status != 'completed'"),
        postgresql_where=sa.text("status != 'completed'"),
    )
    op.create_table(
        "file_log",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("export_name", sa.Text(), nullable=False),
        sa.Column("chunk_index", sa.Integer(), nullable=False),
        sa.Column("file_name", sa.Text(), nullable=False),
        sa.Column("row_count", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("md5", sa.Text(), nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("compression", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("checksums_json", sa.Text(), nullable=True),
        sa.Column("origin_run_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["chunk_run.run_id"], name=op.f("fk_file_log_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_file_log")),
        sa.UniqueConstraint("run_id", "file_name", name=op.f("uq_file_log_run_id_file_name")),
    )
    op.create_table(
        "run_journal",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("json", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["chunk_run.run_id"], name=op.f("fk_run_journal_run_id")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_run_journal")),
    )
    op.create_index("ix_run_journal_run", "run_journal", ["run_id", "seq"], unique=False)
    op.create_table(
        "export_metrics",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("export_name", sa.Text(), nullable=False),
        sa.Column("run_at", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("duration_ms", sa.BigInteger(), nullable=True),
        sa.Column("total_rows", sa.BigInteger(), nullable=True),
        sa.Column("files_produced", sa.BigInteger(), nullable=True),
        sa.Column("bytes_written", sa.BigInteger(), nullable=True),
        sa.Column("bytes_read", sa.BigInteger(), nullable=True),
        sa.Column("retries", sa.BigInteger(), nullable=True),
        sa.Column("peak_rss_mb", sa.BigInteger(), nullable=True),
        sa.Column("longest_chunk_ms", sa.BigInteger(), nullable=True),
        sa.Column("cursor_min", sa.Text(), nullable=True),
        sa.Column("cursor_max", sa.Text(), nullable=True),
        sa.Column("error_json", sa.Text(), nullable=True),
        sa.Column("details_json", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["chunk_run.run_id"], name=op.f("fk_export_metrics_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_export_metrics")),
        sa.UniqueConstraint("run_id", name=op.f("uq_export_metrics_run_id")),
    )
    op.create_index("ix_export_metrics_export", "export_metrics", ["export_name", "id"], unique=False)
    op.create_table(
        "run_aggregate",
        sa.Column("run_aggregate_id", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=False),
        sa.Column("duration_ms", sa.BigInteger(), nullable=False),
        sa.Column("config_path", sa.Text(), nullable=False),
        sa.Column("parallel_mode", sa.Text(), nullable=False),
        sa.Column("total_exports", sa.BigInteger(), nullable=False),
        sa.Column("success_count", sa.BigInteger(), nullable=False),
        sa.Column("failed_count", sa.BigInteger(), nullable=False),
        sa.Column("skipped_count", sa.BigInteger(), nullable=False),
        sa.Column("total_rows", sa.BigInteger(), nullable=False),
        sa.Column("total_files", sa.BigInteger(), nullable=False),
        sa.Column("total_bytes", sa.BigInteger(), nullable=False),
        sa.Column("details_json", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_aggregate_id", name=op.f("pk_run_aggregate")),
    )


def _exports() -> None:
    """What outlives a run: cursor, boundaries, accepted schema."""
    op.create_table(
        "export_state",
        sa.Column("export_name", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("last_cursor_value", sa.Text(), nullable=False),
        sa.Column("cursor_column", sa.Text(), nullable=False),
        sa.Column("cursor_type", sa.Text(), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("last_run_id", sa.Text(), nullable=False),
        sa.Column("last_run_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("export_name", "prefix", name=op.f("pk_export_state")),
    )
    op.create_table(
        "export_progression",
        sa.Column("export_name", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("last_committed_strategy", sa.Text(), nullable=True),
        sa.Column("last_committed_cursor", sa.Text(), nullable=True),
        sa.Column("last_committed_chunk_index", sa.Integer(), nullable=True),
        sa.Column("last_committed_run_id", sa.Text(), nullable=True),
        sa.Column("last_committed_at", sa.BigInteger(), nullable=True),
        sa.Column("last_verified_strategy", sa.Text(), nullable=True),
        sa.Column("last_verified_cursor", sa.Text(), nullable=True),
        sa.Column("last_verified_chunk_index", sa.Integer(), nullable=True),
        sa.Column("last_verified_run_id", sa.Text(), nullable=True),
        sa.Column("last_verified_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("export_name", "prefix", name=op.f("pk_export_progression")),
    )
    op.create_table(
        "export_schema",
        sa.Column("export_name", sa.Text(), nullable=False),
        sa.Column("columns_json", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("export_name", name=op.f("pk_export_schema")),
    )


def _leases() -> None:
    """Who may write, with the fencing token."""
    op.create_table(
        "state_lease",
        sa.Column("lease_key", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=True),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("pid_start", sa.BigInteger(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("lease_key", name=op.f("pk_state_lease")),
    )


def downgrade() -> None:
    raise NotImplementedError("there is nothing before this")
