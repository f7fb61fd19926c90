"""``errors`` and ``schema``: what the package itself knows."""

from __future__ import annotations

import click

from rivet_dagster.cli.shared import Verb, print_json


@click.command(cls=Verb)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def errors(as_json: bool) -> None:
    """List every error code: its kind and what to do."""
    from rivet_dagster.engine.errors_doc import rows

    if as_json:
        print_json([{"code": row.code, "kind": row.kind, "action": row.action} for row in rows()])
        return
    for row in rows():
        click.echo(f"{row.code}  [{row.kind}]  {row.action}")


@click.command(cls=Verb)
def schema() -> None:
    """Print the JSON Schema of rivet.yaml, for editors."""
    from rivet_dagster.config.schema import schema_text

    click.echo(schema_text(), nl=False)
