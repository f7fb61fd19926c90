"""``value_policy:`` on values that no type of the file holds: refused, NULL and counted, or text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rivet_dagster.engine.errors import ConfigError, RefusalError
from tests.services.exporting import Exporter
from tests.services.postgres import TestDatabase

#: column -> (type, a value without a form, its text, a value that has one)
ODD = {
    "n": ("numeric(10,2)", "'NaN'", "NaN", "1.5"),
    "d": ("date", "'infinity'", "infinity", "'2024-02-29'"),
    "at": ("timestamp", "'-infinity'", "-infinity", "'2024-02-29'"),
    "z": ("timestamptz", "'infinity'", "infinity", "'2024-02-29 00:00+00'"),
    "c": ("time", "'24:00'", "24:00:00", "'12:00'"),
    "a": ("int[]", "'{{1,2},{3,4}}'", "{{1,2},{3,4}}", "'{1}'"),
    "b": ("int[]", "'[0:1]={1,2}'", "[0:1]={1,2}", "'{1}'"),
}


@pytest.fixture
def exporter(db: TestDatabase, tmp_path: Path) -> Exporter:
    columns = ", ".join(f"{name} {kind}" for name, (kind, *_) in ODD.items())
    odd = ", ".join(value for _, value, *_ in ODD.values())
    good = ", ".join(value for *_, value in ODD.values())
    db.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, word text, {columns})",
        f"INSERT INTO t SELECT g, 'w', {odd} FROM generate_series(1, 30) g",
        f"INSERT INTO t SELECT g, 'w', {good} FROM generate_series(31, 100) g",
        "INSERT INTO t (id) VALUES (101)",
    )
    return Exporter(db, tmp_path)


def test_by_default_each_is_refused_by_name(exporter: Exporter) -> None:
    for name in ODD:
        with pytest.raises(RefusalError) as caught:
            exporter.run(query=f"SELECT id, {name} FROM t")
        assert (caught.value.code, caught.value.field) == ("RIVET_SOURCE_VALUE_UNREPRESENTABLE", name)
    assert not exporter.marked


@pytest.mark.parametrize("written", ["parquet", "csv"])
def test_null_is_counted_in_the_manifest_and_told(exporter: Exporter, written: str) -> None:
    # a CSV takes a list as the server's text, which has a form for every list
    lists = {"a", "b"} if written == "csv" else set()
    outcome = exporter.run(value_policy={"*": "null"}, format=written)
    counts = {name: 0 if name in lists else 30 for name in ODD}
    expected = {name: {"policy": "null", "nulled": count} for name, count in counts.items()}
    assert exporter.manifest()["rivet_dagster"]["policies"] == expected
    assert outcome.details["nulled"] == {name: n for name, n in counts.items() if n}
    assert "30 values of 'n' have no form in its type and are NULL" in outcome.warnings
    if written == "parquet":
        table = exporter.table()
        assert {name: table.column(name).null_count for name in ODD} == dict.fromkeys(ODD, 31)
        assert table.column("word").null_count == 1
    with exporter.engine(value_policy={"*": "null"}, format=written) as engine:
        assert engine.validate("o").passed
        assert engine.reconcile("o").status == "match"


def test_text_switches_the_whole_column(exporter: Exporter) -> None:
    exporter.run(value_policy=dict.fromkeys(ODD, "text"))
    table = exporter.table()
    for name, (_, _, text, _) in ODD.items():
        assert table.schema.field(name).type == pa.string()
        assert table.column(name).to_pylist().count(text) == 30
    assert exporter.manifest()["rivet_dagster"]["policies"]["n"] == {"policy": "text", "nulled": 0}
    with exporter.engine(value_policy=dict.fromkeys(ODD, "text")) as engine:
        assert engine.reconcile("o").status == "match"


def test_a_star_leaves_columns_alone_that_hold_every_value(exporter: Exporter) -> None:
    exporter.run(value_policy={"*": "text", "n": "null"})
    schema = exporter.table().schema
    assert schema.field("id").type == pa.int32()
    assert schema.field("n").type == pa.decimal128(10, 2)
    assert schema.field("d").type == pa.string()
    assert exporter.manifest()["rivet_dagster"]["policies"] == {"n": {"policy": "null", "nulled": 30}}


def test_a_policy_for_an_unknown_column_is_refused(exporter: Exporter) -> None:
    with pytest.raises(ConfigError) as caught:
        exporter.run(value_policy={"D": "null"})
    assert caught.value.field == "value_policy.D"
    assert "'d'" in str(caught.value)


def test_a_policy_holds_a_declared_decimal_too(exporter: Exporter) -> None:
    keys: dict[str, Any] = {"columns": {"v": "decimal(6,2)"}, "value_policy": {"v": "null"}}
    exporter.db.execute("CREATE TABLE s AS SELECT unnest('{1.25,0.125,NaN,99999.5}'::numeric[]) AS v")
    exporter.run(query="SELECT v FROM s", **keys)
    assert [str(v) for v in exporter.column("v")] == ["1.25", "None", "None", "None"]
    assert exporter.manifest()["rivet_dagster"]["policies"] == {"v": {"policy": "null", "nulled": 3}}


def test_a_resumed_run_knows_the_counts_of_the_units_before(exporter: Exporter) -> None:
    exporter.db.execute("UPDATE t SET n = 'NaN' WHERE id = 90")
    keys: dict[str, Any] = {
        "mode": "chunked", "chunk_column": "id", "chunk_size": 20, "chunk_checkpoint": True,
        "value_policy": {"*": "null"}, "max_file_size": "1B",
    }  # fmt: skip
    first = exporter.stopped(2, **keys)
    with exporter.engine(**keys) as engine, engine.session("o", holder="second") as session:
        plan = session.plan()
        assert plan.resumed
        assert plan.run_id == first
        assert 0 < len(plan.outstanding) < len(plan.units)
        list(session.execute())
        outcome = session.finalize()
    assert outcome.details["nulled"]["n"] == 31
    assert exporter.manifest()["rivet_dagster"]["policies"]["n"] == {"policy": "null", "nulled": 31}
