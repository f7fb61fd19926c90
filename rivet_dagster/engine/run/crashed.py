"""What is told of a run whose process died: it said nothing itself, so the state says what it was doing."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from rivet_dagster.engine.errors import BusyError, CrashedError, error_object
from rivet_dagster.engine.results import failed_entry
from rivet_dagster.engine.run.recorded import failed_event
from rivet_dagster.engine.state.models import RunFinish, RunHeader

if TYPE_CHECKING:
    from rivet_dagster.engine.run.engine import Engine

#: Who holds the lease for the moment in which a death is recorded.
RECORDER: Final = "crash recorder"
_LATEST: Final = 20


def record_crash(engine: Engine, name: str, holder: str) -> dict[str, Any]:
    """The entry of export ``name``, which ``holder`` worked on when its process died.

    Its run id is that of the run that it had begun or taken over, "" if it came to none. The death is
    kept as the run's last attempt, unless somebody goes on with the run already.
    """
    error = CrashedError("the process that ran it is gone", export=name)
    run = _run_of(engine, name, holder)
    if run is not None and run.status == "in_progress" and not _is_kept(engine, run, holder):
        with contextlib.suppress(BusyError):
            _keep(engine, run, error, holder)
    return failed_entry(name, error, run_id=run.run_id if run else "", mode=engine.export(name).mode)


def _run_of(engine: Engine, name: str, holder: str) -> RunHeader | None:
    runs = engine.state.runs(name, limit=_LATEST)
    if engine.state.last_holder(engine.lease_key(name)) == holder:  # also of a run that another began
        taken_over = next((run for run in runs if run.status == "in_progress"), None)
        if taken_over is not None:
            return taken_over
    return next((run for run in runs if run.holder == holder or _is_kept(engine, run, holder)), None)


def _is_kept(engine: Engine, run: RunHeader, holder: str) -> bool:
    """Somebody recorded this death before; the lease does not name its holder any more."""
    found = engine.state.journal(run.run_id)
    return any(e.event == "RunFailed" and e.detail.get("holder") == holder for e in found)


def _keep(engine: Engine, run: RunHeader, error: CrashedError, holder: str) -> None:
    state = engine.state
    event = failed_event(error)
    lease = state.acquire(engine.lease_key(run.export_name), RECORDER, wait_s=0)
    try:
        finish = RunFinish(
            "failed",
            metrics={"retries": state.retries(run.run_id)},
            error=error_object(error, with_message=False),
            events=(replace(event, detail={**event.detail, "holder": holder}),),
        )
        state.record_failure(run.run_id, lease, finish)
    finally:
        state.release(lease)
