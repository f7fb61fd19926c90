"""``partition_by``: the same modes, cut along days, months or years into Hive folders."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from rivet_dagster.engine.errors import RefusalError, UsageError
from rivet_dagster.engine.names import NULL_KEY, hive_folder
from rivet_dagster.engine.plan import sizing
from rivet_dagster.engine.plan.days import day_of, instant_literal, is_date, is_day
from rivet_dagster.engine.plan.guards import SCAN_BYTES, refuse_scan, require_column, wrong_kind
from rivet_dagster.engine.plan.incremental import cursor_of
from rivet_dagster.engine.plan.pieces import heap_pages, one_statement, window_pieces
from rivet_dagster.engine.plan.plan import Plan, chunk_plan
from rivet_dagster.engine.plan.units import UnitKind, WorkUnit
from rivet_dagster.engine.sources.base import Planner, SourceFacts

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig

MAX_UNITS: Final = 50_000
#: Without an index each folder is a pass over the table: this many bytes are read before it is refused.
PASSES_BYTES: Final = 64 * SCAN_BYTES
#: Pages that are looked at for each cut of a folder.
_PAGES_A_CUT: Final = 4
_KEYS: Final = {
    "day": re.compile(r"(?P<y>[0-9]{4})-(?P<m>[0-9]{2})-(?P<d>[0-9]{2})"),
    "month": re.compile(r"(?P<y>[0-9]{4})-(?P<m>[0-9]{2})"),
    "year": re.compile(r"(?P<y>[0-9]{4})"),
}
_SHOWN: Final = {"day": 10, "month": 7, "year": 4}  # characters of an ISO date


class Folder(Struct, frozen=True):
    """One folder: the rows of a day, month or year in UTC; first None: those without a value.

    cuts: values of the column between which it is read in pieces.
    """

    key: str
    first: date | None
    cuts: tuple[str, ...] = ()


def plan_folders(
    export: ExportConfig,
    planner: Planner,
    base: Callable[[Planner], Plan],
    only: Iterable[str] | None = None,
) -> Plan:
    """The plan that ``base`` makes for the whole source or for a part of it, folder by folder.

    Modes with a cursor are planned once and their rows divided; the others are planned once a folder.
    only: keys of folders, which need not hold a row; None: those that do.
    """
    column = partition_column(export, planner.facts)
    if export.accumulates:
        whole = base(planner)
        if whole.skip_reason is not None:
            return whole
        window = whole.units[0]
        folders = _found(export, planner.within(window))
        if window.kind is UnitKind.WHOLE or len(window_pieces(planner, cursor_of(export), window)) > 1:
            folders = _cut(export, planner, folders)
        walked = window.kind is not UnitKind.WHOLE and cursor_of(export).column in planner.facts.indexed
        if not walked and column not in planner.facts.indexed:
            whole = replace(whole, units=(heap_pages(planner, window),))
        units = _within(whole.units, folders, export, planner.facts)
        cut = tuple(units)
        return replace(
            whole, units=cut, reason=f"{whole.reason}, {_reason(export, folders, planner.facts, cut)}"
        )
    refuse_scan(export, planner.facts, "partition_by", (column,))
    folders = _found(export, planner) if only is None else [folder_of(export, key) for key in only]
    _refuse_passes(export, planner.facts, len(folders))
    if export.mode == "full":
        folders = _cut(export, planner, folders)
    found: list[WorkUnit] = []
    for folder in folders:
        cuts: tuple[WorkUnit, ...] = (WorkUnit(0, UnitKind.WHOLE, ""),)
        if column not in planner.facts.indexed:
            cuts = (heap_pages(planner, cuts[0]),)
        if export.mode != "full":
            scope = next(_within(cuts, [folder], export, planner.facts))
            cuts = base(planner.within(scope)).units
        found.extend(_within(cuts, [folder], export, planner.facts))
        if len(found) > MAX_UNITS:
            raise _too_many(export, f"more than {MAX_UNITS} units")
    numbered = tuple(replace(unit, index=index) for index, unit in enumerate(found))
    return chunk_plan(export.mode, numbered, planner, _reason(export, folders, planner.facts, numbered))


def _found(export: ExportConfig, planner: Planner) -> list[Folder]:
    """What to export; an empty table still shows its columns, in the folder that no day can take."""
    return find_folders(export, planner) or [Folder(NULL_KEY, None)]


def find_folders(export: ExportConfig, planner: Planner) -> list[Folder]:
    """The folders that hold a row now, in order, the one of the rows without a value last.

    Raises RefusalError for infinite values and years outside 1 to 9999, which no folder can name.
    """
    column = export.partition_by
    assert column is not None
    folders = []
    bounds = planner.text_bounds(column)
    if bounds is not None:
        for text in bounds:
            day_of(export, "partition_by", column, text)
        days = planner.spans(column, export.partition_granularity, *bounds)
        if len(days) > MAX_UNITS:
            raise _too_many(export, f"{len(days)} folders")
        folders = [_folder(export, date.fromisoformat(day)) for day in days]
    if column in planner.facts.nullable and planner.has_nulls(column):
        folders.append(Folder(NULL_KEY, None))
    return folders


def folder_of(export: ExportConfig, key: str) -> Folder:
    """The folder that a partition key names. Raises UsageError for anything else."""
    if key == NULL_KEY:
        return Folder(NULL_KEY, None)
    parts = _KEYS[export.partition_granularity].fullmatch(key)
    try:
        if parts is not None:
            found = parts.groupdict()
            return _folder(export, date(int(found["y"]), int(found.get("m", 1)), int(found.get("d", 1))))
    except ValueError:
        pass
    shape = date(2024, 1, 31).isoformat()[: _SHOWN[export.partition_granularity]]
    raise UsageError(
        f"'{key}' is no partition of this export: they are named like {shape}, or {NULL_KEY}",
        code="RIVET_PARTITION_UNKNOWN",
        export=export.name,
    )


def order_of(key: str) -> tuple[bool, str]:
    """Sorts partition keys: time first, rows without a value last."""
    return (key == NULL_KEY, key)


def partition_column(export: ExportConfig, facts: SourceFacts) -> str:
    """``partition_by``, which must hold dates or timestamps."""
    name = export.partition_by
    assert name is not None
    require_column(facts, export.name, "partition_by", name)
    if not is_day(facts, name):
        raise wrong_kind(export, facts, "partition_by", "folders need a date or timestamp column")
    return name


def _folder(export: ExportConfig, first: date) -> Folder:
    return Folder(first.isoformat()[: _SHOWN[export.partition_granularity]], first)


def _within(
    units: Iterable[WorkUnit], folders: Iterable[Folder], export: ExportConfig, facts: SourceFacts
) -> Iterator[WorkUnit]:
    """Each unit once a piece of a folder, and of that piece alone."""
    pieces = (
        (folder, low, high)
        for folder in folders
        for low, high in itertools.pairwise([None, *folder.cuts, None])
    )
    for index, ((folder, low, high), unit) in enumerate(itertools.product(pieces, units)):
        shown = "NULL" if folder.first is None else folder.key
        plain = unit.kind in {UnitKind.WHOLE, UnitKind.PAGES} and "column" not in unit.spec
        ends = (low or shown, high or shown) if plain else (unit.start_key, unit.end_key)
        spec = _spec(folder, export, facts) | ({"gt": low} if low else {}) | ({"le": high} if high else {})
        yield WorkUnit(
            index, unit.kind, folder.key, {**unit.spec, "folder": spec}, *ends, est_rows=unit.est_rows
        )


def _cut(export: ExportConfig, planner: Planner, folders: list[Folder]) -> list[Folder]:
    """The folders with cuts that keep a statement short, by a sample of the table.

    Along an index only: without one each piece would be another pass over the table.
    """
    column, facts = partition_column(export, planner.facts), planner.facts
    granularity = export.partition_granularity
    ranges = (facts.bytes or 0) // sizing.STATEMENT_BYTES if column in facts.indexed else 0
    cuts: dict[str, list[str]] = {folder.key: [] for folder in folders}
    firsts = {folder.key: folder.first for folder in folders}
    for (value,) in planner.key_boundaries((column,), ranges, pages=_PAGES_A_CUT):
        try:
            day = date.fromordinal(day_of(export, "partition_by", column, value))
        except RefusalError:  # of a row that no folder of this plan holds
            continue
        key = _folder(export, day).key
        first = firsts.get(key)
        # nothing of a folder lies past its last date
        ends = is_date(facts, column) and first and _following(day, "day") == _following(first, granularity)
        if first is not None and not ends:
            cuts[key].append(value)
    return [replace(folder, cuts=tuple(dict.fromkeys(cuts[folder.key]))) for folder in folders]


def _spec(folder: Folder, export: ExportConfig, facts: SourceFacts) -> dict[str, Any]:
    column = export.partition_by
    assert column is not None
    if folder.first is None:
        return {"column": column, "ge": None, "lt": None, "name": hive_folder(column, None)}
    return {
        "column": column,
        "ge": instant_literal(facts, column, folder.first.isoformat()),
        "lt": instant_literal(facts, column, _following(folder.first, export.partition_granularity)),
        "name": hive_folder(column, folder.key),
    }


def _following(first: date, granularity: str) -> str:
    """The first day after a day, month or year. The one after the year 9999 is none of Python's dates."""
    try:
        if granularity == "day":
            return date.fromordinal(first.toordinal() + 1).isoformat()
        months = 12 if granularity == "year" else 1
        year, month = divmod(first.year * 12 + first.month - 1 + months, 12)
        return date(year, month + 1, 1).isoformat()
    except ValueError:
        return "10000-01-01"


