"""Runs inside the transaction that ``state.migrate`` opened and locked."""

from __future__ import annotations

from alembic import context

from rivet_dagster.engine.state.migrate import VERSION_TABLE
from rivet_dagster.engine.state.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
