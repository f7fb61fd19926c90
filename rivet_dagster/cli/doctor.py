"""``doctor``: everything a run needs, a line each."""

from __future__ import annotations

import click

from rivet_dagster.cli.shared import ExportsFailedError, Options, Verb, config_options, load, print_json

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command(cls=Verb)
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with every check.")
def doctor(path: str, params: Options, as_json: bool) -> None:
    """Check environment, config, source, tables, destinations and state; changes nothing."""
    from rivet_dagster.engine.doctor import examine
    from rivet_dagster.engine.run.engine import Engine

    found = []
    for check in examine(lambda: load(path, params), Engine):
        found.append(check)
        if not as_json:
            click.echo(
                f"{click.style(f'{check.status:4}', _COLOURS[check.status])}  {check.name}: {check.detail}"
            )
            if check.fix:
                click.echo(f"      fix: {check.fix}")
    errors = [check.error for check in found if check.error is not None]
    if as_json:
        checks = [check.as_json() for check in found]
        print_json({"config_path": path, "all_ok": not errors, "checks": checks})
    else:
        warned = sum(check.status == "warn" for check in found)
        click.echo(f"{len(found) - warned - len(errors)} ok, {warned} to look at, {len(errors)} failed")
    if errors:
        raise ExportsFailedError(errors)
