"""What to run again after a reconcile: derived from its report and from nothing else (RR1).

A repair plan names units. Executing it runs them again in a new run that carries the other units'
parts, so that a reader of the manifest never sees both versions of a row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from rivet_dagster import __version__
from rivet_dagster.engine.errors import UsageError
from rivet_dagster.engine.verify.reconcile import ReconcileReport, UnitComparison

_IDENTIFIER: Final = re.compile(r"chunk (?P<index>\d{1,9}) \[(?P<start>-?\d+)\.\.(?P<end>-?\d+)\]\Z")
_STATUSES: Final = frozenset({"match", "mismatch", "unknown"})


class RepairAction(Struct, frozen=True):
    """One unit to run again. partition: the Dagster partition that it belongs to, "" when not known.

    chunk_index: None for a folder of ``partition_by`` that no run had.
    """

    chunk_index: int | None
    start_key: str | None
    end_key: str | None
    reason: str
    partition: str = ""

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__struct_fields__}


class RepairPlan(Struct, frozen=True):
    """actions: units to run again. skipped: (identifier, why) of what differs and no unit stands for.

    fresh_run: something differs that only a new pass over the whole table can correct.
    """

    export_name: str
    reconcile_run_id: str
    strategy: str
    actions: tuple[RepairAction, ...]
    skipped: tuple[tuple[str, str], ...]
    fresh_run: bool

    @property
    def partitions(self) -> tuple[str, ...]:
        """Partitions of the actions, each once, in plan order."""
        return tuple(dict.fromkeys(action.partition for action in self.actions))

    def as_json(self) -> dict[str, Any]:
        return {
            "rivet_version": __version__,
            "export_name": self.export_name,
            "reconcile_run_id": self.reconcile_run_id,
            "strategy": self.strategy,
            "actions": [action.as_json() for action in self.actions],
            "skipped": [{"identifier": name, "reason": reason} for name, reason in self.skipped],
            "fresh_run": self.fresh_run,
        }


def plan_repair(report: ReconcileReport, *, include_unknown: bool = False) -> RepairPlan:
    """Units that differ; with ``include_unknown`` also those that could not be compared."""
    actions: list[RepairAction] = []
    skipped: list[tuple[str, str]] = []
    fresh = False
    for unit in report.units:
        reason = unit.note or unit.status
        wrong = unit.status == "mismatch"
        if unit.status == "match":
            continue
        if not (wrong or include_unknown):
            skipped.append((unit.identifier, f"not compared: {reason}"))
        elif unit.index is None and not unit.partition:
            fresh = fresh or wrong
            skipped.append((unit.identifier, f"run the export afresh: {reason}"))
        else:
            actions.append(RepairAction(unit.index, unit.start_key, unit.end_key, reason, unit.partition))
    return RepairPlan(
        report.export_name, report.run_id, report.strategy, tuple(actions), tuple(skipped), fresh
    )


def read_report(body: object) -> ReconcileReport:
    """A reconcile report from its JSON, ours or the reference's. Raises UsageError for anything else.

    A partition whose identifier no unit can be read from keeps index None, so that a plan lists it
    as skipped instead of guessing (RR6).
    """
    root = _mapping(body, "the report")
    partitions = root.get("partitions")
    if not isinstance(partitions, list):
        raise UsageError("the report has no list of partitions")
    return ReconcileReport(
        _text(root, "export_name"),
        _text(root, "run_id"),
        _text(root, "strategy"),
        tuple(_comparison(_mapping(item, "a partition of the report")) for item in partitions),
    )


def _comparison(item: Mapping[str, Any]) -> UnitComparison:
    identifier, status = _text(item, "identifier"), _text(item, "status")
    if status not in _STATUSES:
        raise UsageError("a partition of the report has an unknown status")
    index, start, end = _unit_of(item, identifier)
    note = item.get("note")
    return UnitComparison(
        index=index,
        partition=item["partition"] if isinstance(item.get("partition"), str) else "",
        identifier=identifier,
        start_key=start,
        end_key=end,
        status=status,  # type: ignore[arg-type]  # one of _STATUSES
        source_rows=_count(item, "source_count"),
        exported_rows=_count(item, "exported_count"),
        note=note if isinstance(note, str) else None,
    )


def _unit_of(item: Mapping[str, Any], identifier: str) -> tuple[int | None, str | None, str | None]:
    index, start, end = (item.get(key) for key in ("chunk_index", "start_key", "end_key"))
    if isinstance(index, int) and not isinstance(index, bool) and index >= 0:
        return index, start if isinstance(start, str) else None, end if isinstance(end, str) else None
    found = _IDENTIFIER.match(identifier)
    return (int(found["index"]), found["start"], found["end"]) if found else (None, None, None)


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{what} is not a JSON object")
    return value


def _text(node: Mapping[str, Any], key: str) -> str:
    value = node.get(key)
    if not isinstance(value, str):
        raise UsageError(f"the report's '{key}' is missing or not a text")
    return value


def _count(node: Mapping[str, Any], key: str) -> int | None:
    value = node.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


__all__ = ["RepairAction", "RepairPlan", "plan_repair", "read_report"]
