"""The server does what it was asked for, the answer gets lost: asked again, nothing happens twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rivet_dagster.engine.errors import BusyError
from rivet_dagster.engine.state.location import StateLocation
from rivet_dagster.engine.state.models import (
    Boundary,
    CursorRow,
    JournalEvent,
    Lease,
    RunAggregate,
    RunFinish,
)
from rivet_dagster.engine.state.patience import Patience
from rivet_dagster.engine.state.store import StateStore
from tests.live.state.helpers import (
    KEY,
    TRANSIENT,
    begin,
    claim,
    commit,
    commit_all,
    header,
    make_units,
)
from tests.services.lost_answer import LosingRelay, losing_relay
from tests.services.postgres import TestDatabase


@dataclass
class Rig:
    """plain: the state as it is. patient: through the relay, asked again."""

    plain: StateStore
    patient: StateStore
    relay: LosingRelay

    def contents(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row, without what tells the time."""
        found = {}
        with self.plain._db.single() as connection:
            for table in ("chunk_run", "chunk_task", "file_log", "run_journal", "run_aggregate"):
                rows = connection.rows(f"SELECT * FROM {table}")
                found[table] = sorted(
                    tuple(str(v) for k, v in row._asdict().items() if k not in _VARYING) for row in rows
                )
            for table in ("export_metrics", "export_state", "export_schema", "export_progression"):
                found[table] = [(connection.scalar(f"SELECT count(*) FROM {table}"),)]
        return found


_VARYING = frozenset({"id", "seq", "at", "created_at", "updated_at", "retry_at", "claim_expires_at"})


@pytest.fixture
def rig(db: TestDatabase, tmp_path: Path) -> Iterator[Rig]:
    with (
        losing_relay(db.server.port) as relay,
        StateStore.open(StateLocation.parse(db.url, tmp_path)) as plain,
        StateStore.open(
            StateLocation.parse(db.url.replace(f":{db.server.port}/", f":{relay.port}/"), tmp_path)
        ) as through,
    ):
        yield Rig(plain, through.patient(Patience(20)), relay)


FAILED = RunFinish("failed", error=TRANSIENT, events=(JournalEvent("RunFailed", {"code": "X"}),))
DONE = RunFinish(
    "completed",
    metrics={"total_rows": 10},
    cursor=CursorRow("7", "id", "int8", "s", "r1"),
    schema_json="[]",
    committed=Boundary("cursor", "r1", cursor="7"),
    events=(JournalEvent("RunCompleted", {}),),
)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUM = RunAggregate("agg_1", NOW, NOW, "rivet.yaml", "sequential", 1, 1, 0, 0, 1, 1, 1, ())

EVENT = JournalEvent("Something", {"n": 1})

Change = Callable[[StateStore, Lease], object]
CHANGES: dict[str, Change] = {
    "begin": lambda s, lease: s.begin_run(header("r2", "others"), make_units(2), lease, events=[EVENT]),
    "journal": lambda s, lease: s.add_journal("r1", lease, [EVENT]),
    "invite": lambda s, lease: s.invite("r1", lease, "snap"),
    "failure": lambda s, lease: s.record_failure("r1", lease, FAILED),
    "interrupt": lambda s, lease: s.interrupt_run("r1", lease, events=[EVENT]),
    "reset": lambda s, lease: s.reset_running("r1", lease),
    "commit": lambda s, lease: commit(s, claim(s, lease), lease, [EVENT]),
    "fail": lambda s, lease: s.fail_unit(
        claim(s, lease), TRANSIENT, lease, final=False, counted=False, events=[EVENT]
    ),
    "aggregate": lambda s, _lease: s.record_aggregate(SUM),
    "finish": lambda s, lease: (commit_all(s, lease), s.finish_run("r1", lease, DONE)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_whose_answer_was_lost_is_made_once(rig: Rig, name: str) -> None:
    lease = begin(rig.plain, 1)
    relay = rig.relay
    if name == "finish":
        commit_all(rig.plain, lease)
    relay.lose("COMMIT", "COMMIT")
    CHANGES[name](rig.patient, lease)
    assert relay.lost == 2, "it was not asked again"
    once = rig.contents()
    with rig.plain._db.transaction() as connection:
        for table in once:
            connection.execute(f"TRUNCATE {table} CASCADE")
        connection.execute("TRUNCATE state_lease")
    lease = begin(rig.plain, 1)
    CHANGES[name](rig.plain, lease)
    assert rig.contents() == once


def test_a_lease_whose_answer_was_lost_is_taken_over_by_who_asked(rig: Rig) -> None:
    rig.relay.lose("COMMIT", "COMMIT")
    lease = rig.patient.acquire(KEY, "t", wait_s=0)
    assert (rig.relay.lost, lease.token) == (2, 3)
    rig.plain.confirm(lease)
    found = rig.plain.holder(KEY)
    assert found is not None
    assert found.expires_in_s > lease.ttl_s - 5, "it has all of its time"


def test_a_lease_of_the_same_name_that_another_took_meanwhile_is_respected(rig: Rig) -> None:
    """The first COMMIT is not heard of, the lease passes to a thread of the same name before the second."""
    first = rig.plain.acquire(KEY, "t", wait_s=0, ttl_s=0.05)
    tries: set[tuple[int, int]] = {(first.token, 1)}
    second = rig.plain.acquire(KEY, "t", wait_s=5)
    outcome = rig.patient._take(KEY, "t", 30.0, tries)
    assert not isinstance(outcome, Lease)
    assert outcome.token == second.token
    with pytest.raises(BusyError):
        rig.patient.acquire(KEY, "t", wait_s=0)


@pytest.mark.parametrize("statement", ["UPDATE state_lease SET expires_at", "SELECT lease_key"])
def test_a_renewal_and_a_read_are_asked_again(rig: Rig, statement: str) -> None:
    lease = begin(rig.plain, 1)
    rig.relay.lose(statement)
    rig.patient.renew(lease)
    assert rig.patient.holder(KEY) is not None
    assert rig.relay.lost == 1
