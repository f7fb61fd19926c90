"""``init`` proposes a config for whatever a database holds, and what it proposes runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rivet_dagster.config import ExportConfig, RivetConfig, load_config
from rivet_dagster.engine import doctor
from rivet_dagster.engine.errors import UsageError
from rivet_dagster.engine.run.engine import Engine
from rivet_dagster.scaffold.init import Wanted, scaffold, write_new
from tests.live.cli.conftest import Shell
from tests.services.postgres import TestDatabase

LARGE = "repeat('x', 500) AS pad FROM generate_series(1, 3000) g"
SHOP = (
    "CREATE TABLE small (id int PRIMARY KEY, updated_at timestamptz, price numeric)",
    "CREATE INDEX ON small (updated_at)",
    "INSERT INTO small SELECT g, now(), g / 7.0 FROM generate_series(1, 20) g",
    f"CREATE TABLE dense AS SELECT g AS id, now() AS modified_at, {LARGE}",
    "ALTER TABLE dense ADD PRIMARY KEY (id)",
    f"CREATE TABLE sparse AS SELECT g * 1000 AS id, {LARGE}",
    "ALTER TABLE sparse ADD PRIMARY KEY (id)",
    f"CREATE TABLE keyed AS SELECT gen_random_uuid() AS id, {LARGE}",
    "ALTER TABLE keyed ADD PRIMARY KEY (id)",
    f"CREATE TABLE paired AS SELECT g % 7 AS region, g::text AS code, {LARGE}",
    "ALTER TABLE paired ADD PRIMARY KEY (region, code)",
    f"CREATE TABLE heap AS SELECT {LARGE}",
    "ANALYZE",
)


@pytest.fixture
def shop(sh: Shell) -> Shell:
    sh.db.execute(*SHOP)
    return sh


def loaded(sh: Shell) -> RivetConfig:
    return load_config(sh.config)


def export(sh: Shell, name: str) -> ExportConfig:
    return loaded(sh).export(name)


def about(sh: Shell, name: str) -> str:
    """The comment lines above an export."""
    text = sh.config.read_text()
    found = re.search(rf"((?:  #.*\n)+)  - name: {re.escape(name)}\n", text)
    assert found, text
    return found[1]


def test_each_table_gets_the_mode_that_fits_it_and_a_reason(shop: Shell) -> None:
    out = shop.ok("init", "--large-mb", "1")
    assert "6 exports (1 chunked, 3 chunked by key, 2 full)" in out
    assert "rivet-dagster check" in out
    dense, keyed, paired = (export(shop, name) for name in ("dense", "keyed", "paired"))
    assert (dense.mode, dense.chunk_column, dense.chunk_checkpoint) == ("chunked", "id", True)
    assert (keyed.chunk_by_key, paired.chunk_by_key) == ("id", ("region", "code"))
    assert export(shop, "sparse").chunk_by_key == "id"
    assert (export(shop, "small").mode, export(shop, "heap").mode) == ("full", "full")
    assert "large gaps" in about(shop, "sparse")
    assert "no unique key" in about(shop, "heap")
    assert "about 3,000 rows, key id" in about(shop, "dense")
    assert "Create an index on modified_at first" in about(shop, "dense")
    assert "`cursor_column: updated_at`" in about(shop, "small")
    assert "Review: price is numeric without a precision" in about(shop, "small")


def test_a_proposed_override_works_once_it_is_switched_on(shop: Shell) -> None:
    shop.ok("init", "--table", "small")
    text = shop.config.read_text()
    assert '    # columns: {price: "decimal(38,9)"}\n' in text
    shop.config.write_text(text.replace("    # columns:", "    columns:"))
    assert "price       numeric -> decimal128(38, 9)" in shop.ok("check")
    shop.db.execute("UPDATE small SET price = round(price, 2)")
    shop.ok("run")


def test_what_is_proposed_runs_as_it_stands(shop: Shell) -> None:
    shop.ok("init", "--large-mb", "1")
    out = shop.ok("run")
    assert out.count("3000 rows") == 5
    assert "small: 20 rows" in out
    assert shop.ok("validate").count("pass") == 6


def test_a_file_that_is_there_stays(shop: Shell) -> None:
    shop.config.write_text("mine")
    done = shop("init")
    assert (done.code, shop.config.read_text()) == (1, "mine")
    assert "RIVET_INIT_FILE_EXISTS" in done.err
    with pytest.raises(UsageError, match="is there already"):  # it came while the database was looked at
        write_new(shop.config, "other")
    assert shop.config.read_text() == "mine"


def test_the_url_is_nowhere(shop: Shell) -> None:
    role = f"canary_{shop.db.name}"
    secret = "c4nary/p@ss"
    shop.db.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD '{secret}'",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}",
    )
    try:
        url = re.sub(r"//[^@]*@", f"//{role}:c4nary%2Fp%40ss@", shop.db.url)
        shop.monkeypatch.setenv("DATABASE_URL", url)
        done = shop("init")
        assert done.code == 0, done.err
        shop.monkeypatch.setenv("DATABASE_URL", url.replace("p%40ss", "p%40ssx"))
        wrong = shop("--json-errors", "init", "-o", "other.yaml")
        assert wrong.failure["code"] == "RIVET_SOURCE_AUTH_FAILED"
        assert not (shop.root / "other.yaml").exists()
        shown = shop.config.read_text() + done.out + done.err + wrong.out + wrong.err
        assert "c4nary" not in shown
        assert "url_env: DATABASE_URL" in shown
    finally:
        shop.db.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_names_that_no_yaml_likes(sh: Shell) -> None:
    odd = [
        "no",
        "007",
        "Ünï 🎉",
        'quo"te',
        "a: b # c",
        "{x}",
        "dot.ted",
        "sl/ash",
        ".hidden",
        "tab\there",
        "-",
    ]
    odd += ["${HOME}", "null", "%s", "a_b", "a-b", "line\nbreak", "back\\slash"]
    for name in odd:
        quoted = name.replace('"', '""')
        sh.db.execute(f'CREATE TABLE "{quoted}" ("{quoted}" int PRIMARY KEY)')
        sh.db.execute(f'INSERT INTO "{quoted}" VALUES (1), (2)')
    sh.db.execute('CREATE SCHEMA "other.one"', 'CREATE TABLE "other.one"."no" (id int)')
    out = sh.ok("init")
    assert "left out: public.${HOME}" in out
    assert len(loaded(sh).exports) == len(odd)  # one is left out, one is of another schema
    assert sh.ok("run").count("2 rows") == len(odd) - 1


def test_what_the_role_may_not_read_is_a_comment_with_the_remedy(shop: Shell) -> None:
    role = f"reader_{shop.db.name}"
    shop.db.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD 'reader-pw'",
        f"GRANT SELECT ON small, heap TO {role}",
        "ALTER TABLE heap ENABLE ROW LEVEL SECURITY",
        "CREATE SCHEMA hidden",
        "CREATE TABLE hidden.t (id int)",
    )
    try:
        url = re.sub(r"//[^@]*@", f"//{role}:reader-pw@", shop.db.url)
        shop.monkeypatch.setenv("DATABASE_URL", url)
        out = shop.ok("init")
        assert "left out: public.dense, the role may not read it: GRANT SELECT" in out
        assert "public.heap, row-level security hides rows" in out
        assert "hidden.t, the role may not use schema hidden" in out
        assert [e.name for e in loaded(shop).exports] == ["small"]
        assert "  # - name: dense\n" in shop.config.read_text()
        shop.ok("run")
    finally:
        shop.db.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_only_tables_of_the_user_are_proposed(sh: Shell) -> None:
    sh.db.execute(
        "CREATE TABLE events (id int, day date) PARTITION BY RANGE (day)",
        "CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM ('2024-01-01') TO ('2025-01-01')",
        "CREATE MATERIALIZED VIEW daily AS SELECT 1 AS n",
        "CREATE VIEW seen AS SELECT 1 AS n",
        "CREATE TABLE empty_one ()",
        "CREATE SCHEMA two",
        "CREATE TABLE two.events (id int)",
        "CREATE TABLE two.tmp_x (id int)",
    )
    sh.ok("init", "--exclude", "two.tmp_*")
    assert sorted(e.name for e in loaded(sh).exports) == ["daily", "events", "two_events"]
    text = sh.config.read_text()
    assert "public.seen: a view" in text
    assert "public.empty_one:" in text
    sh.ok("init", "-o", "two.yaml", "--schema", "two", "--include", "*x", "--format", "csv")
    (only,) = load_config(sh.root / "two.yaml").exports
    assert (only.name, only.format, only.table) == ("tmp_x", "csv", "two.tmp_x")
    assert sh.ok("init", "-o", "-", "--table", "daily").count("- name:") == 1
    nothing = sh("init", "-o", "none.yaml", "--table", "nope")
    assert (nothing.code, Path("none.yaml").exists()) == (1, False)
    assert "RIVET_INIT_NOTHING_FOUND" in nothing.err


def test_another_host_is_only_reached_with_tls(sh: Shell) -> None:
    sh.monkeypatch.setenv("DATABASE_URL", "postgresql://u:pw-secret@192.0.2.1:1/d?connect_timeout=1")
    done = sh("init")
    assert done.code == 2
    assert "RIVET_SOURCE_UNAVAILABLE" in done.err
    assert not sh.config.exists()
    sh.monkeypatch.delenv("DATABASE_URL")
    assert "set DATABASE_URL" in sh("init").err


def test_every_version_of_the_server(
    every_db: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every_db.execute(*SHOP)
    monkeypatch.setenv("DATABASE_URL", every_db.url)
    path = tmp_path / "rivet.yaml"
    made = scaffold(path, url_env="DATABASE_URL", wanted=Wanted(), large_mb=1)
    assert made.modes == {"chunked": 1, "chunked by key": 3, "full": 2}
    path.write_text(made.text)
    with Engine(load_config(path), state_url="") as engine:
        assert [check.name for check in doctor.source(engine) if check.status != "ok"] == []
        assert {check.status for check, _ in doctor.exports(engine)} == {"ok"}
