"""Refuses a document that is not what docs/scheduler-contract.md says: keys, types, words, and rules
between fields. ``faults(kind, document)`` lists what is wrong with it; nothing wrong is an empty list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from rivet_dagster.engine.errors import EXIT_CODE, REGISTRY, STOP_RANK

#: A type, one of several (None: null), the words that are allowed, or a shape of its own.
Rule = type | tuple[Any, ...] | frozenset[str] | Callable[[str, Any], Iterable[str]]

MODES: Final = frozenset({"full", "chunked", "incremental", "time_window", "cdc"})
VERDICTS: Final = frozenset({"ok", "review", "refused"})
#: Classes that an error of a registered kind can have.
CLASSES: Final = {
    "usage": {"generic"},
    "environment": {"generic", "retryable"},  # a statement that was too long is cut smaller first
    "transient": {"retryable"},
    "busy": {"retryable"},
    "integrity": {"data_integrity"},
    "refusal": {"refusal", "schema_drift"},
    "internal": {"internal"},
}
_TEXT, _COUNT = (str, None), (int, None)


def _value(at: str, value: Any, rule: Rule) -> Iterator[str]:
    if isinstance(rule, frozenset):
        if value not in rule:
            yield f"{at}: {value!r} is none of {', '.join(sorted(rule))}"
    elif isinstance(rule, (type, tuple)):
        kinds = rule if isinstance(rule, tuple) else (rule,)
        if not any(value is None if kind is None else _is(value, kind) for kind in kinds):
            yield f"{at}: {value!r} has the wrong type"
    else:
        yield from rule(at, value)


def _is(value: Any, kind: type) -> bool:
    if isinstance(value, bool) and kind is not bool:
        return False
    if kind is int and isinstance(value, int) and value < 0:
        return False  # every number of the contract counts something
    return isinstance(value, kind)


def _object(at: str, value: Any, fields: Mapping[str, Rule]) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at} is no object"
        return
    for key in [key for key in fields if key not in value]:
        yield f"{at}.{key} is missing"
    for key in [key for key in value if key not in fields]:
        yield f"{at}.{key} is no key of the contract"
    for key in fields.keys() & value.keys():
        yield from _value(f"{at}.{key}", value[key], fields[key])


def _each(rule: Rule) -> Rule:
    def check(at: str, value: Any) -> Iterator[str]:
        if not isinstance(value, list):
            yield f"{at} is no list"
            return
        for index, item in enumerate(value):
            yield from _value(f"{at}[{index}]", item, rule)

    return check


def _or_null(rule: Callable[[str, Any], Iterable[str]]) -> Rule:
    return lambda at, value: () if value is None else rule(at, value)


def _shape(fields: Mapping[str, Rule]) -> Callable[[str, Any], Iterator[str]]:
    return lambda at, value: _object(at, value, fields)


def _moment(at: str, value: Any) -> Iterator[str]:
    try:
        if datetime.fromisoformat(value).tzinfo is None:
            yield f"{at}: a time without its zone"
    except (TypeError, ValueError):
        yield f"{at}: {value!r} is no time"


_ERROR: Final[dict[str, Rule]] = {
    "code": _TEXT,
    "kind": _TEXT,
    "class": frozenset(EXIT_CODE),
    "exit_code": _COUNT,
    "retryable": bool,
    "action": _TEXT,
}


def _consistent(at: str, error: Mapping[str, Any]) -> Iterator[str]:
    """D1: class, exit code and ``retryable`` say the same; what a code says is the registry's own."""
    kind, code = error["class"], error.get("code")
    if error["exit_code"] != EXIT_CODE.get(kind):
        yield f"{at}: class {kind} has exit code {EXIT_CODE.get(kind)}, not {error['exit_code']}"
    if error["retryable"] is not (kind in ("retryable", "crashed")):
        yield f"{at}: class {kind} and retryable {error['retryable']}"
    entry = REGISTRY.get(code) if code else None
    if code is not None and entry is None:
        yield f"{at}: {code} is not registered"
    if (error["kind"], error["action"]) != ((entry.kind, entry.action) if entry else (None, None)):
        yield f"{at}: kind and action are not those of {code}"
    if entry and kind not in CLASSES[entry.kind]:
        yield f"{at}: a code of kind {entry.kind} and the class {kind}"
    if kind == "crashed" and code is not None:
        yield f"{at}: crashed, and the code {code}"


def _then(
    fields: Mapping[str, Rule], rule: Callable[[str, Any], Iterator[str]]
) -> Callable[[str, Any], Iterator[str]]:
    """``rule`` is asked once the keys and types are right."""

    def check(at: str, value: Any) -> Iterator[str]:
        found = list(_object(at, value, fields))
        yield from found or rule(at, value)

    return check


error_object = _then({**_ERROR, "message": str}, _consistent)
stored_error = _then({**_ERROR, "message": (None,)}, _consistent)
failure = _then({"export": str, "table": _TEXT, **_ERROR, "message": str}, _consistent)


