"""``rivet-dagster``: the engine without Dagster, for scripts and for looking at things.

Thin: every command calls the function that the jobs call. Exit codes are those of the error tree.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Literal

import click

from rivet_dagster import __version__
from rivet_dagster.engine.errors import RivetError, as_rivet_error, error_object, representative

if TYPE_CHECKING:
    from rivet_dagster.engine.run.engine import Engine
    from rivet_dagster.engine.run.events import RunOutcome


class _Params(click.ParamType[tuple[str, str]]):
    name = "K=V"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        key, sep, text = str(value).partition("=")
        if not sep or not key:
            self.fail("expected NAME=VALUE", param, ctx)
        return key, text


def _config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("-p", "--param", "params", type=_Params(), multiple=True, help="Sets ${NAME}; repeat."),
        click.option("-e", "--export", "exports", multiple=True, help="Only this export; repeat."),
        click.option(
            "-c", "--config", "path", envvar="RIVET_CONFIG", default="rivet.yaml", show_default=True,
            help="The config file.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def _engine(path: str, params: tuple[tuple[str, str], ...]) -> Engine:
    from rivet_dagster.config import load_config
    from rivet_dagster.engine.run.engine import Engine

    return Engine(load_config(path, dict(params)))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rivet-dagster")
def cli() -> None:
    """Extract database tables to files: exact, resumable, kind to the source."""


Options = tuple[tuple[str, str], ...]


def _each(path: str, params: Options, exports: tuple[str, ...], act: Callable[[Engine, str], None]) -> None:
    """``act`` on each named export, all without names. One failure leaves the others running."""
    errors: list[RivetError] = []
    with _engine(path, params) as engine:
        for name in exports or tuple(e.name for e in engine.config.exports):
            try:
                act(engine, name)
            except RivetError as error:
                error.export = error.export or name
                errors.append(error)
                click.echo(str(error), err=True)
    if errors:
        sys.exit(representative(errors).exit_code or 1)


@cli.command()
@_config_options
@click.option("--lock-wait", type=click.IntRange(min=0), help="Seconds to wait for another run of an export.")
@click.option("--fresh", is_flag=True, help="Do not continue a run that was left open.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a run.")
def run(
    path: str,
    exports: tuple[str, ...],
    params: Options,
    lock_wait: int | None,
    fresh: bool,
    as_json: bool,
) -> None:
    """Run exports, one after the other; all of them without -e."""

    def act(engine: Engine, name: str) -> None:
        try:
            outcome = _run_one(engine, name, lock_wait, fresh=fresh, quiet=as_json)
        except RivetError as error:
            if as_json:
                entry = {"export_name": name, "status": "failed", "error": error_object(error)}
                click.echo(json.dumps(entry))
            raise
        click.echo(json.dumps(_entry(outcome)) if as_json else _line(outcome))

    _each(path, params, exports, act)


@cli.command()
@_config_options
def plan(path: str, exports: tuple[str, ...], params: Options) -> None:
    """Show what a fresh run would read, and why; writes nothing and takes no lease."""
    from rivet_dagster.engine.run.preview import preview

    def act(engine: Engine, name: str) -> None:
        click.echo(preview(engine, name))

    _each(path, params, exports, act)


@cli.command()
@_config_options
@click.option(
    "--depth", type=click.Choice(["light", "sample", "full"]), default="full", show_default=True,
    help="light: manifest and marker; sample: also sizes; full: also every byte and value.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def validate(
    path: str,
    exports: tuple[str, ...],
    params: Options,
    depth: Literal["light", "sample", "full"],
    as_json: bool,
) -> None:
    """Check the files of the last complete runs against their manifests."""

    def act(engine: Engine, name: str) -> None:
        report = engine.validate(name, depth=depth)
        line = f"{name}: {report.status}, {report.parts_verified} parts verified"
        click.echo(json.dumps(report.as_json()) if as_json else line)
        report.raise_if_failed()

    _each(path, params, exports, act)


@cli.command()
@_config_options
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def reconcile(path: str, exports: tuple[str, ...], params: Options, as_json: bool) -> None:
    """Compare the last complete runs with the source, unit by unit."""

    def act(engine: Engine, name: str) -> None:
        report = engine.reconcile(name)
        line = f"{name}: {report.status}, {report.count('match')} of {len(report.units)} partitions match"
        click.echo(json.dumps(report.as_json()) if as_json else line)
        report.raise_if_mismatch()

    _each(path, params, exports, act)


@cli.command()
@_config_options
@click.option("--execute", is_flag=True, help="Run the units again; without it, only say which.")
def repair(path: str, exports: tuple[str, ...], params: Options, execute: bool) -> None:
    """Reconcile, then run again what differs. A dry run unless told to execute."""
    from rivet_dagster.engine.verify.repair import plan_repair

    def act(engine: Engine, name: str) -> None:
        wanted = plan_repair(engine.reconcile(name))
        click.echo(json.dumps(wanted.as_json()))
        if not execute or not (wanted.actions or wanted.fresh_run):
            return
        only = None if wanted.fresh_run else wanted.partitions
        click.echo(_line(_run_one(engine, name, None, fresh=wanted.fresh_run, quiet=True, only=only)))

    _each(path, params, exports, act)


@cli.command()
@_config_options
@click.option("--min-age", type=click.FloatRange(min=0), help="Shortest silence in seconds that counts.")
def reap(path: str, exports: tuple[str, ...], params: Options, min_age: float | None) -> None:
    """End Dagster runs whose worker is gone, and free their pool slots. Needs DAGSTER_HOME."""
    import dagster as dg

    from rivet_dagster.assets.build import load_export_assets
    from rivet_dagster.assets.resources import RivetResource
    from rivet_dagster.assets.sensors import reap_stale_runs
    from rivet_dagster.config import load_config

    config = load_config(path, dict(params))
    assets = [a for a in load_export_assets(config) if not exports or a.export.name in exports]
    with dg.DagsterInstance.get() as instance:
        ended = reap_stale_runs(
            instance, config, assets, RivetResource.with_state_url(None), min_age_s=min_age
        )
    for one in ended:
        click.echo(f"ended run {one.run.run_id} of {', '.join(one.exports)}")
    click.echo(f"{len(ended)} stale runs")


@cli.command()
@_config_options
def setup(path: str, exports: tuple[str, ...], params: Options) -> None:
    """Give the pools of the exports their limits. Once an instance and after a change of
    `source_pool_limit`; needs DAGSTER_HOME."""
    import dagster as dg

    from rivet_dagster.assets.pools import ensure_pools
    from rivet_dagster.config import load_config

    config = load_config(path, dict(params))
    with dg.DagsterInstance.get() as instance:
        made = ensure_pools(instance, config, exports=exports or None, renew=True)
    click.echo(f"{len(made)} pools set: {', '.join(made)}" if made else "every pool has its limit already")


@cli.command()
def errors() -> None:
    """List every error code: its kind and what to do."""
    from rivet_dagster.engine.errors_doc import rows

    for row in rows():
        click.echo(f"{row.code}  [{row.kind}]  {row.action}")


def _run_one(
    engine: Engine,
    name: str,
    lock_wait: int | None,
    *,
    fresh: bool,
    quiet: bool,
    only: Collection[str] | None = None,
) -> RunOutcome:
    from rivet_dagster.engine.run.events import RunNote, UnitFailed

    with engine.session(name, holder="cli", lock_wait=lock_wait) as session:
        plan = session.plan(fresh=fresh, only=only)
        if not quiet:
            click.echo(f"{name}: {len(plan.units)} units, {plan.reason}", err=True)
        for event in session.execute():
            if isinstance(event, RunNote):
                click.echo(f"{name}: {event.text}", err=True)
            elif isinstance(event, UnitFailed):
                click.echo(f"{name}: unit {event.unit.index} failed: {event.error}", err=True)
        outcome = session.finalize()
    for text in outcome.warnings:
        click.echo(f"{name}: {text}", err=True)
    return outcome


def _entry(outcome: RunOutcome) -> dict[str, Any]:
    return {
        "export_name": outcome.export,
        "status": outcome.status,
        "run_id": outcome.run_id,
        "rows": outcome.rows,
        "files": outcome.files,
        "bytes": outcome.bytes,
        "duration_ms": int(outcome.seconds * 1000),
        "mode": outcome.mode,
        "skip_reason": outcome.skip_reason,
        "manifest": outcome.manifest_uri,
        "retries": outcome.retries,
        "warnings": list(outcome.warnings),
        **outcome.details,
    }


def _line(outcome: RunOutcome) -> str:
    if outcome.status == "skipped":
        return f"{outcome.export}: skipped, {outcome.skip_reason}"
    return (
        f"{outcome.export}: {outcome.rows} rows, {outcome.files} files, {outcome.bytes} bytes "
        f"in {outcome.seconds:.1f} s -> {outcome.prefix_uri}"
    )


def main() -> None:
    """Entry point: turns an error of the tree into its exit code."""
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(1)
    except RivetError as error:
        click.echo(str(error), err=True)
        sys.exit(error.exit_code or 1)
    except Exception as error:
        wrapped = as_rivet_error(error)
        click.echo(str(wrapped), err=True)
        if "--debug" in sys.argv:
            raise
        sys.exit(wrapped.exit_code or 1)


def entry() -> None:
    """``main`` as a process: it ends without taking the interpreter apart.

    What a run leaves behind is committed by then, and undoing 600 modules costs as much CPU as a small
    export. They all live to the end, so collecting while they load finds nothing either.
    """
    gc.disable()
    code = 1
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    if "--debug" in sys.argv:
        sys.exit(code)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    entry()
