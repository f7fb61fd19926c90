"""The command line over the engine: what it prints and how it exits."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.live.postgres.rig import Rig, run_cli

RANGE = {"mode": "chunked", "chunk_column": "id", "chunk_size": 100}


@pytest.fixture
def shop(rig: Rig) -> Rig:
    rig.db.execute(
        "CREATE TABLE things AS SELECT g AS id, 'n' || g AS note, g * 10 AS amount"
        " FROM generate_series(1, 350) g",
        "ALTER TABLE things ADD PRIMARY KEY (id)",
    )
    rig.configure({"table": "things", **RANGE}, {"name": "gone", "table": "no_such", "mode": "full"})
    rig.close()
    return rig


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(shop: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    def run(verb: str, *args: str) -> tuple[int, str, str]:
        code = run_cli(monkeypatch, verb, "-c", str(shop.config), *args)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_run_prints_one_object_an_export_and_exits_with_the_worst(call: Call) -> None:
    code, out, err = call("run", "--json")
    good, bad = [json.loads(line) for line in out.splitlines()]
    assert (good["status"], good["rows"], good["mode"]) == ("success", 350, "chunked")
    assert (bad["status"], bad["error"]["code"]) == ("failed", "RIVET_SOURCE_TABLE_NOT_FOUND")
    assert code == bad["error"]["exit_code"] == 5
    assert "no_such" in err


def test_plan_writes_nothing(call: Call, shop: Rig) -> None:
    code, out, _ = call("plan", "-e", "things")
    assert code == 0
    assert "things: chunked, 4 units" in out
    assert "amount  integer -> int32 (exact)" in out
    assert not shop.folder().exists()


def test_validate_tells_a_damaged_part(call: Call, shop: Rig) -> None:
    assert call("run", "-e", "things")[0] == 0
    assert call("validate", "-e", "things")[:2] == (0, "things: pass, 4 parts verified\n")
    part = shop.parts()[0]
    part.write_bytes(part.read_bytes()[:-8] + b"12345678")
    code, out, _ = call("validate", "-e", "things", "--json")
    assert code == 3
    assert json.loads(out)["verification"]["passed"] is False


def test_reconcile_and_repair(call: Call, shop: Rig) -> None:
    assert call("run", "-e", "things")[0] == 0
    assert call("reconcile", "-e", "things")[:2] == (0, "things: match, 4 of 4 partitions match\n")
    shop.db.execute("UPDATE things SET amount = 310 - amount WHERE id IN (15, 16)")
    assert call("reconcile", "-e", "things")[0] == 0
    assert call("reconcile", "-e", "things", "--depth", "rows")[0] == 3
    assert call("repair", "-e", "things", "--depth", "rows", "--execute")[0] == 0
    shop.db.execute("UPDATE things SET amount = 7 WHERE id = 150")
    assert call("reconcile", "-e", "things")[0] == 3
    before = {p.name for p in shop.parts()}
    code, out, _ = call("repair", "-e", "things")
    assert code == 0
    assert [a["chunk_index"] for a in json.loads(out)["actions"]] == [1]
    assert {p.name for p in shop.parts()} == before
    assert call("repair", "-e", "things", "--execute")[0] == 0
    assert len({p.name for p in shop.parts()} & before) == 3
    assert call("reconcile", "-e", "things")[0] == 0
    assert shop.read("count(*), sum(amount)") == [(350, sum(range(10, 3510, 10)) - 1500 + 7)]


def test_repair_reads_the_window_of_a_cursor_again(call: Call, shop: Rig) -> None:
    """The first one is a pass from the start, not the window after it, which holds nothing that differs."""
    shop.configure({"table": "things", "mode": "incremental", "cursor_column": "id"})
    shop.close()
    assert call("run", "-e", "things")[0] == 0
    shop.db.execute(
        "UPDATE things SET amount = 7 WHERE id = 150", "INSERT INTO things VALUES (351, 'new', 0)"
    )
    assert call("reconcile", "-e", "things")[0] == 3
    assert call("repair", "-e", "things", "--execute")[0] == 0
    assert call("reconcile", "-e", "things")[0] == 0
    assert shop.read("count(*), count(DISTINCT id), sum(amount)") == [
        (351, 351, sum(range(10, 3510, 10)) - 1500 + 7)
    ]


def test_a_missing_config_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(monkeypatch, "run", "-c", "/nowhere/rivet.yaml") == 1
    assert "[RIVET_CONFIG_UNREADABLE]" in capsys.readouterr().err


def test_errors_lists_the_registry(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(monkeypatch, "errors") == 0
    assert "RIVET_DEST_FULL  [environment]  Free space" in capsys.readouterr().out
