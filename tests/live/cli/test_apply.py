"""A sealed plan is applied exactly as it was made, once, or refused."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rivet_dagster.config import load_config
from rivet_dagster.engine.run.engine import Engine
from rivet_dagster.engine.run.sealed import seal
from tests.live.cli.conftest import Done, Shell
from tests.live.postgres.rig import read_parquet

REST = 'format: parquet, destination: {type: local, path: "./out/{export}"}'
TREE = str(Path(__file__).parents[3])
RANGES = "mode: chunked, chunk_column: id, chunk_size: 100"
MODES = {
    "ranges": RANGES,
    "keys": "mode: chunked, chunk_by_key: id, chunk_size: 100",
    "dense": f"{RANGES}, chunk_dense: true",
    "snapshot": f"{RANGES}, consistency: snapshot",
    "days": "mode: chunked, chunk_column: at, chunk_by_days: 1",
    "window": "mode: time_window, time_column: at, days_window: 3",
    "full": "mode: full",
    "incremental": "mode: incremental, cursor_column: id",
    "keyset": "mode: chunked, chunk_by_key: id, keyset_incremental: true, chunk_size: 100",
}


@pytest.fixture
def shop(sh: Shell) -> Shell:
    sh.db.execute(
        "CREATE TABLE things AS SELECT g AS id, now() AS at, 'v' || g AS note FROM generate_series(1, 350) g",
        "ALTER TABLE things ADD PRIMARY KEY (id)",
        "ANALYZE things",
    )
    write(sh, RANGES)
    return sh


def write(sh: Shell, keys: str, **source: str) -> None:
    sh.write(f"  - {{name: x, table: things, {keys}, {REST}}}\n", **source)


def planned(sh: Shell, *, ago: timedelta = timedelta()) -> dict[str, Any]:
    """Seal a plan in p.json, as if ``ago``."""
    with Engine(load_config(sh.config), state_url="") as engine:
        text, _ = seal(engine, "x", now=datetime.now(UTC) - ago)
    (sh.root / "p.json").write_text(text)
    return dict(json.loads(text))


def rows(sh: Shell) -> int:
    ((count, distinct),) = read_parquet(
        sorted((sh.root / "out" / "x").glob("*.parquet")), "count(*), count(DISTINCT id)"
    )
    assert count == distinct
    return int(count)


def refused(sh: Shell, *args: str) -> Done:
    done = sh("apply", "p.json", "--json-errors", *args)
    assert not list((sh.root / "out").glob("x/_SUCCESS"))
    return done


@pytest.mark.parametrize("mode", sorted(MODES))
def test_every_mode_can_be_sealed_and_applied_once(shop: Shell, mode: str) -> None:
    write(shop, MODES[mode])
    sealing = shop("plan", "-e", "x", "-o", "p.json", "--json")
    assert ("sealed in p.json" in sealing.err, sealing.json["export_name"]) == (True, "x")
    first = json.loads(shop.ok("apply", "p.json", "--json"))
    assert (first["status"], first["rows"], rows(shop)) == ("success", 350, 350)
    again = shop("apply", "p.json", "--json")
    told = {key: again.json[key] for key in ("status", "run_id", "rows", "files", "bytes", "manifest")}
    assert told == {key: first[key] for key in told}
    assert "applied the plan" in again.err
    assert shop.ok("validate").startswith("x: pass")


def test_only_the_ranges_of_the_plan_are_read(shop: Shell) -> None:
    plan = planned(shop)
    shop.db.execute("INSERT INTO things SELECT g, now(), '' FROM generate_series(351, 500) g")
    assert [(u["start_key"], u["end_key"]) for u in plan["units"]][-1] == ("300", "350")
    assert "x: 350 rows" in shop.ok("apply", "p.json")
    assert rows(shop) == 350


def killed(sh: Shell, point: str) -> None:
    """An apply that dies at a fault point."""
    command = [sys.executable, "-m", "rivet_dagster.cli", "apply", "p.json"]
    environment = os.environ | {"RIVET_TEST_CRASH_AT": point, "PYTHONPATH": TREE}
    done = subprocess.run(command, cwd=sh.root, env=environment, capture_output=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize(
    ("mode", "point"),
    [
        ("ranges", "after_plan"),
        ("ranges", "before_finalize"),
        ("ranges", "after_manifest_copy"),
        ("ranges", "after_success"),
        ("full", "after_unit_commit"),
        ("incremental", "after_unit_commit"),
        ("incremental", "after_manifest_copy"),
        ("keyset", "after_manifest_update"),
    ],
)
def test_killed_anywhere_it_is_applied_once(shop: Shell, mode: str, point: str) -> None:
    write(shop, MODES[mode])
    shop.ok("run")
    adds = mode in ("incremental", "keyset")
    shop.db.execute("INSERT INTO things SELECT g, now(), '' FROM generate_series(351, 400) g")
    planned(shop)
    killed(shop, point)
    applied = json.loads(shop.ok("apply", "p.json", "--json"))
    assert (applied["status"], applied["rows"]) == ("success", 50 if adds else 400)
    assert rows(shop) == 400
    assert json.loads(shop.ok("apply", "p.json", "--json"))["run_id"] == applied["run_id"]
    assert shop.ok("validate").startswith("x: pass")


def test_a_killed_apply_goes_on_with_the_same_plan(shop: Shell) -> None:
    planned(shop)
    killed(shop, "after_unit_commit:2")
    shop.db.execute("INSERT INTO things SELECT g, now(), '' FROM generate_series(351, 500) g")
    resumed = shop("apply", "p.json")
    assert (resumed.code, "of 4 units are outstanding" in resumed.err) == (0, True)
    assert rows(shop) == 350


def test_an_open_run_of_another_origin_is_given_up(shop: Shell) -> None:
    write(shop, RANGES + ", chunk_checkpoint: true")
    with Engine(load_config(shop.config), state_url="") as engine, engine.session("x", holder="t") as session:
        session.plan()
        next(iter(session.execute()))
    planned(shop)
    done = shop("apply", "p.json")
    assert (done.code, "is given up: a fresh run was asked for" in done.err) == (0, True)
    assert rows(shop) == 350


def test_the_file_is_private_and_holds_no_secret(shop: Shell) -> None:
    shop.monkeypatch.setenv("DATABASE_URL", shop.db.url + "?application_name=c4nary")
    password = shop.db.server.password
    write(shop, f"{RANGES}")
    shop.ok("plan", "-o", "p.json")
    plan = shop.root / "p.json"
    assert stat.S_IMODE(plan.stat().st_mode) == 0o600
    assert password not in plan.read_text()
    assert "c4nary" not in plan.read_text()
    write(shop, RANGES, source="tls: {mode: disable}")
    inline = shop.config.read_text().replace("url_env: DATABASE_URL", f"url: {shop.db.url}")
    shop.config.write_text(inline)
    shop.ok("plan", "-o", "p.json")
    assert password not in plan.read_text()
    shop.ok("apply", "p.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [("created_at", "2999-01-01T00:00:00+00:00"), ("prefix", "/tmp/elsewhere"), ("units", []),
     ("plan_id", "p"), ("new", 1)],
)  # fmt: skip
def test_an_edited_plan_is_refused_even_by_force(shop: Shell, key: str, value: Any) -> None:
    plan = planned(shop)
    (shop.root / "p.json").write_text(json.dumps({**plan, key: value}))
    done = refused(shop, "--force")
    assert (done.code, done.failure["code"]) == (5, "RIVET_PLAN_TAMPERED")


def test_what_is_no_plan_is_told(shop: Shell) -> None:
    plan = planned(shop)
    for text in ("", "[1]", "{}", "\x00", json.dumps({**plan, "version": 2}), "[" * 100_000):
        (shop.root / "p.json").write_text(text)
        assert refused(shop).failure["code"] == "RIVET_PLAN_INVALID"
    (shop.root / "p.json").unlink()
    assert refused(shop).failure["code"] == "RIVET_PLAN_INVALID"
    assert shop("plan", "-e", "x", "-e", "x", "-o", "p.json").code == 1


def test_age(shop: Shell) -> None:
    planned(shop, ago=timedelta(hours=25))
    old = refused(shop)
    assert (old.code, old.failure["code"]) == (5, "RIVET_PLAN_STALE")
    forced = shop("apply", "p.json", "--force")
    assert (forced.code, "25.0 hours old" in forced.err) == (0, True)
    planned(shop, ago=-timedelta(minutes=1))
    assert "hours old" not in shop("apply", "p.json").err


def test_a_plan_of_two_hours_is_applied_with_a_note(shop: Shell) -> None:
    planned(shop, ago=timedelta(hours=2))
    done = shop("apply", "p.json")
    assert (done.code, "2.0 hours old" in done.err) == (0, True)


def test_columns_that_changed(shop: Shell) -> None:
    planned(shop)
    shop.db.execute("ALTER TABLE things ADD COLUMN extra int", "ALTER TABLE things DROP COLUMN note")
    done = refused(shop, "--force")
    assert (done.code, done.failure["code"]) == (4, "RIVET_SCHEMA_DRIFT")
    assert "columns added: extra" in done.failure["error"]


@pytest.mark.parametrize("keys", [RANGES.replace("100", "50"), RANGES + ", compression: gzip", "mode: full"])
def test_a_config_that_changed(shop: Shell, keys: str) -> None:
    planned(shop)
    write(shop, keys)
    done = refused(shop, "--force")
    assert (done.code, done.failure["code"]) == (5, "RIVET_PLAN_DRIFT")


def test_another_state(shop: Shell) -> None:
    planned(shop)
    copy = shop.root / "copy"
    copy.mkdir()
    (copy / "rivet.yaml").write_text(shop.config.read_text().replace("./out", f"{shop.root}/out"))
    done = refused(shop, "-c", "copy/rivet.yaml")
    assert (done.code, done.failure["code"]) == (5, "RIVET_PLAN_DRIFT")


@pytest.mark.parametrize("mode", ["incremental", "keyset"])
def test_a_cursor_that_moved_is_never_read_twice(shop: Shell, mode: str) -> None:
    write(shop, MODES[mode])
    shop.ok("run")
    shop.db.execute("INSERT INTO things SELECT g, now(), '' FROM generate_series(351, 400) g")
    plan = planned(shop)
    assert (plan["cursor"]["low"], plan["cursor"]["high"]) == ("350", "400")
    (shop.root / "first.json").write_text(json.dumps(plan))
    planned(shop)
    shop.db.execute("INSERT INTO things SELECT g, now(), '' FROM generate_series(401, 420) g")
    assert "x: 50 rows" in shop.ok("apply", "first.json"), "up to the sealed bound"
    done = shop("apply", "p.json", "--force", "--json-errors")
    assert (done.code, done.failure["code"]) == (5, "RIVET_PLAN_DRIFT")
    assert "x: 20 rows" in shop.ok("run")
    assert rows(shop) == 420


def test_files_that_are_newer_than_the_plan_stay(shop: Shell) -> None:
    planned(shop, ago=timedelta(minutes=5))
    shop.ok("run")
    done = shop("apply", "p.json", "--json-errors")
    assert (done.code, done.failure["code"]) == (5, "RIVET_PLAN_DRIFT")
    assert "x: 350 rows" in shop.ok("apply", "p.json", "--force")
