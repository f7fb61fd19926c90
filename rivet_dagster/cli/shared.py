"""What verbs have in common: options, the engine, and going through exports."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rivet_dagster.engine.errors import EnvironmentFault, RivetError, as_rivet_error

if TYPE_CHECKING:
    from rivet_dagster.config import RivetConfig
    from rivet_dagster.engine.run.engine import Engine

Options = tuple[tuple[str, str], ...]
_JSON_ERRORS = "--json-errors"
_DEBUG = "--debug"


class ExportsFailedError(Exception):
    """Exports of a command failed; each was reported when it did."""

    def __init__(self, errors: Sequence[RivetError]) -> None:
        super().__init__(f"{len(errors)} exports failed")
        self.errors = tuple(errors)


def common_options() -> list[click.Parameter]:
    """What every command takes, before the verb and behind it."""
    return [
        click.Option(
            [_JSON_ERRORS], is_flag=True, expose_value=False, help="On failure one JSON object on stderr."
        ),
        click.Option(
            [_DEBUG], is_flag=True, expose_value=False, help="Show where an unexpected error came from."
        ),
    ]


class Verb(click.Command):
    """A command that takes the common options behind its name too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += common_options()


def json_errors_wanted() -> bool:
    """Asked of the arguments themselves: a mistake among them must be told as JSON too."""
    return _JSON_ERRORS in sys.argv


def debug_wanted() -> bool:
    return _DEBUG in sys.argv


class NameValue(click.ParamType[tuple[str, str]]):
    name = "K=V"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        key, sep, text = str(value).partition("=")
        if not sep or not key:
            self.fail("expected NAME=VALUE", param, ctx)
        return key, text


def param_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """``-p`` as ``params``."""
    given = click.option(
        "-p", "--param", "params", type=NameValue(), multiple=True, help="Sets ${NAME}; repeat."
    )
    return given(command)


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``-c`` as ``path`` and ``-p`` as ``params``."""
    config = click.option(
        "-c", "--config", "path", envvar="RIVET_CONFIG", show_envvar=True, default="rivet.yaml",
        show_default=True, metavar="FILE", help="The config file.",
    )  # fmt: skip
    return config(param_option(command))


def export_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``config_options``, and ``-e`` as ``exports``."""
    named = click.option(
        "-e", "--export", "exports", multiple=True, shell_complete=_export_names,
        help="Only this export; repeat.",
    )  # fmt: skip
    return config_options(named(command))


def _export_names(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """For the shell. A config that does not load completes nothing."""
    path = context.params.get("path") or os.environ.get("RIVET_CONFIG") or "rivet.yaml"
    with contextlib.suppress(RivetError):
        return [export.name for export in load(path, ()).exports if export.name.startswith(begun)]
    return []


def lock_wait_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--lock-wait``; without it the config's ``lock_wait`` holds."""
    given = click.option(
        "--lock-wait", type=click.IntRange(min=0), metavar="SECONDS",
        help="Seconds to wait for another run of an export.",
    )  # fmt: skip
    return given(command)


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--json`` as ``as_json``, ``--summary-output`` as ``summary``, ``--lock-wait``, ``--no-notify``."""
    for option in (
        lock_wait_option,
        click.option("--no-notify", is_flag=True, help="Send no notification about this run."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object a run."),
        click.option("--summary-output", "summary", type=click.Path(dir_okay=False), metavar="FILE",
                     help="Write the result of the whole invocation there as JSON."),
    ):  # fmt: skip
        command = option(command)
    return command


def load(path: str, params: Options) -> RivetConfig:
    from rivet_dagster.config import load_config

    return load_config(path, dict(params))


def open_engine(path: str, params: Options) -> Engine:
    from rivet_dagster.engine.run.engine import Engine

    return Engine(load(path, params))


def open_engine_to_run(path: str, params: Options, exports: Sequence[str]) -> Engine:
    """``open_engine`` for a command that runs ``exports`` at once; all of the config without names."""
    from rivet_dagster.engine.run.early import connect_early

    config = load(path, params)
    connectors = connect_early(config, exports or tuple(e.name for e in config.exports))
    from rivet_dagster.engine.run.engine import Engine  # while they connect

    return Engine(config, connectors=connectors)


def each(engine: Engine, exports: Sequence[str], act: Callable[[str], None]) -> list[RivetError]:
    """``act`` on each named export, all without names. One failure leaves the others running.

    Returns what failed, each said on stderr unless ``--json-errors`` tells it at the end.
    """
    errors: list[RivetError] = []
    for name in exports or tuple(e.name for e in engine.config.exports):
        try:
            act(name)
        except Exception as caught:
            if debug_wanted():
                raise
            error = as_rivet_error(caught)
            error.export = error.export or name
            errors.append(error)
            if not json_errors_wanted():
                click.echo(str(error), err=True)
    return errors


def on_exports(
    path: str, params: Options, exports: Sequence[str], act: Callable[[Engine, str], None]
) -> None:
    """``each`` over a config's engine. Raises ExportsFailedError."""
    with open_engine(path, params) as engine:
        raise_failures(each(engine, exports, lambda name: act(engine, name)))


def raise_failures(errors: Sequence[RivetError]) -> None:
    if errors:
        raise ExportsFailedError(errors)


def write_output(path: str, text: str, *, mode: int = 0o644) -> None:
    """Replace the file at ``path``, whole or not at all. Raises RIVET_CLI_OUTPUT_UNWRITABLE."""
    target = Path(path)
    staged = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
            file.write(text)
        staged.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            staged.unlink()
        raise EnvironmentFault(
            f"{path} cannot be written: {error.strerror}", code="RIVET_CLI_OUTPUT_UNWRITABLE"
        ) from error


def print_json(value: Any, *, err: bool = False) -> None:
    """One line. Times are written as ISO 8601 says."""
    text = json.dumps(value, default=lambda v: v.isoformat() if hasattr(v, "isoformat") else str(v))
    click.echo(text, err=err)


def print_table(rows: Sequence[Sequence[Any]]) -> None:
    """Aligned columns, without a heading."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
