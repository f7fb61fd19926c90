"""A plan in a file: made once, looked at, and applied later exactly as it was (PA1 to PA10).

Units that mean the same in any snapshot are kept and run as they are. Page ranges mean something only
inside the snapshot that they were cut in, so they are cut again when the plan is applied; what else the
plan says is held all the same. The file holds no credential: the config names where those are.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from rivet_dagster import __version__
from rivet_dagster.engine.errors import InternalError, RefusalError, SchemaDriftError, UsageError
from rivet_dagster.engine.plan.plan import CursorWindow, Plan
from rivet_dagster.engine.plan.units import UnitKind, WorkUnit
from rivet_dagster.engine.run.drift import schema_drift
from rivet_dagster.engine.run.events import AlreadyAppliedError
from rivet_dagster.engine.run.options import plan_hash
from rivet_dagster.engine.run.preview import Preview, preview
from rivet_dagster.engine.state.models import JournalEvent
from rivet_dagster.engine.types.decision import Column

if TYPE_CHECKING:
    from rivet_dagster.engine.run.engine import Engine
    from rivet_dagster.engine.state.store import StateStore

KIND: Final = "rivet-dagster plan"
VERSION: Final = 1
APPLIED: Final = "PlanApplied"
AGED: Final = timedelta(hours=1)
EXPIRED: Final = timedelta(hours=24)
_LARGEST: Final = 256 << 20

#: Kinds whose spec means the same rows whenever it is read.
_LASTING: Final = frozenset({UnitKind.RANGE, UnitKind.KEY, UnitKind.SPAN, UnitKind.NULLS, UnitKind.WINDOW})


class SealedPlan(Struct, frozen=True):
    """What a plan file says. state: where its cursor was read. cuts_again: its units are not kept.

    forced: a person wants it applied though it is old, or though a run was made since.
    """

    plan_id: str
    export: str
    config_path: str
    created_at: datetime
    plan_hash: str
    prefix: str
    state: str
    columns_json: str
    plan: Plan
    cuts_again: bool
    forced: bool = False

    @property
    def event(self) -> JournalEvent:
        """What the journal of a run of this plan begins with."""
        return JournalEvent(APPLIED, {"plan_id": self.plan_id})

    def age_note(self, now: datetime) -> str | None:
        """A line for a plan that is not fresh. Raises RIVET_PLAN_STALE for an expired one (PA3)."""
        age = now - self.created_at
        if age < AGED:
            return None
        hours = age.total_seconds() / 3600
        if age >= EXPIRED and not self.forced:
            raise RefusalError(
                f"plan {self.plan_id} is {hours:.0f} hours old", code="RIVET_PLAN_STALE", export=self.export
            )
        return f"the plan is {hours:.1f} hours old: what came to the source since is not in it"

    def require_applicable(self, store: StateStore, found: str, columns: Sequence[Column]) -> None:
        """Refuse a plan whose columns, config (its hash is ``found``) or state is not what it was made for.

        Raises AlreadyAppliedError first when a run of it is complete.
        """
        self.refuse_applied(store)
        state = store.location.display
        if changes := schema_drift(self.columns_json, columns).schema_lines:
            raise SchemaDriftError(f"since the plan was made: {'; '.join(changes)}", export=self.export)
        if state != self.state:
            raise self._drift(f"it was made over the state {self.state}, this is {state}")
        if found != self.plan_hash:
            raise self._drift("the export, its source or its destination is another than it was made for")
        last = store.latest_run(self.export)
        since = last is not None and last.created_at is not None and last.created_at > self.created_at
        if since and not self.forced:
            raise self._drift("a run was made since: its files are newer than the plan")

    def refuse_applied(self, state: StateStore) -> None:
        """Raise AlreadyAppliedError once a run of it is complete."""
        for run_id, status in state.runs_with_event(self.export, self.event):
            if status == "completed":
                raise AlreadyAppliedError(run_id, "applied the plan")

    def began(self, state: StateStore, run_id: str) -> bool:
        """Whether ``run_id`` is a run of this plan."""
        return any(run_id == mine for mine, _ in state.runs_with_event(self.export, self.event))

    def planned(self, watermark: str | None, again: Callable[[], Plan]) -> Plan:
        """The plan to run. ``again`` plans afresh, under the snapshot that is read.

        Raises RIVET_PLAN_DRIFT when the cursor has moved: its rows would be read twice (PA4).
        """
        cursor = self.plan.cursor
        if cursor is not None and cursor.low != watermark:
            raise self._drift("the cursor has moved since: another run was made in between")
        if not self.cuts_again:
            return self.plan
        plan = again()
        if (plan.strategy, plan.cursor and plan.cursor.low) != (self.plan.strategy, cursor and cursor.low):
            raise self._drift(f"it would be read as {plan.strategy} now, not as {self.plan.strategy}")
        return plan

    def _drift(self, what: str) -> RefusalError:
        return RefusalError(f"plan {self.plan_id}: {what}", code="RIVET_PLAN_DRIFT", export=self.export)


def seal(engine: Engine, name: str, *, now: datetime | None = None) -> tuple[str, Preview]:
    """The text of a plan file for export ``name``, and what is in it for people."""
    seen = preview(engine, name)
    plan, facts = seen.plan, seen.facts
    at = now or datetime.now(UTC)
    identity = engine.config.source.identity()
    again = _cuts_again(plan)
    if not again:
        _require_order(plan.units)
    body = {
        "artifact": KIND,
        "version": VERSION,
        "rivet_dagster_version": __version__,
        "plan_id": f"plan_{name}_{at:%Y%m%dT%H%M%S}_{secrets.token_hex(4)}",
        "created_at": at.isoformat(),
        "expires_at": (at + EXPIRED).isoformat(),
        "export_name": name,
        "config_path": str(engine.config.path),
        "source": identity,
        "state": engine.state_location.display,
        "prefix": engine.prefix(seen.export),
        "plan_hash": plan_hash(seen.export, facts, identity),
        "strategy": plan.strategy,
        "consistency": plan.consistency,
        "resumable": plan.resumable,
        "reason": plan.reason,
        "skip_reason": plan.skip_reason,
        "est_rows": facts.est_rows,
        "columns": [column.as_json() for column in facts.columns],
        "cursor": plan.cursor and {f: getattr(plan.cursor, f) for f in CursorWindow.__struct_fields__},
        "units": None if again else [_unit_json(unit) for unit in plan.units],
        "diagnostics": {
            "verdict": seen.verdict,
            "warnings": list(seen.warnings),
            "notes": list(plan.notes),
            "unit_count": len(plan.units),
        },
    }
    return json.dumps({**body, "integrity": _digest(body)}, indent=1, ensure_ascii=False) + "\n", seen


def read_plan(path: Path) -> SealedPlan:
    """The plan in a file. Raises RIVET_PLAN_INVALID for what is none, RIVET_PLAN_TAMPERED if edited."""
    try:
        if path.stat().st_size > _LARGEST:
            raise _invalid(path, "it is too large")
        body = json.loads(path.read_bytes())
    except OSError as error:
        raise _invalid(path, f"it cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise _invalid(path, "it is not JSON") from None
    if not isinstance(body, dict) or body.get("artifact") != KIND:
        raise _invalid(path, "it is no plan of rivet-dagster")
    if body.get("version") != VERSION:
        raise _invalid(path, f"its version is {body.get('version')}, this program reads {VERSION}")
    if body.pop("integrity", None) != _digest(body):
        raise RefusalError(
            f"{path}: the plan is not what it was when it was sealed", code="RIVET_PLAN_TAMPERED"
        )
    return _sealed(body)


def _sealed(body: Mapping[str, Any]) -> SealedPlan:
    units = body["units"]
    return SealedPlan(
        plan_id=body["plan_id"],
        export=body["export_name"],
        config_path=body["config_path"],
        created_at=datetime.fromisoformat(body["created_at"]),
        plan_hash=body["plan_hash"],
        prefix=body["prefix"],
        state=body["state"],
        columns_json=json.dumps(body["columns"]),
        plan=Plan(
            body["strategy"],
            tuple(WorkUnit(**{**unit, "kind": UnitKind(unit["kind"])}) for unit in units or ()),
            body["consistency"],
            body["resumable"],
            f"{body['reason']}, sealed in {body['plan_id']}",
            body["cursor"] and CursorWindow(**body["cursor"]),
            body["skip_reason"],
            tuple(body["diagnostics"]["notes"]),
        ),
        cuts_again=units is None,
    )


def _cuts_again(plan: Plan) -> bool:
    return any(unit.kind not in _LASTING or "versions" in unit.spec for unit in plan.units)


def _require_order(units: Sequence[WorkUnit]) -> None:
    """Ranges follow each other without gap and overlap (PA5)."""
    ranges = [unit.spec for unit in units if unit.kind is not UnitKind.NULLS]
    for left, right in itertools.pairwise(ranges):
        if "gt" in right:
            joined = right["gt"] == left.get("le")
        elif "lt" in left:
            joined = right["ge"] == left["lt"]
        else:
            joined = int(right["ge"]) == int(left["le"]) + 1
        if not joined:
            raise InternalError(f"planned ranges do not join: {left} and {right}")


def _unit_json(unit: WorkUnit) -> dict[str, Any]:
    found = {name: getattr(unit, name) for name in WorkUnit.__struct_fields__}
    return {**found, "kind": str(unit.kind), "spec": dict(unit.spec)}


def _digest(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _invalid(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} cannot be applied: {why}", code="RIVET_PLAN_INVALID")
