"""``check``, ``plan``, ``apply``: what a run would do, whether it should, and doing just that."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from rivet_dagster.cli.shared import (
    Options,
    Verb,
    each,
    export_options,
    on_exports,
    open_engine,
    open_engine_to_run,
    output_options,
    param_option,
    print_json,
    raise_failures,
    write_output,
)
from rivet_dagster.engine.errors import RivetError, UsageError

if TYPE_CHECKING:
    from rivet_dagster.engine.run.engine import Engine


@click.command(cls=Verb)
@export_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object an export.")
@click.option("-o", "--output", metavar="FILE", help="Seal the plan of one export there, for apply.")
def plan(path: str, exports: tuple[str, ...], params: Options, as_json: bool, output: str | None) -> None:
    """Show what a fresh run would read, and why; takes no lease and reads no row."""
    from rivet_dagster.engine.run.preview import preview

    if output is not None:
        _seal(path, params, exports, output, as_json=as_json)
        return

    def act(engine: Engine, name: str) -> None:
        found = preview(engine, name)
        if as_json:
            print_json(found.as_json())
        else:
            click.echo(found.text())

    on_exports(path, params, exports, act)


def _seal(path: str, params: Options, exports: tuple[str, ...], output: str, *, as_json: bool) -> None:
    from rivet_dagster.engine.run.sealed import seal

    with open_engine(path, params) as engine:
        names = exports or tuple(e.name for e in engine.config.exports)
        if len(names) != 1:
            raise UsageError(f"-o takes the plan of one export, not of {len(names)}", code="RIVET_CLI_USAGE")

        def act(name: str) -> None:
            text, seen = seal(engine, name)
            write_output(output, text, mode=0o600)  # bounds of units are values of the table
            if as_json:
                print_json(seen.as_json())
            else:
                click.echo(seen.text())
            click.echo(f"sealed in {output}: rivet-dagster apply {output}", err=True)

        raise_failures(each(engine, names, act))


@click.command(cls=Verb)
@click.argument("plan", type=click.Path(dir_okay=False), metavar="PLAN")
@param_option
@click.option("-c", "--config", "path", help="The config file, when it is not where it was planned.")
@click.option("--force", is_flag=True, help="Apply a plan of more than a day, or one older than the files.")
@output_options
def apply(
    plan: str,
    params: Options,
    path: str | None,
    force: bool,
    lock_wait: int | None,
    no_notify: bool,
    as_json: bool,
    summary: str | None,
) -> None:
    """Run a plan that `plan -o` sealed, exactly as it was made; once, however often it is called."""
    from rivet_dagster.cli.run import Teller
    from rivet_dagster.engine.results import applied_entry
    from rivet_dagster.engine.run.events import AlreadyAppliedError
    from rivet_dagster.engine.run.sealed import read_plan

    sealed = replace(read_plan(Path(plan)), forced=force)
    with open_engine_to_run(path or sealed.config_path, params, [sealed.export]) as engine:
        teller = Teller(engine, as_json=as_json, lock_wait=lock_wait, no_notify=no_notify)

        def act(name: str) -> None:
            try:
                if note := sealed.age_note(datetime.now(UTC)):
                    click.echo(f"{name}: {note}", err=True)
                teller.run(name, lambda session: session.plan(sealed=sealed))
            except AlreadyAppliedError as done:
                click.echo(f"{name}: {done}", err=True)
                teller.tell(applied_entry(engine.state, engine.export(name), done.run_id))

        teller.end(each(engine, [sealed.export], act), summary)


@click.command(cls=Verb)
@export_options
@click.option("--strict", is_flag=True, help="Fail also when a plan only deserves a look.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with every export.")
def check(path: str, exports: tuple[str, ...], params: Options, strict: bool, as_json: bool) -> None:
    """Judge each export before its first run: strategy, types, and what planning refuses."""
    from rivet_dagster.engine.run.preview import preview, refused

    with open_engine(path, params) as engine:
        found: list[dict[str, Any]] = []

        def act(name: str) -> None:
            try:
                seen = preview(engine, name)
            except RivetError as error:
                error.export = error.export or name
                found.append(refused(name, error))
                if not as_json:
                    click.echo(f"{name}: refused")
                raise
            found.append(seen.as_json())
            if not as_json:
                click.echo("\n".join([seen.text(units=False), *(f"  review: {w}" for w in seen.warnings)]))

        errors = each(engine, exports, act)
        verdicts = [one["verdict"] for one in found]
        counts = {word: verdicts.count(word) for word in ("ok", "review", "refused")}
        if as_json:
            print_json({"config_path": str(engine.config.path), **counts, "exports": found})
        else:
            click.echo(", ".join(f"{count} {word}" for word, count in counts.items()))
        raise_failures(errors)
        if strict and counts["review"]:
            named = ", ".join(one["export_name"] for one in found if one["verdict"] == "review")
            raise UsageError(f"to be reviewed: {named}", code="RIVET_CHECK_REVIEW")
