"""``doctor`` says of everything that a run needs whether it is there."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from typing import Any

import pytest

from rivet_dagster.config import load_config
from rivet_dagster.engine import doctor
from rivet_dagster.engine.run.engine import Engine
from tests.live.cli.conftest import Shell

ONE = '  - {name: t, table: t, format: parquet, destination: {type: local, path: "./out/{export}"}}\n'
GONE = '  - {name: g, table: gone, format: parquet, destination: {type: local, path: "./out/{export}"}}\n'


@pytest.fixture
def shop(sh: Shell) -> Shell:
    sh.db.execute("CREATE TABLE t AS SELECT g AS id FROM generate_series(1, 10) g", "ANALYZE t")
    sh.write(ONE)
    return sh


def checks(sh: Shell, *args: str, code: int = 0) -> dict[str, dict[str, Any]]:
    done = sh("doctor", "--json", *args)
    assert done.code == code, done.out + done.err
    found = done.json
    assert found["all_ok"] is (code == 0)
    return {check["name"]: check for check in found["checks"]}


def test_all_is_well_and_nothing_was_left(shop: Shell) -> None:
    before = set(shop.root.rglob("*"))
    found = checks(shop)
    assert {check["status"] for name, check in found.items() if name != "DAGSTER_HOME"} == {"ok"}
    assert "PostgreSQL 17" in found["source"]["detail"]
    assert found["export t"]["detail"] == "public.t can be read, about 10 rows, 1 columns"
    assert set(shop.root.rglob("*")) == before
    assert re.search(r"^ok    source: .*\n(.*\n)+\d+ ok, \d to look at, 0 failed\n$", shop.ok("doctor"), re.M)


def test_every_export_is_told_and_the_exit_is_that_of_the_gravest(shop: Shell) -> None:
    shop.write(GONE + ONE)
    found = checks(shop, code=5)
    assert (found["export t"]["ok"], found["export g"]["code"]) == (True, "RIVET_SOURCE_TABLE_NOT_FOUND")
    assert found["export g"]["hint"] == "Name an existing table; names are case-sensitive."
    done = shop("doctor", "--json-errors")
    assert (done.code, done.failure["failures"][0]["export"]) == (5, "g")


def test_privileges_are_asked_for_each_table(shop: Shell) -> None:
    role = f"reader_{shop.db.name}"
    shop.db.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'reader-pw'")
    try:
        shop.monkeypatch.setenv("DATABASE_URL", re.sub(r"//[^@]*@", f"//{role}:reader-pw@", shop.db.url))
        found = checks(shop, code=1)
        assert found["export t"]["code"] == "RIVET_SOURCE_PERMISSION_DENIED"
        assert "Grant SELECT" in found["export t"]["hint"]
        shop.monkeypatch.setenv("DATABASE_URL", re.sub(r"//[^@]*@", f"//{role}:wr0ng-pw@", shop.db.url))
        wrong = shop("doctor")
        assert wrong.code == 1
        assert "fail  source: [RIVET_SOURCE_AUTH_FAILED]" in wrong.out
        assert "export t" not in wrong.out
        assert "wr0ng-pw" not in wrong.out + wrong.err
    finally:
        shop.db.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_server_that_is_down_is_worth_a_retry(shop: Shell) -> None:
    shop.monkeypatch.setenv("DATABASE_URL", "postgresql://u:some-pw@127.0.0.1:1/d")
    found = checks(shop, code=2)
    assert found["source"]["code"] == "RIVET_SOURCE_UNAVAILABLE"
    assert found["destination"]["ok"]


def test_a_config_with_two_mistakes_names_both(shop: Shell) -> None:
    shop.write(ONE.replace("table: t", "tabel: t").replace("format: parquet", "format: xlsx"))
    found = checks(shop, code=1)
    assert "tabel" in found["config"]["detail"]
    assert "xlsx" in found["config"]["detail"]
    assert "source" not in found


def test_a_destination_that_cannot_be_written(shop: Shell) -> None:
    (shop.root / "out").write_text("a file is in the way")
    found = checks(shop, code=1)
    assert found["destination t"]["code"] == "RIVET_DEST_NOT_WRITABLE"


def test_a_state_of_a_newer_version_and_of_an_older_one(shop: Shell) -> None:
    shop.ok("run")
    assert checks(shop)["state"]["detail"].endswith("schema r0002")
    with sqlite3.connect(shop.root / "rivet_state.db") as state:
        state.execute("UPDATE rivet_schema_version SET version_num = 'r0001'")
    old = checks(shop)["state"]
    assert (old["status"], "the next run makes it" in old["detail"]) == ("warn", True)
    with sqlite3.connect(shop.root / "rivet_state.db") as state:
        state.execute("UPDATE rivet_schema_version SET version_num = 'r9999'")
    assert checks(shop, code=5)["state"]["code"] == "RIVET_STATE_SCHEMA_NEWER"
    state.close()


def test_a_state_database_whose_role_may_not_make_tables(shop: Shell) -> None:
    role = f"keeper_{shop.db.name}"
    shop.db.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'keeper-pw'")
    url = re.sub(r"//[^@]*@", f"//{role}:keeper-pw@", shop.db.url)
    try:
        with Engine(load_config(shop.config), state_url=url) as engine:
            check = doctor.state(engine)
        assert (check.status, check.error and check.error.code) == ("fail", "RIVET_STATE_NOT_WRITABLE")
        with Engine(load_config(shop.config), state_url=shop.db.url) as engine:
            check = doctor.state(engine)
        assert (check.status, "is empty" in check.detail) == ("ok", True)
    finally:
        shop.db.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_clocks_that_differ_are_told(shop: Shell) -> None:
    with Engine(load_config(shop.config), state_url="") as engine:
        for off, status in ((0.0, "ok"), (60.0, "warn"), (-60.0, "warn")):

            def clock(off: float = off) -> float:
                return time.time() + off

            found = {check.name: check for check in doctor.source(engine, clock=clock)}
            assert found["clock"].status == status
    assert "60 s off" in found["clock"].detail


def test_a_table_that_was_never_analysed_and_too_few_connections(shop: Shell) -> None:
    shop.db.execute("CREATE TABLE fresh AS SELECT 1 AS id")
    shop.write(ONE.replace("table: t", "table: fresh, parallel: 500"))
    found = checks(shop)
    assert found["export t"]["hint"] == "run ANALYZE public.fresh"
    assert found["connections"]["status"] == "warn"


def test_dagster_home_is_looked_at(shop: Shell) -> None:
    shop.monkeypatch.setenv("DAGSTER_HOME", str(shop.root))
    assert checks(shop)["DAGSTER_HOME"]["status"] == "ok"
    shop.monkeypatch.setenv("DAGSTER_HOME", os.path.join("no", "such"))
    assert checks(shop)["DAGSTER_HOME"]["status"] == "warn"
