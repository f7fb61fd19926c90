"""``metrics`` and ``journal``: what runs took, and what happened in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from rivet_dagster.cli.shared import Options, Verb, export_options, on_exports, print_json, print_table

if TYPE_CHECKING:
    from rivet_dagster.engine.run.engine import Engine


def _limit(default: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "-l",
        "--limit",
        type=click.IntRange(min=1),
        default=default,
        show_default=True,
        help="At most so many runs of each export.",
    )


@click.command(cls=Verb)
@export_options
@_limit(20)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a run.")  # fmt: skip
def metrics(path: str, exports: tuple[str, ...], params: Options, limit: int, as_json: bool) -> None:
    """Rows, files, bytes and time of the last runs, newest first."""

    def act(engine: Engine, name: str) -> None:
        found = engine.state.metrics(engine.export(name).name, limit=limit)
        if as_json:
            for row in found:
                print_json({key: value for key, value in row.items() if key != "id"})
        else:
            print_table([_figures(name, row) for row in found])

    on_exports(path, params, exports, act)


def _figures(name: str, row: Any) -> tuple[Any, ...]:
    error = row["error"]["code"] or row["error"]["class"] if row["error"] else ""
    rows, seconds = row["total_rows"] or 0, (row["duration_ms"] or 0) / 1000
    return (
        f"{row['run_at']:%Y-%m-%d %H:%M:%S}",
        name,
        row["status"],
        f"{rows:,} rows",
        f"{row['files_produced'] or 0} files",
        f"{row['bytes_written'] or 0:,} bytes",
        f"{seconds:.1f} s",
        f"{rows / seconds:,.0f} rows/s" if seconds and rows else "",
        error,
    )


@click.command(cls=Verb)
@export_options
@_limit(5)
@click.option("--run-id", metavar="RUN", help="Only this run.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object an event.")  # fmt: skip
def journal(
    path: str,
    exports: tuple[str, ...],
    params: Options,
    limit: int,
    run_id: str | None,
    as_json: bool,
) -> None:
    """The last runs and what each of them recorded, in order."""

    def act(engine: Engine, name: str) -> None:
        for run in engine.state.runs(engine.export(name).name, limit=limit if run_id is None else 10_000):
            if run_id not in (None, run.run_id):
                continue
            events = engine.state.journal(run.run_id)
            if not as_json:
                click.echo(f"{run.run_id}: {run.status}, begun {run.created_at:%Y-%m-%d %H:%M:%S} UTC")
                print_table([("", f"{e.at:%H:%M:%S}", e.event, _detail(e.detail)) for e in events])
                continue
            for e in events:
                at = {"run_id": run.run_id, "export_name": name, "seq": e.seq, "at": e.at}
                print_json({**at, "event": e.event, "detail": dict(e.detail)})

    on_exports(path, params, exports, act)


def _detail(detail: Any) -> str:
    return ", ".join(f"{key} {value}" for key, value in detail.items())
