"""``work``: one more worker for a run that another process leads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rivet_dagster.cli.shared import Options, Verb, config_options, open_engine

if TYPE_CHECKING:
    from rivet_dagster.engine.run.events import RunEvent, RunPlan
    from rivet_dagster.engine.run.session import Session


@click.command(cls=Verb)
@config_options
@click.option("-e", "--export", "name", required=True, help="The export.")
@click.option("--wait", type=click.IntRange(min=0), default=60, show_default=True,
              help="Seconds to wait for a run of the export to be led by somebody.")  # fmt: skip
def work(path: str, params: Options, name: str, wait: int) -> None:
    """Work on a run of an export with `workers` above 1 that another process leads, to its end.

    Goes on as its lead when the lead is gone without a word.
    """
    from rivet_dagster.cli.run import entry_line, run_one
    from rivet_dagster.engine.results import run_entry
    from rivet_dagster.engine.run.events import AlreadyAppliedError, RunNote, UnitCommitted, UnitFailed
    from rivet_dagster.engine.run.guest import Guest, assist

    done = rows = 0

    def tell(event: RunEvent) -> None:
        nonlocal done, rows
        if isinstance(event, UnitCommitted):
            done, rows = done + 1, rows + event.rows
        elif isinstance(event, UnitFailed):
            click.echo(f"{name}: unit {event.unit.index} failed: {event.error}", err=True)
        elif isinstance(event, RunNote):
            click.echo(f"{name}: {event.text}", err=True)

    with open_engine(path, params) as engine:

        def lead(run_id: str) -> None:
            def plan(session: Session) -> RunPlan:
                click.echo(f"{name}: run {run_id} has lost its lead; going on as the lead", err=True)
                return session.plan(going_on=run_id)

            try:
                outcome = run_one(engine, name, plan, lock_wait=0)
            except AlreadyAppliedError:
                return
            click.echo(entry_line(run_entry(outcome)))

        joined = assist(Guest(engine, engine.export(name)), wait_s=wait, tell=tell, lead=lead)
    click.echo(f"{name}: {done} units, {rows} rows done here" if joined else f"{name}: no run to join")