def _reason(
    export: ExportConfig, folders: list[Folder], facts: SourceFacts, units: Sequence[WorkUnit]
) -> str:
    found = f"{len(folders)} folders, one a {export.partition_granularity} of {export.partition_by}"
    uncut = (
        export.mode == "full"
        and units
        and all(unit.kind is UnitKind.WHOLE and "gt" not in unit.spec["folder"] for unit in units)
    )
    why = one_statement(facts) if uncut else ""
    return f"{found}, each {why}" if why else found


def _refuse_passes(export: ExportConfig, facts: SourceFacts, folders: int) -> None:
    size = facts.bytes or 0
    if export.allow_scan or export.partition_by in facts.indexed or folders * size <= PASSES_BYTES:
        return
    raise RefusalError(
        f"no index begins with {export.partition_by}, so each of {folders} folders reads the whole table of "
        f"{size / sizing.GIB:.1f} GiB; create an index, choose a coarser partition_granularity, or set "
        "`allow_scan: true`, which a table partitioned by this column needs",
        code="RIVET_PLAN_SCAN_REFUSED",
        export=export.name,
        field="partition_by",
    )


def _too_many(export: ExportConfig, what: str) -> RefusalError:
    return RefusalError(
        f"partition_by '{export.partition_by}' would need {what}; choose a coarser partition_granularity, "
        "larger chunks, or mode: full",
        code="RIVET_PLAN_CHUNK_KEY_SPARSE",
        export=export.name,
        field="partition_by",
    )
