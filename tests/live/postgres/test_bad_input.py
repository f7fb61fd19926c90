"""Configs and sources that are wrong: refused by name before anything is written."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest

from rivet_dagster.engine.errors import (
    BusyError,
    EnvironmentFault,
    RefusalError,
    RivetError,
    TransientError,
    UsageError,
)
from tests.live.postgres.rig import EXPORT, Rig, run_cli
from tests.services.postgres import TestDatabase

THINGS = (
    "CREATE TABLE things (id int PRIMARY KEY, word text, ratio float8, amount numeric(12,2), code int)",
    "INSERT INTO things SELECT g, 'w' || g, g / 3.0, g, g FROM generate_series(1, 300) g",
    "ANALYZE things",
)


@dataclass(frozen=True)
class Bad:
    """What is wrong (``setup``, ``export``) and what is said about it."""

    id: str
    export: dict[str, Any]
    code: str
    kind: type[RivetError]
    says: tuple[str, ...]
    setup: tuple[str, ...] = ()


def chunked(**options: Any) -> dict[str, Any]:
    return {"table": EXPORT, "mode": "chunked", **options}


INVALID = "RIVET_CONFIG_INVALID"
UNSUITABLE = "RIVET_CONFIG_CHUNK_KEY_UNSUITABLE"
NO_TABLE = "RIVET_SOURCE_TABLE_NOT_FOUND"

CASES = [
    Bad("table", {"table": "thngs"}, NO_TABLE, RefusalError, ('"thngs"', 'Did you mean "public"."things"')),
    Bad("table_case", {"table": "Things"}, NO_TABLE, RefusalError, ('"public"."things"',)),
    Bad("schema", {"table": "nope.things"}, NO_TABLE, RefusalError, ('"nope"."things"', '"public"."things"')),
    Bad(
        "chunk_column", chunked(chunk_column="cod"), "RIVET_CONFIG_COLUMN_UNKNOWN", UsageError,
        ("chunk_column", "did you mean 'code'"),
    ),
    Bad(
        "chunk_by_key", chunked(chunk_by_key="zzz"), "RIVET_CONFIG_COLUMN_UNKNOWN", UsageError,
        ("chunk_by_key", "name one of: id, word"),
    ),
    Bad(
        "cursor_case", {"table": EXPORT, "mode": "incremental", "cursor_column": "ID"},
        "RIVET_CONFIG_CURSOR_COLUMN_CASE", UsageError, ("cursor_column", "did you mean 'id'"),
    ),
    Bad("float_range", chunked(chunk_column="ratio"), UNSUITABLE, UsageError, ("is double precision",)),
    Bad("numeric_range", chunked(chunk_column="amount"), UNSUITABLE, UsageError, ("numeric(12,2)",)),
    Bad("text_range", chunked(chunk_column="word"), UNSUITABLE, UsageError, ("'word' is text",)),
    Bad(
        "no_key", chunked(), UNSUITABLE, UsageError, ("mode: full",),
        ("ALTER TABLE things DROP CONSTRAINT things_pkey",),
    ),
    Bad(
        "nullable_key", chunked(chunk_by_key="code"), UNSUITABLE, UsageError, ("'code'", "chunk_by_key: id"),
        ("CREATE UNIQUE INDEX ON things (code)",),
    ),
    Bad(
        "duplicate_key", chunked(chunk_by_key="code"), UNSUITABLE, UsageError, ("'code'",),
        ("ALTER TABLE things ALTER code SET NOT NULL", "CREATE INDEX ON things (code)"),
    ),
    Bad(
        "partial_unique", chunked(chunk_by_key="code"), UNSUITABLE, UsageError, ("'code'",),
        ("ALTER TABLE things ALTER code SET NOT NULL", "CREATE UNIQUE INDEX ON things (code) WHERE code > 0"),
    ),
    Bad(
        "composite_unique", chunked(chunk_by_key="code"), UNSUITABLE, UsageError, ("'code'",),
        ("ALTER TABLE things ALTER code SET NOT NULL", "CREATE UNIQUE INDEX ON things (code, word)"),
    ),
    Bad(
        "expression_unique", chunked(chunk_by_key="code"), UNSUITABLE, UsageError, ("'code'",),
        ("ALTER TABLE things ALTER code SET NOT NULL", "CREATE UNIQUE INDEX ON things (abs(code))"),
    ),
    Bad(
        "sparse", chunked(chunk_column="code", chunk_size=100), "RIVET_PLAN_CHUNK_KEY_SPARSE", RefusalError,
        ("'code'", "20001 ranges", "chunk_by_key"), ("UPDATE things SET code = 2000000 WHERE id = 300",),
    ),
    Bad(
        "far_too_many", chunked(chunk_column="code", chunk_size=1), "RIVET_PLAN_CHUNK_KEY_SPARSE",
        RefusalError, ("'code'", "18446744073709551616 ranges"),
        ("ALTER TABLE things ALTER code TYPE bigint",
         f"UPDATE things SET code = CASE id WHEN 1 THEN {-2**63} WHEN 2 THEN {2**63 - 1} END"),
    ),
    Bad("no_columns", {"table": "bare"}, INVALID, UsageError, ("no columns",), ("CREATE TABLE bare ()",)),
    Bad("an_index", {"table": "things_pkey"}, INVALID, UsageError, ("is an index",)),
    Bad("syntax", {"query": "SELEC 1"}, INVALID, UsageError, ("42601", "SELEC")),
    Bad("query_column", {"query": "SELECT idd FROM things"}, INVALID, UsageError, ("42703", "idd")),
    Bad("query_table", {"query": "SELECT 1 FROM thngs"}, NO_TABLE, RefusalError, ("thngs",)),
    Bad("query_cast", {"query": "SELECT 1 + '{}'::json AS a"}, INVALID, UsageError, ("42883",)),
    Bad("two_statements", {"query": "SELECT 1 AS a; SELECT 2 AS b"}, INVALID, UsageError, ()),
    Bad(
        "query_writes", {"query": "DELETE FROM things RETURNING id"}, INVALID, UsageError,
        ("one SELECT that only reads",),
    ),
    Bad(
        "query_names", {"query": "SELECT id, word AS id FROM things"}, INVALID, UsageError,
        ("several columns named id",),
    ),
    Bad(
        "endless_cursor", {"table": EXPORT, "mode": "incremental", "cursor_column": "ratio"},
        "RIVET_SOURCE_VALUE_UNREPRESENTABLE", RefusalError, ("'ratio' holds NaN",),
        ("UPDATE things SET ratio = 'NaN' WHERE id = 7",),
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_refused_before_anything_is_written(
    rig: Rig, case: Bad, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.db.execute(*THINGS, *case.setup)
    rig.configure(case.export)
    error = rig.failure()
    assert (error.code, error.retryable) == (case.code, False)
    assert isinstance(error, case.kind)
    for text in case.says:
        assert text in error.message
    assert run_cli(monkeypatch, "run", "-c", str(rig.config)) == error.exit_code
    said = capsys.readouterr()
    assert f"[{case.code}]" in said.err
    assert EXPORT in said.err
    assert not (rig.root / "out").exists()


@pytest.fixture
def reader(rig: Rig) -> Iterator[str]:
    """A login role without any right; the rig connects as it."""
    role = f"r_{rig.db.name}"
    rig.db.execute(*THINGS, f"CREATE ROLE {role} LOGIN PASSWORD 'reader'")
    rig.url = f"postgresql://{role}:reader@127.0.0.1:{rig.db.server.port}/{rig.db.name}"
    yield role
    rig.close()
    rig.db.execute(f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


DENIED = ("RIVET_SOURCE_PERMISSION_DENIED", "42501", EnvironmentFault)


def judged(error: RivetError) -> tuple[str, str | None, type[RivetError]]:
    assert not error.retryable
    return error.code, error.sqlstate, type(error)


def test_a_table_that_may_not_be_read(rig: Rig, reader: str) -> None:
    error = rig.export().failure()
    assert judged(error) == DENIED
    assert '"public"."things"' in error.message
    rig.db.execute(f"GRANT SELECT ON things TO {reader}")
    assert rig.run().rows == 300


def test_one_column_that_may_not_be_read(rig: Rig, reader: str) -> None:
    rig.db.execute(f"GRANT SELECT (id, word, ratio, code) ON things TO {reader}")
    error = rig.export().failure()
    assert judged(error) == DENIED
    assert "columns amount of" in error.message
    rig.configure({"query": "SELECT id, word FROM things"})
    assert rig.run().rows == 300


def test_a_schema_that_may_not_be_used(rig: Rig, reader: str) -> None:
    rig.db.execute("CREATE SCHEMA closed", "ALTER TABLE things SET SCHEMA closed")
    rig.db.execute(f"GRANT SELECT ON closed.things TO {reader}")
    error = rig.export("closed.things").failure()
    assert judged(error) == DENIED
    rig.configure({"query": "SELECT 1 AS a FROM closed.things"})
    assert judged(rig.failure()) == DENIED


def test_a_right_that_is_taken_away_while_the_run_goes_on(rig: Rig, reader: str) -> None:
    rig.db.execute(f"GRANT SELECT ON things TO {reader}")
    rig.export()
    error = rig.failure(between=lambda: rig.db.execute(f"REVOKE SELECT ON things FROM {reader}"))
    assert judged(error) == DENIED


HIDDEN = ("RIVET_SOURCE_ROW_SECURITY", RefusalError)
POLICY = "CREATE POLICY mine ON things USING (id < 10)"


def test_rows_that_a_policy_hides(rig: Rig, reader: str) -> None:
    rig.db.execute(
        f"GRANT SELECT ON things TO {reader}", "ALTER TABLE things ENABLE ROW LEVEL SECURITY", POLICY
    )
    view = f"CREATE VIEW seen AS SELECT * FROM things; ALTER VIEW seen OWNER TO {reader}"
    rig.db.execute(view, "CREATE VIEW outer_seen WITH (security_invoker) AS SELECT * FROM seen")
    rig.db.execute(f"GRANT SELECT ON outer_seen TO {reader}")
    asked = [
        {"table": "things"},
        {"table": "seen"},
        {"table": "outer_seen"},
        {"query": "SELECT id FROM seen"},
    ]
    for export in (*asked, {"query": "SELECT 1 AS a WHERE EXISTS (SELECT FROM things)"}):
        error = rig.configure(export).failure()
        assert (error.code, type(error), error.exit_code) == (*HIDDEN, 5)
    assert not (rig.root / "out").exists()
    rig.db.execute(f"ALTER ROLE {reader} BYPASSRLS")
    for export in asked:
        assert rig.configure(export).run().rows == 300


def test_a_policy_that_comes_while_the_run_goes_on(rig: Rig, reader: str) -> None:
    """The pinned ``row_security = off`` turns what would be missing rows into an error."""
    rig.db.execute(f"GRANT SELECT ON things TO {reader}")
    secure = ("ALTER TABLE things ENABLE ROW LEVEL SECURITY", POLICY)
    for export in ({"table": "things"}, chunked(chunk_size=100)):
        rig.db.execute(
            "ALTER TABLE things DISABLE ROW LEVEL SECURITY", "DROP POLICY IF EXISTS mine ON things"
        )
        error = rig.configure(export).failure(between=lambda: rig.db.execute(*secure))
        assert (error.sqlstate, error.retryable) == ("42501", False)
        assert not rig.parts()


def test_a_table_that_one_policy_shows_whole_is_no_child_of_it(rig: Rig, reader: str) -> None:
    """A partition's own policy hides nothing when the rows are read through the parent."""
    rig.db.execute(
        "CREATE TABLE p (id int, word text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200)",
        "INSERT INTO p SELECT g, 'x' FROM generate_series(0, 199) g",
        "ALTER TABLE p1 ENABLE ROW LEVEL SECURITY",
        f"GRANT SELECT ON p TO {reader}",
    )
    assert rig.export("p").run().rows == 200
    rig.db.execute(f"GRANT SELECT ON p1, p2 TO {reader}")
    assert rig.run().rows == 200


