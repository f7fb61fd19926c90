"""Engine errors as Dagster sees them: retry under a budget, or fail with the error object.

Dagster keeps exception texts, their causes and contexts in its event log. So nothing raised here
carries a message of the engine or a chained exception: the event log gets the error object without
its message (codes, classes, action), and the redacted message goes to the step's stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from rivet_dagster.engine.errors import RivetError, as_rivet_error, error_object, representative
from rivet_dagster.engine.results import failed_entry, unit_facts

#: Longest list of partition keys put into one event's metadata.
_LISTED = 200


def failure_metadata(
    error: RivetError,
    *,
    export: str,
    mode: str,
    run_id: str | None = None,
    failed_partitions: Sequence[str] = (),
    failures: int = 1,
) -> dict[str, Any]:
    """The error object's keys without ``message``, and what failed. JSON-able values only."""
    metadata = unit_facts(failed_entry(export, error, run_id=run_id or "", mode=mode))
    metadata["failures"] = failures
    if error.sqlstate:
        metadata["sqlstate"] = error.sqlstate
    if error.unit is not None:
        metadata["unit"] = error.unit
    if failed_partitions:
        metadata["failed_partitions"] = dg.MetadataValue.json(list(failed_partitions[:_LISTED]))
        metadata["failed_partition_count"] = len(failed_partitions)
    return metadata


def failure_text(error: RivetError, export: str) -> str:
    """``[code] class: action (export)``: everything a person needs first, nothing of the source's."""
    body = error_object(error, with_message=False)
    if body["class"] == "crashed":
        return f"[crashed] its process died, the next run goes on ({export})"
    return f"[{body['code']}] {body['class']}: {body['action']} ({export})"


def retry_or_failure(
    error: RivetError,
    *,
    export: str,
    retry_number: int,
    max_retries: int,
    backoff_base_ms: int,
    metadata: Mapping[str, Any],
) -> dg.Failure | dg.RetryRequested:
    """What to raise for ``error``: ``RetryRequested`` while it may help and the budget lasts.

    Else a ``Failure`` that no retry policy overrides.

    retry_number: retries done so far, as the step's context counts them. A budget that ended is a
    ``Failure``, never a last ``RetryRequested``: that one would carry no metadata.
    """
    from rivet_dagster.engine.run.retry import backoff_s

    if error.retryable and retry_number < max_retries:
        wait = backoff_s(retry_number + 1, backoff_base_ms, error)
        return dg.RetryRequested(max_retries=max_retries, seconds_to_wait=wait)
    return dg.Failure(description=failure_text(error, export), metadata=dict(metadata), allow_retries=False)


def tell(error: RivetError) -> None:
    """The redacted message, for people, to the step's stderr (Dagster's compute log)."""
    print(f"rivet: {error}", file=sys.stderr, flush=True)


def worst(errors: Sequence[BaseException]) -> RivetError:
    """The failure that stands for the run. ``errors`` is not empty."""
    return representative([as_rivet_error(error) for error in errors])
