"""``check`` and ``plan`` judge exports without running them."""

from __future__ import annotations

import pytest

from tests.live.cli.conftest import Shell

REST = 'format: parquet, destination: {type: local, path: "./out/{export}"}'
CHUNKED = "mode: chunked, chunk_column: id, chunk_size: 100"
THINGS = f"  - {{name: things, table: things, {CHUNKED}, chunk_checkpoint: true, {REST}}}\n"


@pytest.fixture
def shop(sh: Shell) -> Shell:
    sh.db.execute(
        "CREATE TABLE things AS SELECT g AS id, g::numeric AS price, now() AS at"
        " FROM generate_series(1, 350) g",
        "ALTER TABLE things ADD PRIMARY KEY (id)",
        "ANALYZE things",
    )
    sh.write(THINGS)
    return sh


def test_a_good_export_with_its_types(shop: Shell) -> None:
    found = shop("check", "--json").json
    assert (found["ok"], found["review"], found["refused"]) == (1, 0, 0)
    (things,) = found["exports"]
    assert (things["verdict"], things["strategy"], things["unit_count"]) == ("ok", "chunked", 4)
    assert things["why"] == "4 ranges of id"
    assert things["resumable"] is True
    price = {"column": "price", "source": "numeric", "file": "string"}
    assert things["columns"][1].items() >= {**price, "fidelity": "text", "text_form": "DecimalPlain"}.items()
    assert next((u["start"], u["end"]) for u in things["units"]) == ("1", "99")
    text = shop.ok("check")
    assert "price  numeric -> string (text, DecimalPlain)" in text
    assert text.endswith("1 ok, 0 review, 0 refused\n")
    assert not (shop.root / "out").exists()


def test_what_deserves_a_look_fails_only_when_strict(shop: Shell) -> None:
    shop.db.execute("CREATE TABLE fresh AS SELECT g AS id FROM generate_series(1, 350) g")
    shop.write(
        f"  - {{name: fresh, table: fresh, {CHUNKED}, value_policy: {{id: 'null'}}, {REST}}}\n" + THINGS
    )
    out = shop.ok("check")
    assert "  review: the table was never analysed" in out
    assert "  review: a killed run starts anew" in out
    assert out.endswith("1 ok, 1 review, 0 refused\n")
    strict = shop("check", "--strict")
    assert (strict.code, "to be reviewed: fresh" in strict.err) == (1, True)


def test_what_planning_refuses_is_told_beside_the_others(shop: Shell) -> None:
    shop.db.execute(
        "CREATE TABLE sparse AS SELECT g * 1000000 AS id FROM generate_series(1, 350) g", "ANALYZE sparse"
    )
    shop.write(
        f"  - {{name: sparse, table: sparse, {CHUNKED}, {REST}}}\n"
        f"  - {{name: wrong, table: things, mode: chunked, chunk_column: at, {REST}}}\n" + THINGS
    )
    done = shop("check", "--json", "--json-errors")
    found = {one["export_name"]: one for one in done.json["exports"]}
    assert found["sparse"]["error"]["code"] == "RIVET_PLAN_CHUNK_KEY_SPARSE"
    assert found["wrong"]["error"]["code"] == "RIVET_CONFIG_CHUNK_KEY_UNSUITABLE"
    assert found["things"]["verdict"] == "ok"
    assert done.code == 5, "a refusal outranks a mistake in the config"
    assert [one["export"] for one in done.failure["failures"]] == ["sparse", "wrong"]


def test_plan_as_json_is_the_same_plan(shop: Shell) -> None:
    planned, checked = shop("plan", "--json").json, shop("check", "--json").json["exports"][0]
    assert planned == checked
    assert "unit 3 (range) 300 .. 350" in shop.ok("plan")
