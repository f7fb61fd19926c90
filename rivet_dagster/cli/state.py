"""``state``: what the engine remembers of each export, and the two things one may do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from rivet_dagster.cli.shared import (
    Options,
    Verb,
    common_options,
    export_options,
    on_exports,
    open_engine,
    print_json,
    print_table,
)
from rivet_dagster.engine.errors import UsageError

if TYPE_CHECKING:
    from rivet_dagster.engine.run.engine import Engine
    from rivet_dagster.engine.state.models import Lease, RunHeader

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_limit = click.option(
    "-l", "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most so many."
)
_run_id = click.option("--run-id", metavar="RUN", help="This run instead of the latest one.")
_lock_wait = click.option(
    "--lock-wait", type=click.IntRange(min=0), default=0, show_default=True,
    help="Seconds to wait for a run of the export to end.",
)  # fmt: skip


class _Group(click.Group):
    command_class = Verb

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += common_options()


@click.group(cls=_Group)
def state() -> None:
    """Look at cursors, runs, units and files; reset a cursor, give a run up."""


@state.command()
@export_options
@_json
def show(path: str, exports: tuple[str, ...], params: Options, as_json: bool) -> None:
    """The cursor, the last and the open run, and the holder of each export."""

    def act(engine: Engine, name: str) -> None:
        found = _shown(engine, name)
        if as_json:
            print_json(found)
        else:
            click.echo("\n".join(_lines(found)))

    on_exports(path, params, exports, act)


def _shown(engine: Engine, name: str) -> dict[str, Any]:
    kept, prefix = engine.state, engine.prefix(engine.export(name))
    cursor = kept.cursor(name, prefix)
    done, begun = kept.latest_run(name), kept.open_run(name)
    holder = kept.holder(engine.lease_key(name))
    bounds = kept.progression(name, prefix)
    progress = kept.progress(begun.run_id) if begun is not None else None
    return {
        "export_name": name,
        "prefix": prefix,
        "cursor": cursor and {"column": cursor.column, "value": cursor.value, "run_id": cursor.run_id},
        "last_run": _run(done),
        "open_run": _run(begun),
        "open_units": progress and {"completed": progress.completed, "total": progress.total},
        "holder": holder and {"holder": holder.holder, "host": holder.host, "pid": holder.pid,
                              "expires_in_s": round(holder.expires_in_s, 1)},
        "committed": bounds.committed and (bounds.committed.cursor or bounds.committed.chunk_index),
        "verified": bounds.verified and (bounds.verified.cursor or bounds.verified.chunk_index),
    }  # fmt: skip


def _run(run: RunHeader | None) -> dict[str, Any] | None:
    if run is None:
        return None
    return {
        "run_id": run.run_id,
        "export_name": run.export_name,
        "status": run.status,
        "mode": run.mode,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "parent_run_id": run.parent_run_id,
        "holder": run.holder,
    }


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"{found['export_name']}: {found['prefix']}"
    if cursor := found["cursor"]:
        yield f"  cursor: {cursor['column']} = {cursor['value']}"
    last = found["last_run"]
    yield f"  last complete run: {last['run_id']}" if last else "  last complete run: none"
    if begun := found["open_run"]:
        units = found["open_units"]
        yield f"  open run: {begun['run_id']}, {units['completed']} of {units['total']} units done"
    if holder := found["holder"]:
        yield f"  held by: {holder['holder']}, process {holder['pid']} on {holder['host']}"


@state.command()
@export_options
@_limit
@click.option("--running", is_flag=True, help="Only runs that are open.")
@_json
def runs(
    path: str, exports: tuple[str, ...], params: Options, limit: int, running: bool, as_json: bool
) -> None:
    """The last runs of each export, newest first."""

    def act(engine: Engine, name: str) -> None:
        found = engine.state.runs(engine.export(name).name, limit=limit, open_only=running)
        if as_json:
            print_json([_run(run) for run in found])
        else:
            print_table([(r.run_id, r.status, r.mode, f"{r.created_at:%Y-%m-%d %H:%M:%S}") for r in found])

    on_exports(path, params, exports, act)


@state.command()
@export_options
@_run_id
@_json
def units(path: str, exports: tuple[str, ...], params: Options, run_id: str | None, as_json: bool) -> None:
    """The work units of a run: bounds, status, attempts, rows."""

    def rows(engine: Engine, run: str) -> list[dict[str, Any]]:
        return [
            {"index": r.unit.index, "partition": r.unit.partition, "status": r.status,
             "attempts": r.attempts, "rows": r.rows, "bytes": r.bytes, "seconds": round(r.seconds, 3),
             "start": r.unit.start_key, "end": r.unit.end_key,
             "error": dict(r.error) if r.error else None}
            for r in engine.state.units(run)
        ]  # fmt: skip

    def line(one: dict[str, Any]) -> tuple[Any, ...]:
        bounds = f"{one['start'] or ''} .. {one['end'] or ''}"
        code = one["error"]["code"] if one["error"] else ""
        return (one["index"], one["status"], one["attempts"], f"{one['rows']} rows", bounds, code)

    _of_run(path, params, exports, run_id, as_json, rows, line)


@state.command()
@export_options
@_run_id
@_json
def files(path: str, exports: tuple[str, ...], params: Options, run_id: str | None, as_json: bool) -> None:
    """The files of a run with rows, bytes and fingerprint."""

    def rows(engine: Engine, run: str) -> list[dict[str, Any]]:
        return [
            {"name": p.file_name, "unit": p.chunk_index, "rows": p.row_count, "bytes": p.bytes,
             "fingerprint": p.fingerprint, "written_by": p.origin_run_id}
            for p in engine.state.parts(run)
        ]  # fmt: skip

    def line(one: dict[str, Any]) -> tuple[Any, ...]:
        return (one["name"], f"{one['rows']} rows", f"{one['bytes']} bytes", one["fingerprint"])

    _of_run(path, params, exports, run_id, as_json, rows, line)


def _of_run(
    path: str,
    params: Options,
    exports: tuple[str, ...],
    run_id: str | None,
    as_json: bool,
    rows: Callable[[Engine, str], list[dict[str, Any]]],
    line: Callable[[dict[str, Any]], tuple[Any, ...]],
) -> None:
    """Print ``rows`` of the latest run of each export, or of the one that is named."""
    with open_engine(path, params) as engine:
        for run in _chosen(engine, exports, run_id):
            found = rows(engine, run)
            if as_json:
                print_json({"run_id": run, "items": found})
            else:
                click.echo(run)
                print_table([line(one) for one in found])


def _chosen(engine: Engine, exports: tuple[str, ...], run_id: str | None) -> Iterator[str]:
    if run_id is not None:
        if engine.state.get_run(run_id) is None:
            raise UsageError(f"the state has no run {run_id}", code="RIVET_CLI_RUN_UNKNOWN")
        yield run_id
        return
    for name in exports or tuple(e.name for e in engine.config.exports):
        for run in engine.state.runs(engine.export(name).name, limit=1):
            yield run.run_id


@state.command()
@export_options
@_lock_wait
def reset(path: str, exports: tuple[str, ...], params: Options, lock_wait: int) -> None:
    """Forget the cursor of the named exports: their next run reads everything and replaces the files."""

    def act(engine: Engine, name: str, lease: Lease) -> str:
        prefix = engine.prefix(engine.export(name))
        gone = engine.state.reset_cursor(name, prefix, lease)
        return "the next run reads everything" if gone else "there was no cursor"

    _change(path, params, exports, lock_wait, act)


@state.command("give-up")
@export_options
@_lock_wait
def give_up(path: str, exports: tuple[str, ...], params: Options, lock_wait: int) -> None:
    """End the open run of the named exports: it is continued no more, the next run plans anew."""

    def act(engine: Engine, name: str, lease: Lease) -> str:
        run = engine.state.open_run(name)
        if run is None:
            return "no run is open"
        engine.state.interrupt_run(run.run_id, lease)
        return f"run {run.run_id} is given up"

    _change(path, params, exports, lock_wait, act)


def _change(
    path: str,
    params: Options,
    exports: tuple[str, ...],
    lock_wait: int,
    act: Callable[[Engine, str, Lease], str],
) -> None:
    """``act`` under the lease of each export, so never beside a run. No name is no export here."""
    if not exports:
        raise UsageError("name the export with -e", code="RIVET_CLI_USAGE")

    def change(engine: Engine, name: str) -> None:
        key = engine.lease_key(engine.export(name).name)
        lease = engine.state.acquire(key, "cli state", wait_s=lock_wait)
        try:
            click.echo(f"{name}: {act(engine, name, lease)}")
        finally:
            engine.state.release(lease)

    on_exports(path, params, exports, change)
