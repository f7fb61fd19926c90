"""``validate``, ``reconcile``, ``repair``: the files against manifest and source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from rivet_dagster.cli.shared import (
    Options,
    Verb,
    each,
    export_options,
    lock_wait_option,
    on_exports,
    open_engine,
    output_options,
    print_json,
)

if TYPE_CHECKING:
    from rivet_dagster.engine.run.engine import Engine


@click.command(cls=Verb)
@export_options
@click.option(
    "--depth", type=click.Choice(["light", "sample", "full"]), default="full", show_default=True,
    help="light: manifest and marker; sample: also sizes; full: also every byte and value.",
)  # fmt: skip
@lock_wait_option
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def validate(
    path: str,
    exports: tuple[str, ...],
    params: Options,
    depth: Literal["light", "sample", "full"],
    lock_wait: int | None,
    as_json: bool,
) -> None:
    """Check the files of the last complete runs against their manifests."""

    def act(engine: Engine, name: str) -> None:
        with engine.session(name, holder="cli", lock_wait=lock_wait):
            report = engine.validate(name, depth=depth)
        if as_json:
            print_json(report.as_json())
        else:
            click.echo(f"{name}: {report.status}, {report.parts_verified} parts verified")
        report.raise_if_failed()

    on_exports(path, params, exports, act)


_COMPARISON = click.option(
    "--depth", type=click.Choice(["sums", "rows"]), default="sums", show_default=True,
    help="sums: counts, and sums and bounds of columns; rows: also a hash of every row.",
)  # fmt: skip


@click.command(cls=Verb)
@export_options
@_COMPARISON
@lock_wait_option
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def reconcile(
    path: str,
    exports: tuple[str, ...],
    params: Options,
    depth: Literal["sums", "rows"],
    lock_wait: int | None,
    as_json: bool,
) -> None:
    """Compare the last complete runs with the source, unit by unit."""

    def act(engine: Engine, name: str) -> None:
        # a run that ends meanwhile would move the files that are compared
        with engine.session(name, holder="cli", lock_wait=lock_wait):
            report = engine.reconcile(name, depth=depth)
        if as_json:
            print_json(report.as_json())
        else:
            matching = f"{report.count('match')} of {len(report.units)} partitions match"
            click.echo(f"{name}: {report.status}, {matching}")
        report.raise_if_mismatch()

    on_exports(path, params, exports, act)


@click.command(cls=Verb)
@export_options
@_COMPARISON
@click.option("--execute", is_flag=True, help="Run the units again; without it, only say which.")
@output_options
def repair(
    path: str,
    exports: tuple[str, ...],
    params: Options,
    depth: Literal["sums", "rows"],
    execute: bool,
    lock_wait: int | None,
    no_notify: bool,
    as_json: bool,
    summary: str | None,
) -> None:
    """Reconcile, then run again what differs. A dry run unless told to execute.

    Prints what differs as JSON, then the result of each run.
    """
    from rivet_dagster.cli.run import Teller
    from rivet_dagster.engine.verify.repair import plan_repair

    with open_engine(path, params) as engine:
        teller = Teller(engine, as_json=as_json, lock_wait=lock_wait, no_notify=no_notify)

        def act(name: str) -> None:
            with engine.session(name, holder="cli", lock_wait=lock_wait):
                wanted = plan_repair(engine.reconcile(name, depth=depth))
            print_json(wanted.as_json())
            if execute and (wanted.actions or wanted.fresh_run):
                only = None if wanted.fresh_run else wanted.partitions
                teller.run(name, lambda session: session.plan(only=only, repair=True))

        teller.end(each(engine, exports, act), summary)
