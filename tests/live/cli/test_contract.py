"""What the commands print is what the contract's checker accepts; no run is needed to look a shape up."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from rivet_dagster.config import load_config
from rivet_dagster.engine.run.engine import Engine
from tests.golden.checker import faults
from tests.live.cli.conftest import Done, Shell

REST = 'format: parquet, destination: {type: local, path: "./out/{export}"}'
EXPORTS = f"""
  - {{name: things, table: things, mode: chunked, chunk_column: id, chunk_size: 100, {REST}}}
  - {{name: newer, table: things, mode: incremental, cursor_column: id, {REST}}}
"""
GONE = f"  - {{name: gone, table: no_such, {REST}}}\n"


@pytest.fixture
def shop(sh: Shell) -> Shell:
    sh.db.execute(
        "CREATE TABLE things AS SELECT g AS id, 1 AS n FROM generate_series(1, 350) g",
        "ALTER TABLE things ADD PRIMARY KEY (id)",
        "ANALYZE things",
    )
    sh.write(EXPORTS)
    return sh


def lines(done: Done | str) -> list[dict[str, Any]]:
    text = done if isinstance(done, str) else done.out
    return [json.loads(line) for line in text.splitlines()]


def holds(kind: str, document: Any) -> dict[str, Any]:
    assert faults(kind, document) == []
    return dict(document)


def test_runs_their_sum_and_their_failures(shop: Shell) -> None:
    shop.write(EXPORTS + GONE)
    for newer in ("success", "skipped"):
        done = shop("run", "--json", "--json-errors", "--no-notify", "--summary-output", "sum.json")
        statuses = {entry["export_name"]: holds("run_entry", entry)["status"] for entry in lines(done)}
        assert statuses == {"things": "success", "newer": newer, "gone": "failed"}
        assert holds("json_errors", done.failure)["exit_class"] == done.code == 5
        told = holds("aggregate", json.loads((shop.root / "sum.json").read_text()))
        assert told["per_export"] == lines(done)
    with Engine(load_config(shop.config), state_url="") as engine:
        for kept in engine.state.aggregates():
            at = {key: kept[key].isoformat() for key in ("started_at", "finished_at")}
            holds("stored_aggregate", {**kept, **at})
    done = shop("metrics", "-e", "things", "-e", "newer", "--json")
    assert [holds("metrics", row)["status"] for row in lines(done)] == ["completed"] * 3


def test_what_is_asked_of_a_run(shop: Shell) -> None:
    shop.ok("run")
    (report,) = lines(shop("reconcile", "-e", "things", "--json", "--lock-wait", "5"))
    assert holds("reconcile", report)["summary"]["matches"] == 4
    shop.db.execute("UPDATE things SET n = 7 WHERE id = 150")
    done = shop("reconcile", "-e", "things", "--json", "--json-errors")
    assert holds("reconcile", done.json)["summary"]["mismatches"] == 1
    assert holds("json_errors", done.failure)["code"] == "RIVET_RECONCILE_MISMATCH"
    outputs = ("--json", "--no-notify", "--summary-output", "sum.json")
    done = shop("repair", "-e", "things", "--execute", *outputs)
    planned, entry = lines(done)
    assert [action["chunk_index"] for action in holds("repair", planned)["actions"]] == [1]
    assert holds("run_entry", entry)["rows"] == 350
    holds("aggregate", json.loads((shop.root / "sum.json").read_text()))


def test_plans(shop: Shell) -> None:
    shop.write(EXPORTS + GONE)
    seen = [holds("preview", one) for one in lines(shop("plan", "--json"))]
    assert [one["verdict"] for one in seen] == ["review", "ok"]
    found = holds("check", shop("check", "--json").json)
    assert [one["verdict"] for one in found["exports"]] == ["review", "ok", "refused"]
    shop.ok("plan", "-e", "things", "-o", "plan.json")
    holds("plan", json.loads((shop.root / "plan.json").read_text()))
    first, again = (lines(shop("apply", "plan.json", "--json", "--no-notify"))[0] for _ in range(2))
    assert holds("run_entry", again)["run_id"] == holds("run_entry", first)["run_id"]
    assert (again["rows"], again["mode"]) == (350, "chunked")
    holds("doctor", shop("doctor", "--json").json)


def test_an_expired_plan_is_in_the_sum_too(shop: Shell) -> None:
    shop.ok("plan", "-e", "things", "-o", "plan.json")
    for limit in ("AGED", "EXPIRED"):
        shop.monkeypatch.setattr(f"rivet_dagster.engine.run.sealed.{limit}", timedelta(0))
    done = shop("apply", "plan.json", "--summary-output", "sum.json", "--json-errors")
    assert holds("json_errors", done.failure)["code"] == "RIVET_PLAN_STALE"
    (entry,) = holds("aggregate", json.loads((shop.root / "sum.json").read_text()))["per_export"]
    assert (entry["error"]["code"], entry["run_id"], entry["mode"]) == ("RIVET_PLAN_STALE", "", "chunked")


@pytest.mark.parametrize(
    "verb", [["run"], ["reconcile"], ["repair", "--execute"], ["validate"], ["apply", "plan.json"]]
)
def test_every_verb_waits_for_the_lease(shop: Shell, verb: list[str]) -> None:
    shop.ok("run", "-e", "things")
    shop.ok("plan", "-e", "things", "-o", "plan.json")
    only = [] if verb[0] == "apply" else ["-e", "things"]
    with Engine(load_config(shop.config), state_url="") as engine, engine.session("things", holder="other"):
        for wait, code in (("0", "RIVET_STATE_RUN_IN_PROGRESS"), ("1", "RIVET_STATE_LOCK_TIMEOUT")):
            done = shop(*verb, *only, "--lock-wait", wait, "--json-errors")
            assert (done.code, holds("json_errors", done.failure)["code"]) == (2, code)


@pytest.mark.parametrize(
    ("text", "verb"), [("source: [", "run"), ("exports: []\n", "reconcile"), ("{}", "repair")]
)
def test_a_config_that_is_wrong_is_the_same_object(shop: Shell, text: str, verb: str) -> None:
    shop.config.write_text(text)
    done = shop(verb, "--json-errors")
    assert holds("json_errors", done.failure)["failures"] == []
    assert done.code == 1
