"""``plan`` and ``check``: what a run would do, and whether it should."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rivet_dagster.cli.shared import (
    Options,
    Verb,
    each,
    export_options,
    on_exports,
    open_engine,
    print_json,
    raise_failures,
)
from rivet_dagster.engine.errors import RivetError, UsageError, error_object

if TYPE_CHECKING:
    from rivet_dagster.engine.run.engine import Engine


@click.command(cls=Verb)
@export_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object an export.")
def plan(path: str, exports: tuple[str, ...], params: Options, as_json: bool) -> None:
    """Show what a fresh run would read, and why; writes nothing and takes no lease."""
    from rivet_dagster.engine.run.preview import preview

    def act(engine: Engine, name: str) -> None:
        found = preview(engine, name)
        if as_json:
            print_json(found.as_json())
        else:
            click.echo(found.text())

    on_exports(path, params, exports, act)


@click.command(cls=Verb)
@export_options
@click.option("--strict", is_flag=True, help="Fail also when a plan only deserves a look.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with every export.")
def check(path: str, exports: tuple[str, ...], params: Options, strict: bool, as_json: bool) -> None:
    """Judge each export before its first run: strategy, types, and what planning refuses."""
    from rivet_dagster.engine.run.preview import preview

    with open_engine(path, params) as engine:
        found: list[dict[str, Any]] = []

        def act(name: str) -> None:
            try:
                seen = preview(engine, name)
            except RivetError as error:
                error.export = error.export or name
                found.append({"export_name": name, "verdict": "refused", "error": error_object(error)})
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