def json_errors(at: str, line: Any) -> Iterator[str]:
    """D2: the top level is the representative of ``failures``; ``code`` is the one key that may be absent."""
    uncoded = isinstance(line, dict) and "code" not in line
    fields: dict[str, Rule] = {"error": str, "exit_class": int, **_ERROR, "failures": _each(failure)}
    if uncoded:
        del fields["code"]
    if found := list(_object(at, line, fields)):
        yield from found
        return
    yield from _consistent(at, line)
    if line["exit_class"] != (line["exit_code"] or 1):
        yield f"{at}: exit class {line['exit_class']}, exit code {line['exit_code']}"
    if "code" in line and line["code"] is None:
        yield f"{at}.code is null: it is left out"
    if line["failures"]:
        top = max(reversed(line["failures"]), key=lambda f: STOP_RANK[f["class"]])
        if any(line.get(key) != top[key] for key in _ERROR):
            yield f"{at}: the top level is not the failure that stops hardest"


def _run_entry(error: Callable[[str, Any], Iterable[str]], message: Rule) -> Rule:
    fields: dict[str, Rule] = {
        "export_name": str,
        "status": frozenset({"success", "failed", "skipped"}),
        "run_id": str,
        "rows": int,
        "files": int,
        "bytes": int,
        "bytes_read": _COUNT,
        "retries": int,
        "duration_ms": int,
        "mode": MODES,
        "error_message": message,
        "error": _or_null(error),
        "stop_reason": (str, None),
        "tables": (list, None),
        "skip_reason": _TEXT,
        "prefix": _TEXT,
        "manifest": _TEXT,
        "warnings": _each(str),
        **dict.fromkeys(("nulled", "quality", "drift", "folder", "pace"), (dict, None)),
    }
    return _then(fields, _entry_rules)


def _entry_rules(at: str, entry: Mapping[str, Any]) -> Iterator[str]:
    """D3 and D4."""
    status = entry["status"]
    yield from _iff(at, "error", entry["error"] is not None, status == "failed")
    yield from _iff(at, "skip_reason", entry["skip_reason"] is not None, status == "skipped")
    if entry["error_message"] != (entry["error"] or {"message": None})["message"]:
        yield f"{at}.error_message is not the error's"
    if status != "failed" and not entry["run_id"]:
        yield f"{at}.run_id is empty"
    yield from _iff(at, "manifest", entry["manifest"] is not None, status == "success")
    yield from _stop_reason(at, entry)


def _stop_reason(at: str, entry: Mapping[str, Any]) -> Iterator[str]:
    said = entry["stop_reason"]
    drained = entry["mode"] == "cdc" and entry["status"] == "success"
    if said not in ({"caught_up", "max_events"} if drained else {None}):
        yield f"{at}.stop_reason: {said!r}"


def _iff(at: str, key: str, there: bool, due: bool) -> Iterator[str]:
    if there is not due:
        yield f"{at}.{key} is {'there' if there else 'null'}, and should not be"


run_entry = _run_entry(error_object, _TEXT)
stored_entry = _run_entry(stored_error, (None,))


def _aggregate(entry: Rule) -> Rule:
    counts = ("total_exports", "success_count", "failed_count", "skipped_count")
    fields: dict[str, Rule] = {
        "run_aggregate_id": str,
        "started_at": _moment,
        "finished_at": _moment,
        "duration_ms": int,
        "config_path": str,
        "parallel_mode": str,
        **dict.fromkeys((*counts, "total_rows", "total_files", "total_bytes"), int),
        "per_export": _each(entry),
    }
    return _then(fields, _aggregate_rules)


def _aggregate_rules(at: str, sums: Mapping[str, Any]) -> Iterator[str]:
    entries = sums["per_export"]
    for key, found in (
        ("total_exports", len(entries)),
        *((f"{s}_count", sum(e["status"] == s for e in entries)) for s in ("success", "failed", "skipped")),
        *((f"total_{what}", sum(e[what] for e in entries)) for what in ("rows", "files", "bytes")),
    ):
        if sums[key] != found:
            yield f"{at}.{key} is {sums[key]}, the entries make {found}"


_FACTS: Final[dict[str, Rule]] = {
    "export": str,
    "table": (None,),
    "run_id": str,
    "mode": MODES,
    "status": frozenset({"success", "failed", "skipped"}),
    "rows": int,
    "files": int,
    "stop_reason": _TEXT,
}


def unit_facts(at: str, facts: Any) -> Iterator[str]:
    """D9: what Dagster keeps of a unit. No message, under any key."""
    failed = isinstance(facts, dict) and facts.get("status") == "failed"
    found = list(_object(at, facts, {**(_ERROR if failed else {}), **_FACTS}))
    yield from found or (*_stop_reason(at, facts), *(_consistent(at, facts) if failed else ()))


_COMPARED: Final[dict[str, Rule]] = {
    "kind": frozenset({"chunk", "table"}),
    "identifier": str,
    "source_count": _COUNT,
    "exported_count": _COUNT,
    "status": frozenset({"match", "mismatch", "unknown"}),
    "chunk_index": _COUNT,
    "start_key": _TEXT,
    "end_key": _TEXT,
    "partition": str,
}


