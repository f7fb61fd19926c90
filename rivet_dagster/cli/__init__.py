"""``rivet-dagster``: the engine without Dagster, for scripts and for looking at things.

Thin: every verb calls the functions that the jobs call. Exit codes are those of the error tree. A verb
is imported when it is called, so that ``run`` does not wait for what the others need.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

from rivet_dagster import __version__
from rivet_dagster.cli.shared import (
    ExportsFailedError,
    Verb,
    common_options,
    debug_wanted,
    json_errors_wanted,
)
from rivet_dagster.engine.errors import RivetError, UsageError, as_rivet_error
from rivet_dagster.engine.results import failure_line

#: Verb -> the module beside this one that has it, in the order of the help.
VERBS: Final[Mapping[str, str]] = {
    "init": "init",
    "doctor": "doctor",
    "check": "planning",
    "run": "run",
    "work": "work",
    "plan": "planning",
    "apply": "planning",
    "validate": "verify",
    "reconcile": "verify",
    "repair": "verify",
    "state": "state",
    "metrics": "history",
    "journal": "history",
    "reap": "instance",
    "setup": "instance",
    "schema": "reference",
    "errors": "reference",
}


class VerbGroup(click.Group):
    """Finds verbs by name and imports no other."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += common_options()

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"rivet_dagster.cli.{VERBS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name)
        return command


@click.group(cls=VerbGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rivet-dagster")
def cli() -> None:
    """Extract database tables to files: exact, resumable, kind to the source."""


def main() -> None:
    """Turns an error of the tree into its exit code, and into JSON if that is wanted."""
    try:
        cli.main(prog_name="rivet-dagster", standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        _fail(UsageError(error.format_message(), code="RIVET_CLI_USAGE"), shown=error.show)
    except ExportsFailedError as error:
        _fail(*error.errors, shown=lambda: None)
    except RivetError as error:
        _fail(error)
    except Exception as error:
        wrapped = as_rivet_error(error)
        if debug_wanted():
            click.echo(str(wrapped), err=True)
            raise
        _fail(wrapped)


def entry() -> None:
    """``main`` as a process: it ends without taking the interpreter apart.

    What a run leaves behind is committed by then, and undoing 600 modules costs as much CPU as a small
    export. They all live to the end, so collecting while they load finds nothing either.
    """
    gc.disable()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # the search reads every package's metadata
    code = 1
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    if debug_wanted():
        sys.exit(code)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _fail(*errors: RivetError, shown: Any = None) -> None:
    """Say what failed, as text (by ``shown`` where it is given) or as one line of JSON, and exit."""
    line = failure_line(errors)
    if json_errors_wanted():
        click.echo(json.dumps(line), err=True)
    elif shown is not None:
        shown()
    else:
        click.echo(str(errors[0]), err=True)
    sys.exit(line["exit_class"])


__all__ = ["VERBS", "Verb", "cli", "entry", "main"]
