"""``init``: a first rivet.yaml from a live database."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rivet_dagster.cli.progress import CLEAR
from rivet_dagster.cli.shared import Verb


@click.command(cls=Verb)
@click.option(
    "-o",
    "--output",
    default="rivet.yaml",
    show_default=True,
    metavar="FILE",
    help="The file to write; it must not exist. - prints it.",
)
@click.option(
    "--url-env",
    default="DATABASE_URL",
    show_default=True,
    metavar="NAME",
    help="Environment variable that holds the database's URL.",
)
@click.option("--schema", "schemas", multiple=True, help="Only tables of this schema; repeat.")
@click.option("--table", "tables", multiple=True, help="Only this table, with or without schema; repeat.")
@click.option("--include", multiple=True, metavar="GLOB", help="Only tables that match; repeat.")
@click.option("--exclude", multiple=True, metavar="GLOB", help="No table that matches; repeat.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["parquet", "csv"]),
    default="parquet",
    show_default=True,
    help="Format of the files.",
)
@click.option(
    "--destination",
    default="./out/{export}",
    show_default=True,
    metavar="PATH",
    help="Folder of each export's files.",
)
@click.option(
    "--large-mb",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Tables from this size on are read in chunks.",
)
@click.option(
    "--tls",
    type=click.Choice(["disable", "require", "verify-ca", "verify-full"]),
    help="How the connection is protected. Default for other hosts: verify-full.",
)
@click.option("--tls-ca", "ca_file", metavar="FILE", help="Certificates to trust.")  # fmt: skip
def init(
    output: str,
    url_env: str,
    schemas: tuple[str, ...],
    tables: tuple[str, ...],
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    file_format: str,
    destination: str,
    large_mb: int,
    tls: str | None,
    ca_file: str | None,
) -> None:
    """Write a first rivet.yaml from a live database: each table with a mode, and why."""
    from rivet_dagster.scaffold.init import Wanted, exists, scaffold, write_new

    path = Path("rivet.yaml" if output == "-" else output).absolute()
    if output != "-" and path.exists():
        raise exists(path)
    made = scaffold(
        path,
        url_env=url_env,
        wanted=Wanted(schemas, tables, include, exclude),
        tls=tls,
        ca_file=ca_file,
        file_format=file_format,
        destination=destination,
        large_mb=large_mb,
        tell=_tell,
    )
    if sys.stderr.isatty():
        click.echo(CLEAR, nl=False, err=True)
    if output == "-":
        click.echo(made.text, nl=False)
        return
    write_new(path, made.text)
    modes = ", ".join(f"{count} {mode}" for mode, count in sorted(made.modes.items()))
    click.echo(f"{output}: {made.modes.total()} exports ({modes})")
    off = [entry for entry in made.entries if entry.off is not None]
    for entry in off:
        click.echo(f"  left out: {entry.relation.schema}.{entry.relation.name}, {entry.off}")
    notes = sum(len(entry.choice.review) for entry in made.entries)
    if notes:
        click.echo(f"  to be reviewed, as the file says: {notes}")
    config = "" if output == "rivet.yaml" else f" -c {output}"
    click.echo(
        "Next:\n"
        f"  rivet-dagster check{config}      what each run would read, and what deserves a look\n"
        f"  rivet-dagster run{config}        extract\n"
        f"  rivet-dagster validate{config}   check every byte that was written\n"
        f"  RIVET_CONFIG={path} dagster dev -m rivet_dagster.definitions   the same in Dagster"
    )


def _tell(done: int, total: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"{CLEAR}looking at table {done + 1} of {total}", nl=False, err=True)
