"""Which keys of an export need, exclude or belong to each other. One function a subject."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Final

from rivet_dagster.config.base import Context, Problem, Section, unsafe_name
from rivet_dagster.config.column_types import type_fault
from rivet_dagster.config.identifiers import column_key, table_parts
from rivet_dagster.config.sizes import parse_duration, parse_size
from rivet_dagster.config.stdout import stdout_problems

if TYPE_CHECKING:
    from rivet_dagster.config.export import ExportConfig

#: Key -> the value that means "not used"; any other value needs ``mode: chunked``.
_CHUNK_KEYS: Final = {
    "chunk_column": None,
    "chunk_by_key": None,
    "chunk_count": None,
    "chunk_by_days": None,
    "chunk_size_memory_mb": None,
    "chunk_max_attempts": None,
    "chunk_checkpoint": False,
    "chunk_dense": False,
    "keyset_incremental": False,
    "chunk_size": 100_000,
}
#: What separates or escapes in ``column=value`` and in the globs that read it.
_NO_HIVE_KEY: Final = re.compile(r"[=%{}*?\[\]]")
_EXCLUDE: Final = (
    ("chunk_count", "chunk_dense"),
    ("chunk_count", "chunk_by_days"),
    ("chunk_by_days", "chunk_dense"),
    ("chunk_size", "chunk_size_memory_mb"),
    ("chunk_column", "chunk_by_key"),
    ("chunk_count", "chunk_by_key"),
    ("chunk_by_days", "chunk_by_key"),
    ("chunk_dense", "chunk_by_key"),
    ("partition_by", "chunk_by_key"),
)


def export_problems(export: ExportConfig, context: Context) -> Iterator[Problem]:
    yield from _name(export)
    yield from _relation(export, context)
    yield from _incremental(export)
    yield from _chunk_place(export)
    if export.mode == "chunked":
        yield from _chunked(export)
    yield from _consistency(export)
    yield from _time_window(export)
    yield from _partition(export)
    yield from stdout_problems(export)
    yield from _cdc(export)
    yield from _format(export)
    yield from _columns(export)
    yield from _row_hash(export)
    for key in ("settle", "parquet", "destination", "meta_columns", "quality", "tuning", "load", "dagster"):
        section: Section | None = getattr(export, key)
        if section is not None:
            yield from (p.under(key) for p in section.problems(context))


def _name(export: ExportConfig) -> Iterator[Problem]:
    if reason := unsafe_name(export.name):
        yield Problem(("name",), f"the name {reason}", "use letters, digits, `_`, `-` and `.`")


def _relation(export: ExportConfig, context: Context) -> Iterator[Problem]:
    forms = [key for key in ("query", "query_file", "table", "tables") if export.given(key)]
    if not forms:
        yield Problem((), "the export reads nothing", "set `table`, `query` or `query_file`")
    elif len(forms) > 1:
        named = " and ".join(f"`{key}`" for key in forms)
        yield Problem((forms[1],), f"{named} are set", "keep exactly one of them")
    if export.table is not None:
        yield from _table(export.table, ("table",))
    if export.tables is not None:
        yield from _tables(export)
    if export.query is not None and not export.query.strip().rstrip(";"):
        yield Problem(("query",), "the query is empty", "write a SELECT")
    if export.query_file is not None:
        yield from _query_file(export.query_file, context)


#: How a table is named; a YAML value with double quotes inside stands in single quotes.
TABLE_FORM: Final = "`schema.table`, or quote parts as in SQL: `'public.\"Odd.Name\"'`"


def _table(name: str, path: tuple[str | int, ...]) -> Iterator[Problem]:
    try:
        table_parts(name)
    except ValueError as fault:
        yield Problem(path, str(fault), f"write {TABLE_FORM}")


def _tables(export: ExportConfig) -> Iterator[Problem]:
    tables = export.tables or ()
    if export.mode != "cdc":
        yield Problem(("tables",), "`tables` works only with `mode: cdc`", "use `table`, one export for each")
    if not tables:
        yield Problem(("tables",), "the list of tables is empty", "name at least one table")
    seen: set[tuple[str, ...]] = set()
    for at, name in enumerate(tables):
        faults = list(_table(name, ("tables", at)))
        yield from faults
        if faults:
            continue
        if (parts := table_parts(name)) in seen:
            yield Problem(("tables", at), f"the table {name} stands twice", "name every table once")
        seen.add(parts)


def _query_file(name: str, context: Context) -> Iterator[Problem]:
    path, fix = ("query_file",), "put the file beside rivet.yaml and give its relative path"
    if Path(name).is_absolute() or PureWindowsPath(name).is_absolute():
        yield Problem(path, "`query_file` is an absolute path", fix)
    elif ".." in Path(name).parts:
        yield Problem(path, "`query_file` holds `..`", fix)
    else:
        base = os.path.realpath(context.dir)
        target = os.path.realpath(os.path.join(base, name))
        if os.path.commonpath((base, target)) != base:
            yield Problem(path, "`query_file` leads out of the config's folder", fix)
        elif not os.path.isfile(target) or not os.access(target, os.R_OK):
            yield Problem(path, f"the file {name} is not there or not readable", fix)


def _incremental(export: ExportConfig) -> Iterator[Problem]:
    fallback, coalesce = export.given("cursor_fallback_column"), export.incremental_cursor_mode == "coalesce"
    if export.mode == "incremental" and not export.cursor_column:
        yield Problem(("cursor_column",), "`mode: incremental` needs `cursor_column`", "add `cursor_column:`")
    if coalesce and not fallback:
        yield Problem(
            ("incremental_cursor_mode",),
            "`coalesce` needs `cursor_fallback_column`",
            "add `cursor_fallback_column:`",
        )
    if fallback and not coalesce:
        yield Problem(
            ("cursor_fallback_column",),
            "`cursor_fallback_column` works only with `incremental_cursor_mode: coalesce`",
            "add the mode, or remove the column",
        )
    if export.late_rows is not None:
        yield from _late_rows(export, export.late_rows)
    if export.given("open_transactions"):
        if not export.accumulates:
            yield from _unused(export, ("open_transactions",), "mode: incremental")
        elif export.settle is not None or export.late_rows is not None:
            yield Problem(
                ("open_transactions",),
                "`settle` and `late_rows` see to open transactions themselves",
                "remove `open_transactions`",
            )
    if export.mode != "incremental":
        yield from _unused(export, ("cursor_column", "settle", "late_rows"), "mode: incremental")
        if coalesce and fallback:
            yield from _unused(export, ("incremental_cursor_mode",), "mode: incremental")


def _late_rows(export: ExportConfig, text: str) -> Iterator[Problem]:
    path = ("late_rows",)
    try:
        parse_duration(text)
    except ValueError:
        yield Problem(path, "`late_rows` is not a duration", "write a number and s, m, h or d, e.g. `1d`")
    if export.settle is not None:
        yield Problem(path, "`settle` and `late_rows` exclude each other", "keep one of the two")
    if export.table is None and export.mode == "incremental":
        yield Problem(path, "`late_rows` needs `table`", "use `table`, or `settle`")


def _unused(export: ExportConfig, keys: tuple[str, ...], where: str) -> Iterator[Problem]:
    for key in keys:
        if export.given(key):
            yield Problem(
                (key,), f"`{key}` has no effect without `{where}`", f"remove `{key}`, or set `{where}`"
            )


def _chunk_place(export: ExportConfig) -> Iterator[Problem]:
    if export.mode == "chunked":
        return
    for key, unused in _CHUNK_KEYS.items():
        if key == "chunk_checkpoint" and export.partitions_full:
            continue  # its folders are units, and can be continued
        if getattr(export, key) != unused:
            yield Problem(
                (key,),
                f"`{key}` has no effect in `mode: {export.mode}`",
                f"set `mode: chunked`, or remove `{key}`",
            )


def _chunked(export: ExportConfig) -> Iterator[Problem]:
    used = {key for key, unused in _CHUNK_KEYS.items() if getattr(export, key) != unused}
    used |= {key for key in ("chunk_size", "partition_by") if export.given(key)}
    for first, second in _EXCLUDE:
        if first in used and second in used:
            yield Problem((second,), f"`{first}` and `{second}` exclude each other", "keep one of the two")
    if not used & {"chunk_column", "chunk_by_key"} and export.table is None:
        yield Problem(
            ("mode",),
            "`mode: chunked` does not say what to chunk by",
            "set `chunk_column` or `chunk_by_key`, or use `table` so that the primary key can be found",
        )
    for key in ("chunk_by_key", "chunk_size_memory_mb"):
        if key in used and export.table is None:
            yield Problem(
                (key,), f"`{key}` needs `table`: a query has no index or size to look up", "use `table`"
            )
    yield from _key_list(export)
    if export.chunk_by_days is not None and export.chunk_column is None:
        yield Problem(("chunk_by_days",), "`chunk_by_days` needs `chunk_column`", "add `chunk_column:`")
    if export.chunk_by_days is not None:
        for key in ("chunk_size", "chunk_size_memory_mb"):
            if key in used:
                yield Problem((key,), f"`{key}` has no effect with `chunk_by_days`", f"remove `{key}`")
    if export.keyset_incremental and export.chunk_by_key is None:
        yield Problem(
            ("keyset_incremental",), "`keyset_incremental` needs `chunk_by_key`", "add `chunk_by_key:`"
        )
    if export.given("chunk_max_attempts") and not export.chunk_checkpoint:
        yield Problem(
            ("chunk_max_attempts",),
            "`chunk_max_attempts` needs `chunk_checkpoint: true`",
            "add `chunk_checkpoint: true`",
        )


def _key_list(export: ExportConfig) -> Iterator[Problem]:
    key = export.chunk_by_key
    if key is None or isinstance(key, str):
        return
    path = ("chunk_by_key",)
    if not key or not all(name.strip() for name in key):
        yield Problem(path, "the list of key columns is empty or holds an empty name", "name the columns")
    elif len(set(key)) < len(key):
        yield Problem(path, "a key column stands twice in the list", "name every column once")


def _consistency(export: ExportConfig) -> Iterator[Problem]:
    if export.consistency == "chunk" and export.mode != "chunked" and not export.partitions_full:
        yield Problem(
            ("consistency",),
            f"`mode: {export.mode}` reads one snapshot",
            "remove `consistency`, or set `mode: chunked`",
        )
    if export.consistency == "snapshot" and export.chunk_checkpoint:
        yield Problem(
            ("chunk_checkpoint",),
            "`chunk_checkpoint` has no effect with `consistency: snapshot`: a snapshot ends with its run",
            "remove one of the two",
        )


def _time_window(export: ExportConfig) -> Iterator[Problem]:
    if export.mode != "time_window":
        yield from _unused(export, ("time_column", "days_window"), "mode: time_window")
        return
    for key in ("time_column", "days_window"):
        if not getattr(export, key):
            yield Problem((key,), f"`mode: time_window` needs `{key}`", f"add `{key}:`")


def _partition(export: ExportConfig) -> Iterator[Problem]:
    tokens = export.destination.tokens()
    if export.dagster.partitions_start is not None:
        yield from _time_partitions(export)
    if export.partition_by is None:
        if "partition" in tokens:
            yield Problem(
                ("destination",),
                "`{partition}` needs `partition_by`",
                "add `partition_by:`, or remove the token",
            )
        yield from _unused(export, ("partition_granularity",), "partition_by")
        return
    path = ("partition_by",)
    if found := _NO_HIVE_KEY.search(export.partition_by):
        yield Problem(
            path,
            f"the column holds `{found[0]}`, which means something else in the name of a Hive folder",
            "rename the column in `query:`",
        )
    if reason := unsafe_name(export.partition_by):
        yield Problem(path, f"the column {reason}", "name a column whose name can be a folder")
    if export.mode in ("time_window", "cdc"):
        yield Problem(path, f"`partition_by` does not work in `mode: {export.mode}`", "remove `partition_by`")
    if export.load is not None:
        yield Problem(path, "`partition_by` does not work with a `load` block", "remove one of the two")
    if "partition" not in tokens:
        yield Problem(
            path, "`partition_by` needs `{partition}` in the destination", 'write "out/{partition}" in quotes'
        )
    elif not export.destination.ends_in_partition():
        yield Problem(
            ("destination",),
            "`{partition}` is not the last folder of the destination, alone",
            'write it at the end: "out/{export}/{partition}"',
        )


def _time_partitions(export: ExportConfig) -> Iterator[Problem]:
    path = ("dagster", "partitions_start")
    if export.partition_by is None:
        yield Problem(
            path, "`partitions_start` needs `partition_by`", "add `partition_by:`, or remove the key"
        )
    elif export.mode == "incremental" or export.consistency == "snapshot":
        what = "mode: incremental" if export.mode == "incremental" else "consistency: snapshot"
        yield Problem(
            path,
            f"with `{what}` the folders of a run belong together, and none is run on its own",
            "remove `partitions_start`, or use `mode: full`",
        )


def _cdc(export: ExportConfig) -> Iterator[Problem]:
    cdc = export.cdc
    if export.mode != "cdc":
        if cdc is not None:
            yield Problem(
                ("cdc",),
                "the `cdc` block works only with `mode: cdc`",
                "set `mode: cdc`, or remove the block",
            )
        return
    for key in ("query", "query_file"):
        if export.given(key):
            yield Problem((key,), f"`{key}` does not work with `mode: cdc`", "use `table` or `tables`")
    if cdc is None or cdc.initial is None:
        return
    if any(parts[-1] == "snapshot" for parts in _captured(export)):
        yield Problem(
            ("cdc", "initial"), "a table called `snapshot` meets the baseline's folder", "remove `initial`"
        )


def _format(export: ExportConfig) -> Iterator[Problem]:
    codec, level = export.compression, export.compression_level
    if export.format == "csv":
        for key in ("compression", "compression_profile"):
            if export.given(key) and getattr(export, key) != "none":
                yield Problem((key,), "CSV is not compressed", f"remove `{key}`, or use `format: parquet`")
        for key in ("compression_level", "parquet"):
            if export.given(key):
                yield Problem(
                    (key,), f"`{key}` has no effect on CSV", f"remove `{key}`, or use `format: parquet`"
                )
    elif level is not None:
        low, high = {"zstd": (1, 22), "gzip": (0, 9)}.get(codec, (0, -1))
        if high < 0:
            yield Problem(("compression_level",), f"{codec} has no levels", "remove `compression_level`")
        elif not low <= level <= high:
            yield Problem(
                ("compression_level",), f"the level of {codec} is {low} to {high}", f"choose {low} to {high}"
            )
    if export.max_file_size is not None:
        try:
            parse_size(export.max_file_size)
        except ValueError:
            yield Problem(
                ("max_file_size",),
                "not a size of at least one byte",
                "write a number and B, KB, MB or GB: `256MB`",
            )


def _columns(export: ExportConfig) -> Iterator[Problem]:
    for column, declared in export.columns.items():
        if fault := type_fault(declared):
            yield Problem(("columns", column), fault[0], fault[1])
        table, name = column_key(column)
        if not table:
            continue
        captured = _captured(export)
        if not captured:
            yield Problem(
                ("columns", column), "a query has no table to qualify a column with", f"write `{name}` alone"
            )
        elif table not in captured | {parts[-1:] for parts in captured}:
            yield Problem(
                ("columns", column),
                f"the export does not read a table {'.'.join(table)}",
                "name a table it reads; a column whose name holds a dot is quoted: '\"a.b\"'",
            )


def _captured(export: ExportConfig) -> set[tuple[str, ...]]:
    """The tables of the export by their parts; one whose name is wrong is reported elsewhere."""
    found = set()
    for name in (*(export.tables or ()), *((export.table,) if export.table else ())):
        with contextlib.suppress(ValueError):
            found.add(table_parts(name))
    return found


def _row_hash(export: ExportConfig) -> Iterator[Problem]:
    if export.tables is not None and not isinstance(export.meta_columns.row_hash, bool):
        yield Problem(
            ("meta_columns", "row_hash"),
            "with `tables` the hash covers every column",
            "write `row_hash: true`",
        )
