"""Figures of parts that gates and manifests need on a later day; widest values of an export's columns."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0002"
down_revision = "r0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("file_log", sa.Column("stats_json", sa.Text(), nullable=True))
    op.create_table(
        "export_shape",
        sa.Column("export_name", sa.Text(), nullable=False),
        sa.Column("widths_json", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("export_name", name=op.f("pk_export_shape")),
    )
