"""What programs read: exit classes, ``--json-errors``, ``--json`` and ``--summary-output``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rivet_dagster.config import load_config
from rivet_dagster.engine.run.engine import Engine
from tests.live.cli.conftest import Shell

REST = 'format: parquet, destination: {type: local, path: "./out/{export}"}'
CHUNKED = "mode: chunked, chunk_column: id, chunk_size: 100"
GOOD = f"  - {{name: good, table: things, {CHUNKED}, {REST}}}\n"
GONE = f"  - {{name: gone, table: no_such, {REST}}}\n"
INCREMENTAL = f"  - {{name: inc, table: things, mode: incremental, cursor_column: id, {REST}}}\n"
ENTRY = {
    "export_name", "status", "run_id", "rows", "files", "bytes", "bytes_read", "duration_ms", "mode",
    "error_message", "error", "stop_reason", "tables",
}  # fmt: skip
ERROR = {"code", "kind", "class", "exit_code", "retryable", "action", "message"}


@pytest.fixture
def shop(sh: Shell) -> Shell:
    sh.db.execute(
        "CREATE TABLE things AS SELECT g AS id, 1 AS n FROM generate_series(1, 350) g",
        "ALTER TABLE things ADD PRIMARY KEY (id)",
    )
    sh.write(GOOD)
    return sh


def summary(shop: Shell) -> dict[str, Any]:
    return dict(json.loads((shop.root / "sum.json").read_text()))


def test_one_failed_export_is_the_whole_object(shop: Shell) -> None:
    shop.write(GONE + GOOD)
    done = shop("run", "--json-errors", "--summary-output", "sum.json")
    line = done.failure
    assert (done.code, line["exit_class"], line["exit_code"], line["class"]) == (5, 5, 5, "refusal")
    assert set(line) == {"error", "exit_class", "failures"} | ERROR - {"message"}
    (failure,) = line["failures"]
    assert set(failure) == {"export", "table"} | ERROR
    assert (failure["export"], failure["code"]) == ("gone", "RIVET_SOURCE_TABLE_NOT_FOUND")
    assert done.err.count("no_such") == 2, "only in the object, twice"
    found = summary(shop)
    assert (found["total_exports"], found["success_count"], found["failed_count"]) == (2, 1, 1)
    assert (found["total_rows"], found["total_files"]) == (350, 4)
    gone, good = found["per_export"]
    assert set(gone) >= ENTRY
    assert set(good) >= ENTRY
    assert (gone["status"], gone["error"], gone["rows"]) == ("failed", {**failure_error(failure)}, 0)
    assert (good["status"], good["error"], good["rows"]) == ("success", None, 350)


def failure_error(failure: dict[str, Any]) -> dict[str, Any]:
    return {key: failure[key] for key in ERROR}


def test_the_invocation_is_kept_in_the_state(shop: Shell) -> None:
    shop.ok("run", "--summary-output", "sum.json")
    with Engine(load_config(shop.config), state_url="") as engine:
        (kept,) = engine.state.aggregates(limit=5)
    assert kept["run_aggregate_id"] == summary(shop)["run_aggregate_id"]
    assert kept["per_export"][0]["rows"] == 350


def test_the_state_keeps_no_text_of_an_error(shop: Shell) -> None:
    shop.write(GONE)
    assert shop("run", "--summary-output", "sum.json").code == 5
    (told,) = summary(shop)["per_export"]
    assert "no_such" in told["error_message"]
    with Engine(load_config(shop.config), state_url="") as engine:
        ((kept,),) = (one["per_export"] for one in engine.state.aggregates())
    assert (kept["error"]["code"], kept["error"]["message"]) == ("RIVET_SOURCE_TABLE_NOT_FOUND", None)
    assert "no_such" not in str(kept)


def test_nothing_new_is_skipped_not_failed(shop: Shell) -> None:
    shop.write(INCREMENTAL)
    shop.ok("run")
    shop.ok("run", "--summary-output", "sum.json")
    found = summary(shop)
    assert (found["skipped_count"], found["per_export"][0]["status"]) == (1, "skipped")
    assert found["per_export"][0]["error"] is None


def test_a_summary_that_cannot_be_written_fails_a_run_that_succeeded(shop: Shell) -> None:
    done = shop("run", "--summary-output", "no/such/sum.json", "--json-errors")
    assert (done.code, done.failure["code"]) == (1, "RIVET_CLI_OUTPUT_UNWRITABLE")
    assert (shop.root / "out" / "good" / "_SUCCESS").exists()
    shop.write(GONE)
    assert shop("run", "--summary-output", "no/such/sum.json").code == 5


def test_every_exit_class(shop: Shell) -> None:
    assert shop("run").code == 0
    assert shop("run", "-e", "nope").code == 1
    with Engine(load_config(shop.config), state_url="") as engine, engine.session("good", holder="other"):
        busy = shop("run", "--lock-wait", "0", "--json-errors")
    assert (busy.code, busy.failure["code"], busy.failure["retryable"]) == (
        2,
        "RIVET_STATE_RUN_IN_PROGRESS",
        True,
    )
    next((shop.root / "out" / "good").glob("*.parquet")).write_bytes(b"damaged")
    assert shop("validate").code == 3
    shop.write(GOOD.replace("name: good", "name: good, on_schema_drift: fail"))
    shop.db.execute("ALTER TABLE things ADD COLUMN extra int")
    assert shop("run").code == 4
    shop.write(GONE)
    assert shop("run").code == 5
    shop.monkeypatch.setattr(Engine, "session", lambda *_, **__: 1 / 0)
    shop.write(GOOD + GONE)
    broken = shop("run", "--json-errors", "--summary-output", "sum.json")
    assert (broken.code, broken.failure["code"]) == (6, "RIVET_INTERNAL")
    assert sorted(one["export"] for one in broken.failure["failures"]) == ["gone", "good"]
    assert [one["error"]["class"] for one in summary(shop)["per_export"]] == ["internal", "internal"]
    with pytest.raises(ZeroDivisionError):
        shop("run", "--debug")


def test_ctrl_c_is_no_failure_of_an_export(shop: Shell) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    shop.monkeypatch.setattr(Engine, "session", interrupted)
    done = shop("run", "--json")
    assert (done.code, done.out) == (130, "")


def test_a_mistake_in_the_arguments_is_json_too(shop: Shell) -> None:
    for args in (["run", "--nope"], ["nope"], ["run", "-p", "novalue"], ["run", "-c"]):
        done = shop("--json-errors", *args)
        assert (done.code, done.failure["code"], done.failure["failures"]) == (1, "RIVET_CLI_USAGE", [])
    plain = shop("run", "--nope")
    assert (plain.code, "No such option" in plain.err) == (1, True)


def test_a_config_that_does_not_load_belongs_to_no_export(shop: Shell) -> None:
    shop.config.write_text("source: [")
    done = shop("run", "--json-errors")
    assert (done.code, done.failure["kind"], done.failure["failures"]) == (1, "usage", [])


def test_no_secret_in_any_output(shop: Shell) -> None:
    url = shop.db.url.replace("//", "//").rpartition("@")[2]
    shop.monkeypatch.setenv("DATABASE_URL", f"postgresql://nobody:c4nary-pw@{url}")
    seen = []
    for verb in ("run", "plan", "check", "doctor", "reconcile"):
        for flag in ("--json-errors", "--json"):
            done = shop(verb, flag)
            assert done.code == 1
            seen += [done.out, done.err]
    shop("run", "--summary-output", "sum.json")
    seen += [str(summary(shop))]
    assert "RIVET_SOURCE_AUTH_FAILED" in "".join(seen)
    assert "c4nary" not in "".join(seen)
    kept = [p for p in shop.root.rglob("*") if p.is_file() and b"c4nary" in p.read_bytes()]
    assert kept == []


def test_a_verb_imports_no_other(shop: Shell) -> None:
    code = (
        "import sys; from rivet_dagster.cli import main\n"
        "sys.argv = ['rivet-dagster', 'run']\n"
        "try: main()\nexcept SystemExit as e: assert not e.code\n"
        "cli = {m for m in sys.modules if m.startswith('rivet_dagster.cli.')}\n"
        "others = {'dagster', 'rivet_dagster.scaffold', 'rivet_dagster.engine.doctor'}\n"
        "print(sorted(cli), bool(others & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == (
        "['rivet_dagster.cli.progress', 'rivet_dagster.cli.run', 'rivet_dagster.cli.shared'] False"
    ), done.stderr
