"""``state``, ``metrics``, ``journal``: what the engine remembers, for people and programs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rivet_dagster.config import load_config
from rivet_dagster.engine.run.engine import Engine
from tests.live.cli.conftest import Shell

REST = 'format: parquet, destination: {type: local, path: "./out/{export}"}'
RANGES = "mode: chunked, chunk_column: id, chunk_size: 100, chunk_checkpoint: true"
EXPORTS = (
    f"  - {{name: things, table: things, {RANGES}, {REST}}}\n"
    f"  - {{name: inc, table: things, mode: incremental, cursor_column: id, {REST}}}\n"
)


@pytest.fixture
def shop(sh: Shell) -> Shell:
    sh.db.execute(
        "CREATE TABLE things AS SELECT g AS id FROM generate_series(1, 350) g",
        "ALTER TABLE things ADD PRIMARY KEY (id)",
    )
    sh.write(EXPORTS)
    return sh


def leave_open(sh: Shell, done: int) -> str:
    """A run of ``things`` that ended after some units; its id."""
    with Engine(load_config(sh.config), state_url="") as engine:
        with engine.session("things", holder="t") as session:
            run_id = session.plan().run_id
            events = session.execute()
            for _ in range(done):
                next(events)
        return run_id


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_show_tells_cursor_last_and_open_run(shop: Shell) -> None:
    nothing = shop("state", "show", "-e", "things", "--json").json
    assert (nothing["last_run"], nothing["open_run"], nothing["cursor"]) == (None, None, None)
    shop.ok("run")
    run_id = leave_open(shop, 2)
    things, inc = lines(shop.ok("state", "show", "--json"))
    done = things["open_units"]["completed"]  # a unit may be committed while another one is told
    assert (things["open_run"]["run_id"], things["open_units"]["total"], done >= 2) == (run_id, 4, True)
    assert things["last_run"]["status"] == "completed"
    assert (inc["cursor"]["column"], inc["cursor"]["value"], inc["committed"]) == ("id", "350", "350")
    text = shop.ok("state", "show")
    assert f"  open run: {run_id}, {done} of 4 units done" in text
    assert "  cursor: id = 350" in text


def test_a_holder_is_named(shop: Shell) -> None:
    with Engine(load_config(shop.config), state_url="") as engine, engine.session("things", holder="me"):
        found = shop("state", "show", "-e", "things", "--json").json["holder"]
        assert found["holder"] == "me"
        assert "held by: me, process" in shop.ok("state", "show", "-e", "things")
        busy = shop("state", "give-up", "-e", "things")
    assert (busy.code, "RIVET_STATE_RUN_IN_PROGRESS" in busy.err) == (2, True)


def test_runs_units_and_files(shop: Shell) -> None:
    shop.ok("run")
    run_id = leave_open(shop, 1)
    begun, done = shop("state", "runs", "-e", "things", "--json").json
    assert (begun["run_id"], begun["status"], done["status"]) == (run_id, "in_progress", "completed")
    assert shop.ok("state", "runs", "--running").split()[:2] == [run_id, "in_progress"]
    units = shop("state", "units", "-e", "things", "--json").json
    assert (units["run_id"], len(units["items"])) == (run_id, 4)
    assert next(u["rows"] for u in units["items"] if u["status"] == "completed") == 99
    files = shop("state", "files", "--run-id", done["run_id"], "--json").json["items"]
    assert sum(f["rows"] for f in files) == 350
    assert {f["name"] for f in files} <= {p.name for p in (shop.root / "out" / "things").iterdir()}
    first = shop.ok("state", "units", "-e", "things").splitlines()[1]  # columns are as wide as others need
    assert " ".join(first.split()) == "0 completed 1 99 rows 1 .. 99"
    unknown = shop("state", "units", "--run-id", "nope")
    assert (unknown.code, "RIVET_CLI_RUN_UNKNOWN" in unknown.err) == (1, True)


def test_reset_reads_everything_again(shop: Shell) -> None:
    shop.ok("run", "-e", "inc")
    assert shop.ok("run", "-e", "inc").startswith("inc: skipped")
    assert "reads everything" in shop.ok("state", "reset", "-e", "inc")
    assert "there was no cursor" in shop.ok("state", "reset", "-e", "inc")
    assert shop.ok("run", "-e", "inc").startswith("inc: 350 rows")
    assert shop("state", "reset").code == 1, "no name is no export"


def test_give_up_ends_the_open_run(shop: Shell) -> None:
    run_id = leave_open(shop, 1)
    with Engine(load_config(shop.config), state_url="") as engine, engine.session("things", holder="t") as s:
        s.plan()
    assert [e["event"] for e in lines(shop.ok("journal", "-e", "things", "--json"))][-1] == "RunResumed"
    assert f"run {run_id} is given up" in shop.ok("state", "give-up", "-e", "things")
    assert "no run is open" in shop.ok("state", "give-up", "-e", "things")
    assert "goes on" not in shop("run", "-e", "things").err


def test_metrics_and_journal(shop: Shell) -> None:
    shop.ok("run")
    shop.write(EXPORTS.replace("name: inc", "name: inc, quality: {row_count_min: 1000}"))
    shop.db.execute("INSERT INTO things SELECT g FROM generate_series(351, 360) g")
    assert shop("run", "-e", "inc").code == 3
    failed, good = lines(shop.ok("metrics", "-e", "inc", "--json"))
    seen = [e["event"] for e in lines(shop.ok("journal", "-e", "inc", "-l", "1", "--json"))]
    assert seen == ["PlanResolved", "RunFailed"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "RIVET_QUALITY_FAILED")
    assert (good["status"], good["total_rows"], good["error"]) == ("completed", 350, None)
    text = shop.ok("metrics", "-l", "1")
    assert "things  completed  350 rows" in text
    assert "RIVET_QUALITY_FAILED" in text
    events = lines(shop.ok("journal", "-e", "things", "--json"))
    assert [e["event"] for e in events] == ["PlanResolved", "RunCompleted"]
    assert events[0]["detail"] == {"strategy": "chunked", "units": 4, "reason": "4 ranges of id"}
    assert events[0]["export_name"] == "things"
    only = shop.ok("journal", "--run-id", events[0]["run_id"])
    assert only.count(": completed, begun ") == 1
    assert "RunCompleted  status success, rows 350" in only


def test_schema_and_errors(shop: Shell) -> None:
    assert json.loads(shop.ok("schema"))["title"] == "rivet.yaml"
    codes = {row["code"]: row["kind"] for row in json.loads(shop.ok("errors", "--json"))}
    assert codes["RIVET_PLAN_TAMPERED"] == "refusal"