def test_what_connecting_can_find(rig: Rig, db: TestDatabase) -> None:
    server = db.server
    here = f"127.0.0.1:{server.port}"
    password = quote(server.password, safe="")
    cases = [
        (f"postgresql://postgres:wr%2Fong@{here}/{db.name}", "RIVET_SOURCE_AUTH_FAILED", EnvironmentFault),
        (f"postgresql://nobody:{password}@{here}/{db.name}", "RIVET_SOURCE_AUTH_FAILED", EnvironmentFault),
        (
            f"postgresql://postgres:{password}@{here}/nope",
            "RIVET_SOURCE_DATABASE_NOT_FOUND",
            EnvironmentFault,
        ),
    ]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        away = f"postgresql://postgres:{password}@127.0.0.1:{unused.getsockname()[1]}/{db.name}"
        for url, code, kind in [*cases, (away, "RIVET_SOURCE_UNAVAILABLE", TransientError)]:
            rig.url = url
            error = rig.export().failure()
            assert (error.code, type(error)) == (code, kind)
            assert server.password not in repr(error) + str(error)
            assert "wr/ong" not in repr(error) + str(error)
    assert not (rig.root / "out").exists()


def test_a_second_run_of_the_same_export_does_not_start(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.db.execute(*THINGS)
    rig.export()
    with rig.planned() as (session, _):
        with pytest.raises(BusyError) as caught, rig.planned():
            pass
        assert caught.value.export == EXPORT
        assert caught.value.code in {"RIVET_STATE_RUN_IN_PROGRESS", "RIVET_STATE_LOCK_TIMEOUT"}
        assert run_cli(monkeypatch, "run", "-c", str(rig.config), "--lock-wait", "0") == 2
        assert EXPORT in capsys.readouterr().err
        list(session.execute())
        assert session.finalize().rows == 300
    assert rig.run().rows == 300


def test_an_export_that_the_config_does_not_have(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.export()
    assert run_cli(monkeypatch, "run", "-c", str(rig.config), "-e", "thing") == 1
    assert "[RIVET_CLI_EXPORT_UNKNOWN]" in capsys.readouterr().err
