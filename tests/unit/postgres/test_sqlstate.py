"""SQLSTATE -> the engine's error. What connections say is in tests/live."""

from __future__ import annotations

import psycopg
import pytest

from rivet_dagster.engine.errors import EnvironmentFault, RivetError, TransientError, UsageError
from rivet_dagster.engine.redact import register_secret
from rivet_dagster.engine.sources.postgres.sqlstate import CLASS_VERDICTS, VERDICTS, classify


def raised(state: str) -> psycopg.Error:
    """An error of the server with this code. psycopg knows every code as a class."""
    return psycopg.errors.lookup(state)("the text says nothing: password authentication failed")


@pytest.mark.parametrize(
    ("state", "code", "retryable", "wait_s"),
    [
        ("08006", "RIVET_SOURCE_UNAVAILABLE", True, 0),
        ("08P01", "RIVET_SOURCE_UNAVAILABLE", True, 0),
        ("57P01", "RIVET_SOURCE_UNAVAILABLE", True, 15),
        ("57P02", "RIVET_SOURCE_UNAVAILABLE", True, 15),
        ("57P03", "RIVET_SOURCE_UNAVAILABLE", True, 15),
        ("53300", "RIVET_SOURCE_UNAVAILABLE", True, 15),
        ("53100", "RIVET_SOURCE_UNAVAILABLE", True, 5),
        ("53200", "RIVET_SOURCE_UNAVAILABLE", True, 5),
        ("40001", "RIVET_SOURCE_CONFLICT", True, 1),
        ("40P01", "RIVET_SOURCE_CONFLICT", True, 1),
        ("55P03", "RIVET_SOURCE_CONFLICT", True, 0),
        ("72000", "RIVET_SOURCE_SNAPSHOT_LOST", True, 0),
        ("57014", "RIVET_SOURCE_STATEMENT_TIMEOUT", False, 0),
        ("28P01", "RIVET_SOURCE_AUTH_FAILED", False, 0),
        ("28000", "RIVET_SOURCE_AUTH_FAILED", False, 0),
        ("3D000", "RIVET_SOURCE_DATABASE_NOT_FOUND", False, 0),
        ("42501", "RIVET_SOURCE_PERMISSION_DENIED", False, 0),
        ("42P01", "RIVET_SOURCE_TABLE_NOT_FOUND", False, 0),
        ("42703", "RIVET_SOURCE_SCHEMA_CHANGED", True, 0),
        ("22P05", "RIVET_SOURCE_VALUE_UNREPRESENTABLE", False, 0),
        ("22012", "RIVET_SOURCE_QUERY_FAILED", False, 0),
        ("0A000", "RIVET_SOURCE_QUERY_FAILED", False, 0),
        ("XX000", "RIVET_SOURCE_QUERY_FAILED", False, 0),
        ("P0001", "RIVET_SOURCE_QUERY_FAILED", False, 0),
    ],
)
def test_state(state: str, code: str, retryable: bool, wait_s: float) -> None:
    error = classify(raised(state), export="orders")
    assert (error.code, error.retryable, error.retry_after_s) == (code, retryable, wait_s)
    assert (error.sqlstate, error.export) == (state, "orders")


def test_every_verdict_has_a_registered_code() -> None:
    for state, verdict in VERDICTS.items():
        assert verdict.error("x", code=verdict.code, sqlstate=state).sqlstate == state
    for verdict in CLASS_VERDICTS.values():
        assert isinstance(verdict.error("x", code=verdict.code), RivetError)


def test_a_denial_is_row_security_when_the_catalog_says_that_rows_are_hidden() -> None:
    assert classify(raised("42501"), rows_hidden=True).code == "RIVET_SOURCE_ROW_SECURITY"


@pytest.mark.parametrize("state", ["22023", "42704", "55000"])
def test_a_snapshot_that_ended(state: str) -> None:
    assert classify(raised(state), phase="snapshot").code == "RIVET_SOURCE_SNAPSHOT_LOST"
    assert classify(raised(state)).code != "RIVET_SOURCE_SNAPSHOT_LOST"


def test_a_query_that_the_server_does_not_understand_is_the_configs_fault() -> None:
    error = classify(raised("42601"), phase="describe", statement="SELEC 1")
    assert isinstance(error, UsageError)
    assert error.field == "query"
    assert "SELEC 1" in error.message
    assert classify(raised("42P01"), phase="describe").code == "RIVET_SOURCE_TABLE_NOT_FOUND"


def test_a_lost_connection_is_transient_and_a_defect_of_ours_is_not() -> None:
    lost = classify(psycopg.OperationalError("server closed the connection unexpectedly"))
    assert isinstance(lost, TransientError)
    assert lost.code == "RIVET_SOURCE_UNAVAILABLE"
    assert classify(psycopg.InterfaceError("the connection is closed")).retryable
    assert classify(psycopg.ProgrammingError("no results to fetch")).code == "RIVET_INTERNAL"


def test_the_message_holds_the_state_and_the_statement_and_no_secret() -> None:
    register_secret("hunter2-secret")
    error = classify(
        psycopg.errors.lookup("22012")("bad hunter2-secret"),
        statement="SELECT\n 'hunter2-secret'" + "x" * 900,
    )
    assert isinstance(error, EnvironmentFault)
    assert error.message.startswith("22012: bad ***")
    assert "hunter2" not in str(error)
    assert len(error.message) < 700
