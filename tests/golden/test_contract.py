"""The scheduler contract's documents, value for value, and a checker that refuses wrong ones.

``RIVET_WRITE_GOLDEN=1`` writes the files anew; look at the difference, it is a change of the contract.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from rivet_dagster.engine.errors import (
    EXIT_CODE,
    BusyError,
    ConfigError,
    CrashedError,
    EnvironmentFault,
    IntegrityError,
    InternalError,
    RefusalError,
    RivetError,
    SchemaDriftError,
    TransientError,
    error_object,
)
from rivet_dagster.engine.results import (
    Aggregate,
    aggregate_json,
    failed_entry,
    failure_line,
    run_entry,
    unit_facts,
    without_messages,
)
from rivet_dagster.engine.run.events import RunOutcome
from rivet_dagster.engine.run.preview import refused
from rivet_dagster.engine.run.sealed import read_plan
from rivet_dagster.engine.state.location import StateLocation
from rivet_dagster.engine.state.models import RunFinish
from rivet_dagster.engine.state.store import StateStore
from rivet_dagster.engine.verify.reconcile import ReconcileReport, UnitComparison
from rivet_dagster.engine.verify.repair import plan_repair
from tests.golden.checker import KINDS, faults
from tests.live.state.helpers import begin

FOLDER: Final = Path(__file__).with_name("contract")
AT: Final = datetime(2026, 11, 30, 2, 0, tzinfo=UTC)

ERRORS: Final[Mapping[str, RivetError]] = {
    "generic": EnvironmentFault("no role", code="RIVET_SOURCE_AUTH_FAILED", export="orders"),
    "retryable": TransientError("the server went away", export="orders"),
    "data_integrity": IntegrityError("a part is damaged", export="orders"),
    "schema_drift": SchemaDriftError("column 'n' is gone", export="orders"),
    "refusal": RefusalError("public.gone is not there", export="gone"),
    "internal": InternalError("KeyError: 'n'", export="orders"),
    "crashed": CrashedError("the process that ran it is gone", export="orders"),
}


def outcome(status: str = "success", **changes: Any) -> RunOutcome:
    done = status == "success"
    given: dict[str, Any] = {
        "status": status,
        "run_id": "orders_20261130T020000_a1b2c3",
        "export": "orders",
        "mode": "chunked" if done else "incremental",
        "rows": 350 if done else 0,
        "files": 4 if done else 0,
        "bytes": 8123 if done else 0,
        "seconds": 1.25,
        "units": 4,
        "columns": (),
        "prefix_uri": "file:///data/orders",
        "manifest_uri": "file:///data/orders/manifest-1.json" if done else None,
        "skip_reason": None if done else "no row with at past the watermark",
        "details": {"drift": {"added": [], "removed": [], "retyped": [], "wider": {}}, "nulled": {"n": 2}},
    }
    return RunOutcome(**{**given, **changes})


def failed(kind: str, export: str = "orders") -> dict[str, Any]:
    return failed_entry(export, ERRORS[kind], run_id="orders_20261130T020000_a1b2c3", mode="chunked")


def aggregate(*, stored: bool) -> dict[str, Any]:
    entries = [
        run_entry(outcome()),
        run_entry(outcome("skipped")),
        failed("refusal", "gone"),
        failed("crashed"),
    ]
    found = Aggregate("/etc/rivet.yaml", started_at=AT, entries=entries).ended()
    made = aggregate_json(without_messages(found) if stored else found)
    return {**made, "run_aggregate_id": "agg_20261130T020000_0a1b2c", "finished_at": made["started_at"],
            "duration_ms": 0}  # fmt: skip


def reconciled() -> ReconcileReport:
    names = ("columns that differ: amount: sum", "the source could not be asked for these rows")
    return ReconcileReport(
        "orders",
        "orders_20261130T020000_a1b2c3",
        "chunked",
        (
            UnitComparison(0, "000000000000", "chunk 0 [1..100]", "1", "100", "match", 100, 100),
            UnitComparison(
                1, "000000000100", "chunk 1 [101..200]", "101", "200", "mismatch", 100, 100, names[0],
                (("amount", ("sum",)),),
            ),
            UnitComparison(2, "null", "chunk 2 [NULL..NULL]", "NULL", "NULL", "unknown", None, 3, names[1]),
        ),
    )  # fmt: skip


def figures(tmp: Path) -> dict[str, dict[str, Any]]:
    """Rows of ``metrics`` of a failed and of a complete run, as the command line prints them."""
    found = {}
    with StateStore.open(StateLocation.parse(None, tmp)) as store:
        lease = begin(store, 0)
        store.record_failure(
            "r1", lease, RunFinish("failed", error=error_object(ERRORS["refusal"], with_message=False))
        )
        found["failed"] = dict(store.metrics("orders")[0])
        done = {"duration_ms": 1250, "total_rows": 350, "files_produced": 4, "bytes_written": 8123,
                "retries": 0, "format": "parquet", "nulled": {"n": 2}}  # fmt: skip
        store.finish_run("r1", lease, RunFinish("completed", metrics=done))
        found["complete"] = dict(store.metrics("orders")[0])
    for row in found.values():
        row.pop("id")
        row["run_at"] = AT.isoformat()
    return found


def documents(tmp: Path) -> dict[str, Any]:
    """Name of a file -> what the product makes. The name begins with its kind."""
    made: dict[str, Any] = {f"error_object-{kind}": error_object(error) for kind, error in ERRORS.items()}
    made["error_object-busy"] = error_object(BusyError("held by dagster:1", export="orders"))
    config = ConfigError("no such key", code="RIVET_CONFIG_UNKNOWN_KEY", file="rivet.yaml", line=3, field="x")
    invocations: dict[str, list[RivetError]] = {
        "one": [ERRORS["refusal"]],
        "two": [ERRORS["refusal"], ERRORS["retryable"]],
        "config": [config],
        "crashed": [ERRORS["crashed"]],
        "mixed": [ERRORS["generic"], ERRORS["crashed"]],
    }
    for name, errors in invocations.items():
        made[f"json_errors-{name}"] = failure_line(errors)
    entries = {
        "success": run_entry(outcome()),
        "skipped": run_entry(outcome("skipped")),
        "failed": failed("refusal"),
        "crashed": failed("crashed"),
        "crashed_before_its_run": failed_entry("orders", ERRORS["crashed"], run_id="", mode="chunked"),
    }
    for name, entry in entries.items():
        made[f"run_entry-{name}"] = entry
        made[f"unit_facts-{name}"] = unit_facts(entry)
    made["aggregate"], made["stored_aggregate"] = aggregate(stored=False), aggregate(stored=True)
    made["reconcile"] = {**reconciled().as_json(), "rivet_version": "0.0.0"}
    made["repair"] = {**plan_repair(reconciled()).as_json(), "rivet_version": "0.0.0"}
    made["preview-refused"] = refused("gone", ERRORS["refusal"])
    made |= {f"metrics-{name}": row for name, row in figures(tmp).items()}
    return made


def golden(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


NAMES: Final = sorted(path.stem for path in FOLDER.glob("*.json"))


def test_the_product_makes_the_golden_documents(tmp_path: Path) -> None:
    made = json.loads(json.dumps(documents(tmp_path)))
    if os.environ.get("RIVET_WRITE_GOLDEN"):
        for name, document in made.items():
            (FOLDER / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    assert {name: golden(name) for name in made} == made
    assert set(NAMES) - set(made) == {"plan", "preview-ok"}, "those that need a server"


@pytest.mark.parametrize("name", NAMES)
def test_the_checker_accepts_a_golden_document(name: str) -> None:
    assert faults(name.partition("-")[0], golden(name)) == []


def test_the_golden_plan_is_read_and_a_changed_one_is_not(tmp_path: Path) -> None:
    """A plan that an earlier version sealed goes on to be one."""
    assert read_plan(FOLDER / "plan.json").export == "things"
    edited = {**golden("plan"), "est_rows": 1}
    (tmp_path / "plan.json").write_text(json.dumps(edited))
    with pytest.raises(RefusalError):
        read_plan(tmp_path / "plan.json")


def test_every_class_and_status_is_shown() -> None:
    assert {golden(f"error_object-{name}")["class"] for name in ERRORS} == set(EXIT_CODE)
    assert {golden(n)["status"] for n in NAMES if n.startswith("run_entry-")} == {
        "success",
        "skipped",
        "failed",
    }
    assert {name.partition("-")[0] for name in NAMES} == set(KINDS) - {"check", "doctor"}


def without_unit(failure: dict[str, Any]) -> dict[str, Any]:
    """The error of a failure, as the top level has it."""
    return {key: failure[key] for key in failure if key not in ("export", "table", "message")}


def put(*path: Any, value: Any = None) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    return change


def drop(*path: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        del document[path[-1]]

    return change


#: (document, what is done to it): each must be refused.
WRONG: Final[list[tuple[str, Callable[[Any], None]]]] = [
    ("error_object-refusal", drop("action")),
    ("error_object-refusal", drop("message")),
    ("error_object-refusal", put("message")),
    ("error_object-refusal", put("extra", value=1)),
    ("error_object-refusal", put("class", value="interrupted")),
    ("error_object-refusal", put("class", value="generic")),
    ("error_object-refusal", put("exit_code", value=2)),
    ("error_object-refusal", put("exit_code", value="5")),
    ("error_object-refusal", put("exit_code", value=None)),
    ("error_object-refusal", put("retryable", value=True)),
    ("error_object-refusal", put("retryable", value="no")),
    ("error_object-refusal", put("code", value="RIVET_NO_SUCH_CODE")),
    ("error_object-refusal", put("code", value="RIVET_SOURCE_AUTH_FAILED")),
    ("error_object-refusal", put("code", value=None)),
    ("error_object-refusal", put("action", value="Try again.")),
    ("error_object-refusal", put("kind", value="busy")),
    ("error_object-retryable", put("retryable", value=False)),
    ("error_object-crashed", put("exit_code", value=1)),
    ("error_object-crashed", put("retryable", value=False)),
    ("error_object-crashed", put("code", value="RIVET_INTERNAL")),
    ("json_errors-one", drop("failures")),
    ("json_errors-one", drop("code")),
    ("json_errors-one", put("message", value="text")),
    ("json_errors-one", put("exit_class", value="refusal")),
    ("json_errors-one", put("exit_class", value=1)),
    ("json_errors-one", drop("failures", 0, "export")),
    ("json_errors-one", drop("failures", 0, "table")),
    ("json_errors-one", put("failures", 0, "unit", value="orders")),
    ("json_errors-two", lambda line: line.update({**without_unit(line["failures"][1]), "exit_class": 2})),
    ("json_errors-crashed", put("code", value=None)),
    ("json_errors-crashed", put("exit_class", value=2)),
    ("json_errors-mixed", lambda line: line.update({**without_unit(line["failures"][1]), "exit_class": 1})),
    ("run_entry-success", drop("stop_reason")),
    ("run_entry-success", drop("tables")),
    ("run_entry-success", put("stop_reason", value="whatever")),
    ("run_entry-success", put("stop_reason", value="caught_up")),
    ("run_entry-success", put("rows", value="many")),
    ("run_entry-success", put("rows", value=-1)),
    ("run_entry-success", put("rows", value=True)),
    ("run_entry-success", put("duration_ms", value=1.5)),
    ("run_entry-success", put("status", value="interrupted")),
    ("run_entry-success", put("status", value="failed")),
    ("run_entry-success", put("skip_reason", value="up_to_date")),
    ("run_entry-success", put("run_id", value="")),
    ("run_entry-success", put("run_id", value=None)),
    ("run_entry-success", put("mode", value="batch")),
    ("run_entry-success", put("export", value="orders")),
    ("run_entry-success", lambda entry: entry.update(error=golden("error_object-generic"))),
    ("run_entry-success", put("mode", value="cdc")),
    ("run_entry-skipped", put("skip_reason")),
    ("run_entry-failed", put("error")),
    ("run_entry-failed", drop("error", "class")),
    ("run_entry-failed", put("error", "message")),
    ("run_entry-failed", put("error_message", value="another text")),
    ("run_entry-crashed", put("error", "exit_code", value=9)),
    ("aggregate", drop("parallel_mode")),
    ("aggregate", put("total_rows", value=1)),
    ("aggregate", put("failed_count", value=1)),
    ("aggregate", put("started_at", value="yesterday")),
    ("aggregate", put("per_export", value={})),
    ("aggregate", drop("per_export", 0, "bytes_read")),
    ("stored_aggregate", put("per_export", 2, "error", "message", value="row 7")),
    ("stored_aggregate", put("per_export", 2, "error_message", value="row 7")),
    ("unit_facts-failed", put("message")),
    ("unit_facts-failed", put("error_message", value="text")),
    ("unit_facts-failed", drop("retryable")),
    ("unit_facts-success", put("message", value="text")),
    ("unit_facts-success", put("code", value=None)),
    ("unit_facts-success", drop("stop_reason")),
    ("unit_facts-success", put("stop_reason", value="max_events")),
    ("unit_facts-success", put("table", value="orders")),
    ("unit_facts-crashed", put("class", value="generic")),
    ("reconcile", put("partitions", 0, "status", value="ok")),
    ("reconcile", put("summary", "matches", value=3)),
    ("reconcile", drop("depth")),
    ("repair", put("fresh_run", value="no")),
    ("repair", drop("actions", 0, "partition")),
    ("preview-refused", put("error")),
    ("preview-refused", put("verdict", value="no")),
    ("preview-ok", put("units", value=4)),
    ("plan", drop("integrity")),
    ("plan", put("created_at", value="2026-11-30T02:00:00")),
    ("plan", put("diagnostics", "verdict", value="fine")),
    ("metrics-failed", put("error")),
    ("metrics-failed", put("error", "message", value="row 7")),
    ("metrics-complete", put("total_rows", value="350")),
    ("metrics-complete", drop("bytes_read")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change"), WRONG, ids=[f"{i}-{name}" for i, (name, _) in enumerate(WRONG)])
def test_a_wrong_document_is_refused(name: str, change: Callable[[Any], None]) -> None:
    document = copy.deepcopy(golden(name))
    change(document)
    assert document != golden(name)
    assert faults(name.partition("-")[0], document)
