"""Compares what was exported with what the source holds now, one work unit at a time.

A count is not enough: a column that came out as NULL, or with other values, has as many rows. So each
column's NULLs, bounds and sum are compared too, where they mean the same on both sides. The report
names columns and statistics that differ; the values themselves stay out of it.

Statistics do not see values that changed rows, or changes that cancel in a sum between its bounds; at
depth ``rows`` a digest of whole rows does. Files that differ from what was read are ``validate``'s to
find: it compares hashes of the cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal

import pyarrow as pa
from msgspec import Struct

from rivet_dagster import __version__
from rivet_dagster.engine.destinations.base import Store
from rivet_dagster.engine.errors import IntegrityError, RivetError
from rivet_dagster.engine.plan.units import Part, UnitKind, WorkUnit
from rivet_dagster.engine.types.aggregates import Aggregates, ColumnAggregate
from rivet_dagster.engine.types.decision import Column
from rivet_dagster.engine.verify.manifest import UnitParts
from rivet_dagster.engine.verify.part_reader import csv_batches, csv_types, parquet_batches

Status = Literal["match", "mismatch", "unknown"]
#: sums: rows, and for each column a few statistics. rows: also a hash of each row as a whole.
ReconcileDepth = Literal["sums", "rows"]

#: Asks the source for a unit's statistics; None when it cannot say.
SourceAggregate = Callable[[WorkUnit], Aggregates | None]
#: Statistics of batches, equal to the source's for equal rows.
BatchAggregate = Callable[[Iterable[pa.RecordBatch], Sequence[Column]], Aggregates]

#: The whole of an export, as a unit that the source can be asked about.
WHOLE_TABLE: Final = WorkUnit(0, UnitKind.WHOLE, "")
_NAMED_COLUMNS: Final = 10


class Whole(Struct, frozen=True):
    """What stands for all units of a run together. unit None: nothing does, for the reason ``why``."""

    unit: WorkUnit | None = WHOLE_TABLE
    why: str = ""


class UnitComparison(Struct, frozen=True):
    """One unit, or the whole run when its units cannot be asked for again (index is then None).

    A folder of ``partition_by`` that no run had has a partition and no index.

    A count of None is not known. columns: name -> statistics that differ.
    """

    index: int | None
    partition: str
    identifier: str
    start_key: str | None
    end_key: str | None
    status: Status
    source_rows: int | None = None
    exported_rows: int | None = None
    note: str | None = None
    columns: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def as_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "kind": "table" if self.index is None and not self.partition else "chunk",
            "identifier": self.identifier,
            "source_count": self.source_rows,
            "exported_count": self.exported_rows,
            "status": self.status,
        }
        if self.note is not None:
            body["note"] = self.note
        if self.columns:
            body["columns"] = [{"name": name, "differs": list(what)} for name, what in self.columns]
        where = {"chunk_index": self.index, "start_key": self.start_key, "end_key": self.end_key}
        return body | where | {"partition": self.partition}


class ReconcileReport(Struct, frozen=True):
    """All comparisons of one run, in plan order. not_hashed: columns outside the hash at depth ``rows``."""

    export_name: str
    run_id: str
    strategy: str
    units: tuple[UnitComparison, ...]
    depth: ReconcileDepth = "sums"
    not_hashed: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        """A mismatch is worse than an unknown, and that than a match. Nothing compared is unknown."""
        found = {unit.status for unit in self.units} or {"unknown"}
        return next(s for s in ("mismatch", "unknown", "match") if s in found)

    def count(self, status: Status) -> int:
        return sum(unit.status == status for unit in self.units)

    def as_json(self) -> dict[str, Any]:
        """The reference's report; keys of ours are additions (RC5)."""
        return {
            "rivet_version": __version__,
            "export_name": self.export_name,
            "run_id": self.run_id,
            "strategy": self.strategy,
            "depth": self.depth,
            "columns_not_hashed": list(self.not_hashed),
            "partitions": [unit.as_json() for unit in self.units],
            "summary": {
                "total_partitions": len(self.units),
                "matches": self.count("match"),
                "mismatches": self.count("mismatch"),
                "unknown": self.count("unknown"),
                "total_source_rows": sum(unit.source_rows or 0 for unit in self.units),
                "total_exported_rows": sum(unit.exported_rows or 0 for unit in self.units),
            },
        }

    def raise_if_mismatch(self) -> None:
        """IntegrityError when a unit differs; what could not be compared does not raise."""
        bad = [unit for unit in self.units if unit.status == "mismatch"]
        if bad:
            first = f"{bad[0].identifier}: {bad[0].note}"
            raise IntegrityError(
                f"{len(bad)} of {len(self.units)} partitions differ from the source, first {first}",
                code="RIVET_RECONCILE_MISMATCH",
                export=self.export_name,
            )


def reconcile_units(
    source_aggregate: SourceAggregate,
    units: Sequence[UnitParts],
    store: Store,
    columns: Sequence[Column],
    *,
    batch_aggregate: BatchAggregate,
    export_name: str,
    run_id: str,
    strategy: str,
    file_format: str = "parquet",
    whole: Whole | None = None,
) -> ReconcileReport:
    """Compare each unit's parts with the source. Reads every part once; memory is bounded by a batch.

    whole: all units together, when the source cannot be asked for single ones again.
    Raises what ``source_aggregate`` raises; what is wrong with a part is a mismatch of its unit.
    """
    destination = _Destination(store, columns, batch_aggregate, file_format)
    if whole is not None:
        parts = [part for entry in units for part in entry.parts]
        compared = [_compare_whole(source_aggregate, whole, parts, destination)]
    else:
        compared = [_compare_unit(source_aggregate, entry, destination) for entry in units]
    return ReconcileReport(export_name, run_id, strategy, tuple(compared))


