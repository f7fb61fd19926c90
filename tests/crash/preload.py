"""What every run imports, imported once in the process that the runs are forked from."""

import duckdb  # noqa: F401 - tests.crash.kit needs it
import psycopg  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pytest  # noqa: F401

import rivet_dagster.cli
import rivet_dagster.config
import rivet_dagster.engine.run.engine
import rivet_dagster.engine.state.migrate
import rivet_dagster.engine.write
import tests.crash.kit  # noqa: F401
