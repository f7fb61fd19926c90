"""Values that no file can hold, and secrets that no file may hold."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, quote_plus

import pytest

from rivet_dagster.engine.errors import RefusalError, RivetError
from rivet_dagster.engine.run.events import UnitCommitted, UnitFailed
from tests.live.postgres.rig import EXPORT, Rig

UNREPRESENTABLE: Final = "RIVET_SOURCE_VALUE_UNREPRESENTABLE"
VALUES: Final = [
    ("numeric(12,2)", "NaN", UNREPRESENTABLE),
    ("date", "infinity", UNREPRESENTABLE),
    ("date", "-infinity", UNREPRESENTABLE),
    ("timestamp", "infinity", UNREPRESENTABLE),
    ("timestamptz", "-infinity", UNREPRESENTABLE),
    ("time", "24:00", UNREPRESENTABLE),
    ("int[]", "{{1,2},{3,4}}", UNREPRESENTABLE),
    ("date[]", "{infinity}", UNREPRESENTABLE),
]
CHUNKS: Final[dict[str, Any]] = {
    "table": EXPORT, "mode": "chunked", "chunk_column": "id", "chunk_size": 100, "chunk_checkpoint": True,
}  # fmt: skip


def refused(rig: Rig, code: str, column: str = "odd value") -> RivetError:
    error = rig.failure()
    assert isinstance(error, RefusalError)
    assert (error.code, error.exit_code) == (code, 5)
    assert f"'{column}'" in error.message
    return error


@pytest.mark.parametrize(("kind", "value", "code"), VALUES)
def test_a_value_fails_its_unit_and_no_other(rig: Rig, kind: str, value: str, code: str) -> None:
    rig.db.execute(
        f'CREATE TABLE things (id int PRIMARY KEY, "odd value" {kind})',
        "INSERT INTO things (id) SELECT generate_series(1, 500)",
        f"UPDATE things SET \"odd value\" = '{value}' WHERE id = 250",
    )
    rig.configure(CHUNKS)
    error = refused(rig, code)
    failed = [e for e in rig.events if isinstance(e, UnitFailed)]
    done = [e for e in rig.events if isinstance(e, UnitCommitted)]
    assert [(e.unit.index, e.attempt, e.final) for e in failed] == [(2, 1, True)]
    assert error.unit == 2
    assert sorted(e.unit.index for e in done) == [0, 1, 3, 4, 5]
    assert "row " in error.message
    assert "_SUCCESS" not in rig.files()
    rig.db.execute('UPDATE things SET "odd value" = NULL WHERE id = 250')
    assert rig.run().rows == 500  # the failed unit alone is read again
    assert sum(isinstance(e, UnitCommitted) and not e.carried for e in rig.events) == 1
    rig.configure({"table": EXPORT}).run(fresh=True)


def test_a_value_fails_a_whole_table(rig: Rig) -> None:
    rig.db.execute('CREATE TABLE things (id int, "odd value" date)')
    rig.db.execute("INSERT INTO things SELECT g, '2026-01-01' FROM generate_series(1, 300) g")
    rig.db.execute("INSERT INTO things VALUES (301, 'infinity')")
    rig.export()
    refused(rig, UNREPRESENTABLE)
    assert rig.files() == []


def test_a_value_larger_than_allowed(rig: Rig) -> None:
    rig.db.execute(
        'CREATE TABLE things (id int PRIMARY KEY, "odd value" text)',
        "INSERT INTO things SELECT g, 'x' FROM generate_series(1, 300) g",
        "UPDATE things SET \"odd value\" = repeat('x', 2000000) WHERE id = 150",
    )
    rig.tuning = {"profile": "fast", "max_value_mb": 1}
    rig.configure(CHUNKS)
    refused(rig, "RIVET_VALUE_TOO_LARGE")
    assert sum(isinstance(e, UnitCommitted) for e in rig.events) == 3
    rig.tuning = {"profile": "fast", "max_value_mb": 2}
    assert rig.configure(CHUNKS).run().rows == 300


def test_infinity_and_nan_where_the_type_has_them(rig: Rig) -> None:
    rig.db.execute("CREATE TABLE things (f float8, n numeric)")
    rig.db.execute("INSERT INTO things VALUES ('NaN', 'NaN'), ('-Infinity', 'Infinity'), (NULL, NULL)")
    assert rig.export().run().rows == 3
    assert sorted(map(str, rig.read("f::varchar, n::varchar"))) == [
        "('-inf', 'Infinity')",
        "('nan', 'NaN')",
        "(None, None)",
    ]


CANARY: Final = "c4n4ry/p@ss:w?rd#%zz"


def needles() -> list[bytes]:
    whole = [CANARY, quote(CANARY), quote(CANARY, safe=""), quote_plus(CANARY), json.dumps(CANARY)[1:-1]]
    return [text.encode() for text in {*whole, "c4n4ry"}]


def assert_clean(what: str, data: bytes) -> None:
    assert not [n for n in needles() if n in data], what


def assert_folder_clean(root: Path) -> None:
    files = [p for p in root.rglob("*") if p.is_file()]
    assert any(p.suffix == ".db" for p in files)
    for path in files:
        assert_clean(str(path), path.read_bytes())
        assert_clean("a name", str(path).encode())


def said(error: BaseException) -> bytes:
    """What a logger prints of an exception and of those it came from. psycopg keeps connection parameters
    in attributes of its own errors, which no log shows."""
    text = "".join(traceback.format_exception(error)) + repr(vars(error))
    seen: BaseException | None = error
    while seen is not None:
        text += repr(seen) + str(seen) + repr(seen.args)
        seen = seen.__cause__ or seen.__context__
    return text.encode()


def test_the_password_is_nowhere(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    role = f"r_{rig.db.name}"
    rig.db.execute(
        f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{CANARY}'",
        "CREATE TABLE things (id int PRIMARY KEY, word text)",
        "INSERT INTO things SELECT g, 'w' FROM generate_series(1, 300) g",
    )
    here = f"127.0.0.1:{rig.db.server.port}/{rig.db.name}"
    good = f"postgresql://{role}:{quote(CANARY, safe='')}@{here}"
    bad = f"postgresql://{role}:{quote(CANARY, safe='')}x@{here}"
    source = {"url_env": "RIVET_TEST_URL"}
    try:
        monkeypatch.setenv("RIVET_TEST_URL", good)
        for export in (CHUNKS, {"table": EXPORT, "mode": "incremental", "cursor_column": "id"}):
            rig.configure(export, source=source).run()
        errors = [rig.configure({"table": "nope"}, source=source).failure()]
        rig.configure({"query": "SELECT id, 1 / (id - 7) AS x FROM things"}, source=source)
        errors.append(rig.failure())
        monkeypatch.setenv("RIVET_TEST_URL", bad)
        errors.append(rig.configure({"table": EXPORT}, source=source).failure())
        assert errors[-1].code == "RIVET_SOURCE_AUTH_FAILED"
        for error in errors:
            assert_clean(error.code, said(error))
        assert_clean(
            "reprs", f"{rig.engine.config!r}{vars(rig.engine)!r}{rig.engine.config.source!r}".encode()
        )
        rig.close()
        assert_cli_clean(rig)
        assert_folder_clean(rig.root)
    finally:
        rig.close()
        monkeypatch.undo()
        rig.db.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def assert_cli_clean(rig: Rig) -> None:
    """What ``rivet-dagster`` says as a process when the password is wrong."""
    for extra in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "rivet_dagster.cli", "run", "-c", str(rig.config), *extra],
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert b"[RIVET_SOURCE_AUTH_FAILED]" in done.stderr
        assert_clean("stdout", done.stdout)
        assert_clean("stderr", done.stderr)