class _Destination(Struct, frozen=True):
    store: Store
    columns: Sequence[Column]
    aggregate: BatchAggregate
    file_format: str

    def damaged(self, parts: Sequence[Part]) -> str | None:
        """Path of the first part that is not there in its full size."""
        return next((p.path for p in parts if self.store.size(p.path) != p.size_bytes), None)

    def read(self, parts: Sequence[Part]) -> Aggregates:
        """Statistics over all parts. Raises RivetError, OSError or pyarrow's errors."""
        if self.file_format == "parquet":
            return self.aggregate(self._parquet(parts), self.columns)
        typed = csv_types(self.columns)
        exact = [column for column in self.columns if column.name in typed]
        nulls = dict.fromkeys((c.name for c in self.columns if c.name not in typed), 0)
        found = self.aggregate(self._csv(parts, typed, nulls), exact)
        counted = {name: ColumnAggregate({"nulls": count}) for name, count in nulls.items()}
        return Aggregates(found.rows, {**found.columns, **counted}, found.digest)

    def _parquet(self, parts: Sequence[Part]) -> Iterator[pa.RecordBatch]:
        names = [column.name for column in self.columns]
        for part in parts:
            with self.store.open_input(part.path) as file:
                yield from parquet_batches(file, names)

    def _csv(
        self, parts: Sequence[Part], typed: dict[str, pa.DataType], nulls: dict[str, int]
    ) -> Iterator[pa.RecordBatch]:
        """Batches of the typed columns; the others' NULLs are counted into ``nulls`` on the way."""
        types = {column.name: typed.get(column.name, pa.string()) for column in self.columns}
        for part in parts:
            with self.store.open_input(part.path) as file:
                for batch in csv_batches(file, types):
                    for name in nulls:
                        nulls[name] += batch.column(name).null_count
                    yield batch.select(list(typed))


def _compare_unit(ask: SourceAggregate, entry: UnitParts, destination: _Destination) -> UnitComparison:
    unit = entry.unit
    verdict = _verdict(ask, unit, entry.parts, destination)
    return UnitComparison(unit.index, unit.partition, unit.label, unit.start_key, unit.end_key, **verdict)


def _compare_whole(
    ask: SourceAggregate, whole: Whole, parts: Sequence[Part], destination: _Destination
) -> UnitComparison:
    if whole.unit is None:
        rows = sum(part.rows for part in parts)
        verdict: dict[str, Any] = {"status": "unknown", "exported_rows": rows, "note": whole.why}
    else:
        verdict = _verdict(ask, whole.unit, parts, destination)
    return UnitComparison(None, "", "table", None, None, **verdict)


def _verdict(
    ask: SourceAggregate, unit: WorkUnit, parts: Sequence[Part], destination: _Destination
) -> dict[str, Any]:
    try:
        if (name := destination.damaged(parts)) is not None:
            return {"status": "mismatch", "note": f"part {name} is missing or of another size"}
        exported = destination.read(parts)
    except RivetError as error:
        status: Status = "unknown" if error.retryable else "mismatch"
        return {"status": status, "note": f"a part could not be read: {error.code}"}
    except (OSError, pa.ArrowException, KeyError) as error:
        return {"status": "mismatch", "note": f"a part is damaged: {type(error).__name__}"}
    source = ask(unit)
    if source is None:
        note = "the source could not be asked for these rows"
        return {"status": "unknown", "exported_rows": exported.rows, "note": note}
    return _compared(source, exported)


def _compared(source: Aggregates, exported: Aggregates) -> dict[str, Any]:
    """Status and note of two sides; a column that only one side knows is compared by count alone."""
    counts = {"source_rows": source.rows, "exported_rows": exported.rows}
    columns = tuple(
        (name, tuple(what))
        for name, aggregate in source.columns.items()
        if name in exported.columns and (what := aggregate.differences(exported.columns[name]))
    )
    notes = []
    if source.rows != exported.rows:
        difference = source.rows - exported.rows
        notes.append(f"source={source.rows}, exported={exported.rows}, diff={difference:+d}")
    if columns:
        listed = "; ".join(f"{name}: {', '.join(what)}" for name, what in columns[:_NAMED_COLUMNS])
        more = f"; and {len(columns) - _NAMED_COLUMNS} more" if len(columns) > _NAMED_COLUMNS else ""
        notes.append(f"columns that differ: {listed}{more}")
    digests = {source.digest, exported.digest} - {None}
    if not notes and len(digests) > 1:
        notes.append("the sums agree and the rows differ: cells changed places, or changes cancel out")
    if not notes:
        return {"status": "match", **counts}
    return {"status": "mismatch", **counts, "note": "; ".join(notes), "columns": columns}


__all__ = [
    "BatchAggregate",
    "ReconcileDepth",
    "ReconcileReport",
    "SourceAggregate",
    "Status",
    "UnitComparison",
    "Whole",
    "reconcile_units",
]
