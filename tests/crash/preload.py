"""What every run imports, imported once in the process that the runs are forked from."""

import duckdb  # noqa: F401 - tests.crash.kit needs it
import psycopg  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pytest  # noqa: F401

import rivet_dagster.engine.destinations.s3  # noqa: F401
import tests.crash.kit  # noqa: F401
