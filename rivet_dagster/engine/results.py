"""What an invocation tells machines: an entry for each export, the sum of them, and failures.

The shapes are those of the scheduler contract (docs/scheduler-contract.md, D1 to D3). Every key is always
there, null where it does not apply; tests/golden/contract holds one of each.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from rivet_dagster.engine.errors import RivetError, error_object, representative
from rivet_dagster.engine.names import manifest_copy

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig
    from rivet_dagster.engine.run.events import RunOutcome
    from rivet_dagster.engine.state.models import RunAggregate
    from rivet_dagster.engine.state.store import StateStore


def run_entry(outcome: RunOutcome) -> dict[str, Any]:
    """One export that succeeded, or had nothing to do."""
    return {
        **blank_entry(outcome.export, outcome.status, outcome.run_id, outcome.mode, outcome.seconds),
        "rows": outcome.rows,
        "files": outcome.files,
        "bytes": outcome.bytes,
        "retries": outcome.retries,
        "skip_reason": outcome.skip_reason,
        "prefix": outcome.prefix_uri,
        "manifest": outcome.manifest_uri,
        "warnings": list(outcome.warnings),
        **outcome.details,
    }


def failed_entry(
    export: str, error: RivetError, *, run_id: str, mode: str, seconds: float = 0.0
) -> dict[str, Any]:
    """One export that failed; ``run_id`` is empty when it failed before it had a run.

    One whose process died (CrashedError) has no seconds: nobody measured them.
    """
    return {
        **blank_entry(export, "failed", run_id, mode, seconds),
        "error_message": str(error),
        "error": error_object(error),
        **error.details,
    }


#: What a run finds out on its way, under the keys of ``RunOutcome.details``.
_DETAILS: Final = ("nulled", "quality", "drift", "folder", "pace")


def applied_entry(state: StateStore, export: ExportConfig, run_id: str) -> dict[str, Any]:
    """The complete run that a sealed plan was applied by, from what the state kept of it."""
    run = state.get_run(run_id)
    figures = next((row for row in state.metrics(export.name, limit=1000) if row["run_id"] == run_id), {})
    prefix = Path(run.prefix).absolute() if run is not None else None
    return {
        **blank_entry(export.name, "success", run_id, export.mode, (figures.get("duration_ms") or 0) / 1000),
        "rows": figures.get("total_rows") or 0,
        "files": figures.get("files_produced") or 0,
        "bytes": figures.get("bytes_written") or 0,
        "prefix": prefix and prefix.as_uri(),
        "manifest": prefix and (prefix / manifest_copy(run_id)).as_uri(),
    }


def blank_entry(
    export: str, status: str, run_id: str = "", mode: str = "", seconds: float = 0.0
) -> dict[str, Any]:
    """Every key of an entry."""
    return {
        "export_name": export,
        "status": status,
        "run_id": run_id,
        "rows": 0,
        "files": 0,
        "bytes": 0,
        "bytes_read": None,
        "retries": 0,
        "duration_ms": int(seconds * 1000),
        "mode": mode,
        "error_message": None,
        "error": None,
        "stop_reason": None,
        "tables": None,
        "skip_reason": None,
        "prefix": None,
        "manifest": None,
        "warnings": [],
        **dict.fromkeys(_DETAILS),
    }


def unit_facts(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What a scheduler's own store may hold of an entry (D9): no text that a value or a name could be in.

    Of a failed one also the error object, without its message.
    """
    facts = {
        "export": entry["export_name"],
        "table": None,
        **{key: entry[key] for key in ("run_id", "mode", "status", "rows", "files", "stop_reason")},
    }
    error = {key: value for key, value in (entry["error"] or {}).items() if key != "message"}
    return {**error, **facts}


@dataclass(slots=True)
class Aggregate:
    """Collects the entries of one invocation."""

    config_path: str
    mode: str = "sequential"
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    entries: list[dict[str, Any]] = field(default_factory=list)

    def ended(self) -> RunAggregate:
        """The record of the state; its times end now."""
        from rivet_dagster.engine.state.models import RunAggregate

        status = [entry["status"] for entry in self.entries]
        return RunAggregate(
            run_aggregate_id=f"agg_{self.started_at:%Y%m%dT%H%M%S}_{secrets.token_hex(3)}",
            started_at=self.started_at,
            finished_at=datetime.now(UTC),
            config_path=self.config_path,
            parallel_mode=self.mode,
            total_exports=len(status),
            success_count=status.count("success"),
            failed_count=status.count("failed"),
            skipped_count=status.count("skipped"),
            total_rows=sum(entry["rows"] for entry in self.entries),
            total_files=sum(entry["files"] for entry in self.entries),
            total_bytes=sum(entry["bytes"] for entry in self.entries),
            details=tuple(self.entries),
        )


def without_messages(aggregate: RunAggregate) -> RunAggregate:
    """What the state keeps: a message may hold a value of a row."""
    details = [
        {**entry, "error_message": None, "error": entry["error"] and {**entry["error"], "message": None}}
        for entry in aggregate.details
    ]
    return replace(aggregate, details=tuple(details))


def aggregate_json(aggregate: RunAggregate) -> dict[str, Any]:
    """The record as ``--summary-output`` writes it."""
    length = aggregate.finished_at - aggregate.started_at
    return {
        "run_aggregate_id": aggregate.run_aggregate_id,
        "started_at": aggregate.started_at.isoformat(),
        "finished_at": aggregate.finished_at.isoformat(),
        "duration_ms": int(length.total_seconds() * 1000),
        "config_path": aggregate.config_path,
        "parallel_mode": aggregate.parallel_mode,
        "total_exports": aggregate.total_exports,
        "success_count": aggregate.success_count,
        "failed_count": aggregate.failed_count,
        "skipped_count": aggregate.skipped_count,
        "total_rows": aggregate.total_rows,
        "total_files": aggregate.total_files,
        "total_bytes": aggregate.total_bytes,
        "per_export": [dict(entry) for entry in aggregate.details],
    }


def failure_line(errors: Sequence[RivetError]) -> dict[str, Any]:
    """What ``--json-errors`` prints: the failure that stands for all, and every export's own (D2).

    ``code`` is left out where there is none, as consumers of the reference expect it.
    """
    chosen = representative(list(errors))
    text = str(chosen)
    if len(errors) > 1:
        others = "; ".join(str(error) for error in errors if error is not chosen)
        text = f"{len(errors)} exports failed, the gravest is {text} (and: {others})"
    whole = error_object(chosen)
    return {
        "error": text,
        "exit_class": chosen.exit_code or 1,
        **{key: value for key, value in whole.items() if key != "message" and (key, value) != ("code", None)},
        "failures": [
            {"export": error.export, "table": None, **error_object(error)} for error in errors if error.export
        ],
    }
