"""``rivet-dagster``: the engine without Dagster, for scripts and for looking at things.

Thin: every command calls the function that the jobs call. Exit codes are those of the error tree.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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


@cli.command()
@_config_options
@click.option(
    "--lock-wait", type=click.IntRange(min=0), help="Seconds to wait for another run of the export."
)
@click.option("--fresh", is_flag=True, help="Do not continue a run that was left open.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a run.")
def run(
    path: str,
    exports: tuple[str, ...],
    params: tuple[tuple[str, str], ...],
    lock_wait: int | None,
    fresh: bool,
    as_json: bool,
) -> None:
    """Run exports, one after the other; all of them without -e."""
    errors: list[RivetError] = []
    with _engine(path, params) as engine:
        names = exports or tuple(e.name for e in engine.config.exports)
        for name in names:
            try:
                outcome = _run_one(engine, name, lock_wait, fresh=fresh, quiet=as_json)
            except RivetError as error:
                errors.append(error)
                click.echo(str(error), err=True)
                if as_json:
                    click.echo(
                        json.dumps({"export_name": name, "status": "failed", "error": error_object(error)})
                    )
                continue
            click.echo(json.dumps(_entry(outcome)) if as_json else _line(outcome))
    if errors:
        raise representative(errors)


def _run_one(engine: Engine, name: str, lock_wait: int | None, *, fresh: bool, quiet: bool) -> RunOutcome:
    from rivet_dagster.engine.run.events import RunNote, UnitFailed

    with engine.session(name, holder="cli", lock_wait=lock_wait) as session:
        plan = session.plan(fresh=fresh)
        if not quiet:
            click.echo(f"{name}: {len(plan.units)} units, {plan.reason}", err=True)
        for event in session.execute():
            if isinstance(event, RunNote):
                click.echo(f"{name}: {event.text}", err=True)
            elif isinstance(event, UnitFailed):
                click.echo(f"{name}: unit {event.unit.index} failed: {event.error}", err=True)
        return session.finalize()


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


if __name__ == "__main__":
    main()
