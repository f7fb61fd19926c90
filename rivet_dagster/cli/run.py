"""``run``: exports one after the other, and what is told about them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from rivet_dagster.cli.progress import Progress
from rivet_dagster.cli.shared import (
    Options,
    Verb,
    each,
    export_options,
    open_engine_to_run,
    output_options,
    print_json,
    raise_failures,
    write_output,
)
from rivet_dagster.engine.errors import RivetError, as_rivet_error
from rivet_dagster.engine.results import Aggregate, aggregate_json, failed_entry, run_entry, without_messages

if TYPE_CHECKING:
    from rivet_dagster.engine.run.engine import Engine
    from rivet_dagster.engine.run.events import RunOutcome, RunPlan
    from rivet_dagster.engine.run.session import Session
    from rivet_dagster.engine.state.models import RunAggregate


@click.command(cls=Verb)
@export_options
@click.option("--fresh", is_flag=True, help="Do not continue a run that was left open.")
@output_options
def run(
    path: str,
    exports: tuple[str, ...],
    params: Options,
    lock_wait: int | None,
    no_notify: bool,
    fresh: bool,
    as_json: bool,
    summary: str | None,
) -> None:
    """Run exports, one after the other, lower waves and then the longest first; all of them without -e."""
    with open_engine_to_run(path, params, exports) as engine:
        exports = _in_order(engine, exports or tuple(e.name for e in engine.config.exports))
        teller = Teller(engine, as_json=as_json, lock_wait=lock_wait, no_notify=no_notify)
        errors = each(engine, exports, lambda name: teller.run(name, lambda s: s.plan(fresh=fresh)))
        teller.end(errors, summary)


def _in_order(engine: Engine, names: tuple[str, ...]) -> tuple[str, ...]:
    """As ``export_all`` begins them. Unknown names stay where they are: running them says so."""
    from rivet_dagster.engine.packing import in_order, needs

    if len(names) < 2 or not {e.name for e in engine.config.exports}.issuperset(names):
        return names
    return tuple(need.name for need in in_order(needs(engine, names, ask_source=False).values()))


class Teller:
    """Runs exports, prints what becomes of each and keeps it for the sum of all.

    no_notify: nobody is told but who called.
    """

    def __init__(self, engine: Engine, *, as_json: bool, lock_wait: int | None, no_notify: bool) -> None:
        self._engine, self._as_json, self._lock_wait = engine, as_json, lock_wait
        self.no_notify = no_notify
        self._sum = Aggregate(str(engine.config.path))
        #: standard output may be for rows alone
        self._aside = any(e.destination.type == "stdout" for e in engine.config.exports)

    def run(self, name: str, plan: Callable[[Session], RunPlan]) -> None:
        """One run, planned by ``plan``. Raises its error once it is told."""
        from rivet_dagster.engine.run.events import AlreadyAppliedError

        started, found = time.monotonic(), Attempt()
        try:
            entry = run_entry(
                run_one(self._engine, name, plan, lock_wait=self._lock_wait, quiet=self._as_json, found=found)
            )
        except AlreadyAppliedError:
            raise
        except Exception as caught:
            error = as_rivet_error(caught)
            mode = found.mode or self._mode(name)
            entry = failed_entry(
                name, error, run_id=found.run_id, mode=mode, seconds=time.monotonic() - started
            )
            self.tell(entry)
            raise
        self.tell(entry)

    def _mode(self, name: str) -> str:
        return next((e.mode for e in self._engine.config.exports if e.name == name), "")

    def tell(self, entry: dict[str, Any]) -> None:
        """Print and keep the result of one export."""
        self._sum.entries.append(entry)
        if self._as_json:
            print_json(entry, err=self._aside)
        elif entry["status"] != "failed":
            click.echo(entry_line(entry), err=self._aside)

    def end(self, errors: Sequence[RivetError], summary: str | None) -> None:
        """Keep the sum in the state, write it where it is wanted, and raise what failed."""
        told = {entry["export_name"] for entry in self._sum.entries}
        for error in errors:  # what failed before it could be run is part of the result too
            if error.export not in told:
                name = error.export or ""
                self.tell(failed_entry(name, error, run_id="", mode=self._mode(name)))
        record = self._sum.ended()
        try:
            if record.details:
                # a run that failed may have waited for the state already
                state = self._engine.state if errors else self._engine.patient_state
                state.record_aggregate(without_messages(record))
        except RivetError as error:  # the runs are what they are without this line about them
            click.echo(f"the result was not recorded: {error}", err=True)
        try:
            if summary is not None:
                write_output(summary, json.dumps(aggregate_json(record), indent=1, default=str) + "\n")
        except RivetError as error:
            if not errors:
                raise
            click.echo(str(error), err=True)
        self._notify(record)
        raise_failures(errors)

    def _notify(self, record: RunAggregate) -> None:
        """One message about the whole invocation, where the config asks for one."""
        config = self._engine.config.notifications
        if config is None or self.no_notify:
            return
        from rivet_dagster.engine.notify import entry_notices, notify

        notices = [notice for entry in record.details for notice in entry_notices(entry)]
        sent = notify(config.slack, notices, f"{self._engine.config.path.name}, {record.run_aggregate_id}")
        if sent is not None and not sent.ok:
            click.echo(f"nobody was told: {sent.why}", err=True)


class Attempt:
    """What is known of a run when it fails."""

    run_id = ""
    mode = ""


def run_one(
    engine: Engine,
    name: str,
    plan: Callable[[Session], RunPlan],
    *,
    lock_wait: int | None = None,
    quiet: bool = False,
    found: Attempt | None = None,
) -> RunOutcome:
    """A whole run; progress and notes go to stderr."""
    from rivet_dagster.engine.run.events import RunNote, UnitCommitted, UnitFailed

    with engine.session(name, holder="cli", lock_wait=lock_wait) as session:
        planned = plan(session)
        if found is not None:
            found.run_id, found.mode = planned.run_id, session.export.mode
        if not quiet:
            click.echo(f"{name}: {len(planned.units)} units, {planned.reason}", err=True)
        with Progress(name, len(planned.units), quiet=quiet) as progress:
            for event in session.execute():
                if isinstance(event, UnitCommitted):
                    progress.unit(event.rows)
                elif isinstance(event, RunNote):
                    progress.say(event.text)
                elif isinstance(event, UnitFailed):
                    progress.say(f"unit {event.unit.index} failed: {event.error}")
        outcome = session.finalize()
    for text in outcome.warnings:
        click.echo(f"{name}: {text}", err=True)
    return outcome


def entry_line(entry: dict[str, Any]) -> str:
    name = entry["export_name"]
    if entry["status"] == "skipped":
        return f"{name}: skipped, {entry['skip_reason']}"
    return (
        f"{name}: {entry['rows']} rows, {entry['files']} files, {entry['bytes']} bytes "
        f"in {entry['duration_ms'] / 1000:.1f} s -> {entry['prefix']}"
    )
