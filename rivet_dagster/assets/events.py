"""Metadata of the events that an export logs: numbers as numbers, sums by partition."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import dagster as dg

from rivet_dagster.assets.metadata import place
from rivet_dagster.engine.plan.units import UnitKind
from rivet_dagster.engine.redact import redact
from rivet_dagster.engine.results import run_entry, unit_facts

if TYPE_CHECKING:
    from rivet_dagster.engine.plan.units import WorkUnit
    from rivet_dagster.engine.run.events import RunOutcome, RunPlan, UnitCommitted
    from rivet_dagster.engine.types.decision import Column


_DAY: Final = re.compile(r"\d{4}-\d\d(-\d\d)?")


@dataclass(slots=True)
class Bucket:
    """What is committed of one partition: the sums of its units so far."""

    key: str
    waiting: set[int]
    rows: int = 0
    bytes: int = 0
    files: int = 0
    seconds: float = 0.0
    attempt: int = 0
    units: int = 0
    start_key: str | None = None
    end_key: str | None = None
    first: int = -1
    last: int = -1
    paths: list[str] = field(default_factory=list)

    def add(self, event: UnitCommitted) -> None:
        unit = event.unit
        self.waiting.discard(unit.index)
        self.rows += event.rows
        self.bytes += event.bytes
        self.files += event.files
        self.seconds += event.seconds
        self.attempt = max(self.attempt, event.attempt)
        self.units += 1
        self.paths.extend(part.path for part in event.parts)
        # lines of a grid; other bounds are values of rows, which Dagster shall not keep
        start, end = (bound if _is_line(unit, bound) else None for bound in (unit.start_key, unit.end_key))
        if self.first < 0 or unit.index < self.first:
            self.first, self.start_key = unit.index, start
        if unit.index > self.last:
            self.last, self.end_key = unit.index, end

    @property
    def complete(self) -> bool:
        return not self.waiting

    def metadata(self, *, run_id: str, prefix_uri: str) -> dict[str, Any]:
        """Of the partition's materialization. seconds: summed over units, not wall time."""
        uri = prefix_uri
        below = self.paths[0] if len(self.paths) == 1 else posixpath.commonpath(self.paths or [""])
        if below:  # the file, or the folder that all of them lie in
            uri = f"{prefix_uri.rstrip('/')}/{quote(below, safe='/=')}"
        metadata: dict[str, Any] = {
            "dagster/partition_row_count": self.rows,
            "dagster/uri": uri,
            "rows": self.rows,
            "bytes": self.bytes,
            "files": self.files,
            "units": self.units,
            "seconds": round(self.seconds, 3),
            "rows_per_second": round(self.rows / self.seconds, 1) if self.seconds > 0 else 0.0,
            "attempt": self.attempt,
            "run_id": run_id,
        }
        if self.start_key is not None or self.end_key is not None:
            metadata["key_range"] = f"[{self.start_key or ''}..{self.end_key or ''}]"
        return metadata


def _is_line(unit: WorkUnit, bound: str | None) -> bool:
    """Of a grid, of pages or days; a key or a moment is a value."""
    valued = unit.kind in (UnitKind.KEY, UnitKind.SPAN, UnitKind.WINDOW)
    return bound is not None and (not valued or _DAY.fullmatch(bound) is not None)


class Tally:
    """Turns committed units into finished partitions. A partition is finished once, with its last unit."""

    def __init__(self, units: Iterable[WorkUnit]) -> None:
        self._buckets: dict[str, Bucket] = {}
        self._open: set[int] = set()
        for unit in units:
            bucket = self._buckets.setdefault(unit.partition, Bucket(unit.partition, set()))
            bucket.waiting.add(unit.index)
            self._open.add(unit.index)

    def committed(self, event: UnitCommitted) -> Bucket | None:
        """The bucket if ``event`` finished it, else None. A unit reported twice counts once."""
        if event.unit.index not in self._open:
            return None
        self._open.discard(event.unit.index)
        bucket = self._buckets[event.unit.partition]
        bucket.add(event)
        return bucket if bucket.complete else None

    @property
    def all_committed(self) -> bool:
        return not self._open

    def incomplete(self, keys: Iterable[str]) -> list[str]:
        """Those of ``keys`` that are not finished, in the order given."""
        return [key for key in keys if key not in self._buckets or not self._buckets[key].complete]


def column_schema(columns: Sequence[Column]) -> dg.TableSchema:
    """Columns as the catalog tab shows them: the file's type, the source's in the description."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=column.name,
                type=str(column.arrow),
                description=f"source type {column.native_type}, fidelity {column.fidelity}",
                constraints=dg.TableColumnConstraints(nullable=not column.required),
            )
            for column in columns
        ]
    )


def table_metadata(
    outcome: RunOutcome, plan: RunPlan, lineage: dg.TableColumnLineage | None = None
) -> dict[str, Any]:
    """Of the table's materialization. plan: the one of this session, of all units of the run."""
    metadata: dict[str, Any] = {
        "dagster/row_count": outcome.rows,
        "dagster/column_schema": column_schema(outcome.columns),
        "dagster/uri": outcome.prefix_uri,
        "folder": place(outcome.prefix_uri),
        **unit_facts(run_entry(outcome)),
        "bytes": outcome.bytes,
        "seconds": round(outcome.seconds, 3),
        "rows_per_second": round(outcome.rows_per_second, 1),
        "strategy": plan.strategy,
        "reason": redact(plan.reason),
        "units": outcome.units,
        "partitions": len(plan.partitions),
        "retries": outcome.retries,
    }
    if lineage is not None:
        metadata["dagster/column_lineage"] = lineage
    if plan.consistency is not None:
        metadata["consistency"] = plan.consistency
    if nulled := sum(outcome.details.get("nulled", {}).values()):
        metadata["values_nulled"] = nulled
    for what, count in outcome.details.get("folder", {}).items():
        if count:
            metadata[f"files_{what}"] = count
    if outcome.manifest_uri:
        metadata["manifest"] = place(outcome.manifest_uri)
    return metadata


def observation_metadata(outcome: RunOutcome) -> dict[str, Any]:
    """Of the observation that a skipped run leaves: nothing new was at the source."""
    return {
        **unit_facts(run_entry(outcome)),
        "skip_reason": outcome.skip_reason or "up_to_date",
        "seconds": round(outcome.seconds, 3),
        "dagster/uri": outcome.prefix_uri,
    }