def _comparison(at: str, value: Any) -> Iterator[str]:
    """``note`` and ``columns`` are the reference's: there when there is something to say."""
    more: dict[str, Rule] = {"note": str, "columns": list}
    given = {key: more[key] for key in more.keys() & (value if isinstance(value, dict) else {}).keys()}
    yield from _object(at, value, {**_COMPARED, **given})


def _summed(at: str, report: Mapping[str, Any]) -> Iterator[str]:
    units, sums = report["partitions"], report["summary"]
    for key, word in (("matches", "match"), ("mismatches", "mismatch"), ("unknown", "unknown")):
        if sums[key] != sum(unit["status"] == word for unit in units):
            yield f"{at}.summary.{key} is not what the partitions make"


_SUMMARY: Final = (
    "total_partitions", "matches", "mismatches", "unknown", "total_source_rows", "total_exported_rows",
)  # fmt: skip
reconcile = _then(
    {
        **dict.fromkeys(("rivet_version", "export_name", "run_id", "strategy"), str),
        "depth": frozenset({"sums", "rows"}),
        "columns_not_hashed": _each(str),
        "partitions": _each(_comparison),
        "summary": _shape(dict.fromkeys(_SUMMARY, int)),
    },
    _summed,
)
repair = _shape(
    {
        **dict.fromkeys(("rivet_version", "export_name", "reconcile_run_id", "strategy"), str),
        "actions": _each(
            _shape(
                {"chunk_index": _COUNT, "start_key": _TEXT, "end_key": _TEXT, "reason": str, "partition": str}
            )
        ),
        "skipped": _each(_shape({"identifier": str, "reason": str})),
        "fresh_run": bool,
    }
)
_PREVIEW: Final[dict[str, Rule]] = {
    "export_name": str,
    "verdict": VERDICTS,
    **dict.fromkeys(("strategy", "why", "skip_reason", "consistency"), _TEXT),
    "resumable": (bool, None),
    "est_rows": _COUNT,
    "bytes": _COUNT,
    "cursor": (dict, None),
    "unit_count": int,
    "units": list,
    "columns": list,
    "warnings": _each(str),
    "notes": _each(str),
    "error": _or_null(error_object),
}
preview = _then(
    _PREVIEW, lambda at, seen: _iff(at, "error", seen["error"] is not None, seen["verdict"] == "refused")
)
check = _shape(
    {"config_path": str, **dict.fromkeys(("ok", "review", "refused"), int), "exports": _each(preview)}
)
plan = _shape(
    {
        "artifact": frozenset({"rivet-dagster plan"}),
        "version": int,
        **dict.fromkeys(
            ("rivet_dagster_version", "plan_id", "export_name", "config_path", "source", "state", "prefix",
             "plan_hash", "strategy", "consistency", "reason", "integrity"), str
        ),
        "created_at": _moment,
        "expires_at": _moment,
        "resumable": bool,
        "skip_reason": _TEXT,
        "est_rows": _COUNT,
        "columns": list,
        "cursor": (dict, None),
        "units": (list, None),
        "diagnostics": _shape(
            {"verdict": VERDICTS, "warnings": _each(str), "notes": _each(str), "unit_count": int}
        ),
    }
)  # fmt: skip
metrics = _then(
    {
        **dict.fromkeys(("run_id", "export_name"), str),
        "run_at": _moment,
        "status": frozenset({"completed", "failed"}),
        "mode": str,
        **dict.fromkeys(
            ("duration_ms", "total_rows", "files_produced", "bytes_written", "bytes_read", "retries",
             "peak_rss_mb", "longest_chunk_ms"), _COUNT
        ),
        **dict.fromkeys(("cursor_min", "cursor_max", "format", "schema_fingerprint"), _TEXT),
        **dict.fromkeys(("nulled", "quality", "drift", "folder", "pace"), (dict, None)),
        "error": _or_null(stored_error),
    },
    lambda at, row: _iff(at, "error", row["error"] is not None, row["status"] == "failed"),
)  # fmt: skip
doctor = _shape(
    {
        "config_path": str,
        "all_ok": bool,
        "checks": _each(
            _shape(
                {"name": str, "ok": bool, "status": frozenset({"ok", "warn", "fail"}), "detail": str,
                 "hint": _TEXT, "code": _TEXT, "error": _or_null(error_object)}
            )
        ),
    }
)  # fmt: skip

KINDS: Final[Mapping[str, Rule]] = {
    "error_object": error_object,
    "json_errors": json_errors,
    "run_entry": run_entry,
    "aggregate": _aggregate(run_entry),
    "stored_aggregate": _aggregate(stored_entry),
    "unit_facts": unit_facts,
    "reconcile": reconcile,
    "repair": repair,
    "preview": preview,
    "check": check,
    "plan": plan,
    "metrics": metrics,
    "doctor": doctor,
}


def faults(kind: str, document: Any) -> list[str]:
    """What is wrong with ``document`` as a ``kind``."""
    return list(_value("$", document, KINDS[kind]))
