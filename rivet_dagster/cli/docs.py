"""docs/cli.md from the commands themselves: ``python -m rivet_dagster.cli.docs --write``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from rivet_dagster.cli import VERBS, cli
from rivet_dagster.cli.shared import common_options

PAGE: Final = Path(__file__).parents[2] / "docs" / "cli.md"

_INTRO: Final = """# rivet-dagster

The engine on the command line: the same exports, state and guarantees as the Dagster jobs, without Dagster.
This page is generated: `python -m rivet_dagster.cli.docs --write`.

[quickstart.md](quickstart.md) leads from your database to the first files.

Verbs that read a config take these options, which the tables below leave out:

| option | |
|---|---|
| `-c`, `--config FILE` | the config; default: `RIVET_CONFIG`, else `rivet.yaml` in this folder |
| `-p`, `--param NAME=VALUE` | for `${NAME}` in the config; again and again |
| `-e`, `--export NAME` | only this export; again and again. Without it all of them |
| `--debug` | show where an unexpected error came from |

Exports go one after the other, and one that fails leaves the others running. `RIVET_STATE_URL` says where the
state is.

## Exit codes

| code | class | meaning |
|---|---|---|
| 0 | | done, also when there was nothing to do |
| 1 | `generic` | the call, the config or the surroundings are wrong |
| 2 | `retryable` | a new attempt may succeed |
| 3 | `data_integrity` | data is wrong, or would be |
| 4 | `schema_drift` | the source changed its shape |
| 5 | `refusal` | going on would not be safe |
| 6 | `internal` | a defect of ours |
| 130 | | stopped by Ctrl-C; what was committed stays, and the next run goes on from it |

Of several failures the gravest decides: 3, then 6, 5, 4, 2, 1. [errors.md](errors.md) has every code.

## For programs

- `--json` prints results on stdout, one JSON object a line; what is for people goes to stderr.
- `--json-errors`, before the verb or behind it, makes the last line of stderr a JSON object when something
  failed: `error`, `exit_class` (the exit code), `code`, `kind`, `class`, `exit_code`, `retryable` and
  `action` of the gravest failure, and `failures` with the same and a `message` for each `export`. Read
  `retryable`, never the text.
- `--summary-output FILE` writes the sum of the invocation: counts, rows, bytes, and `per_export` with status,
  run id, figures and the error object of each.
- Progress is a bar on a terminal, and a line every ten seconds where there is none.
- Passwords are read from the environment, or from what the config names, and are masked wherever text leaves
  the process.

## Completion

Click makes it; names of exports are completed too. For bash, in `~/.bashrc` (zsh and fish alike):

```bash
eval "$(_RIVET_DAGSTER_COMPLETE=bash_source rivet-dagster)"
```

## A sealed plan

`plan -e NAME -o FILE` writes what a run would do into a file, `apply FILE` does exactly that. Ranges of keys
are run as they stand, so rows beyond them wait for the next plan; the page ranges of a whole table only mean
something inside a snapshot and are cut again. The file holds bounds of keys, no credential and no query; the
config is needed to apply it.

| | |
|---|---|
| older than 1 hour | a note |
| older than 24 hours | refused (5), unless `--force` |
| a run was made since | refused (5), unless `--force` |
| the cursor moved since | refused (5): rows would be there twice |
| columns changed | refused (4) |
| export, source, destination or state is another | refused (5) |
| the file was edited | refused (5) |
| killed on the way | `apply` again goes on with the units that are missing |
| applied already | 0, with the result of that run |

## Verbs
"""


def render() -> str:
    """The page as it must be."""
    lines = [_INTRO]
    root = click.Context(cli, info_name="rivet-dagster")
    for name in VERBS:
        command = cli.get_command(root, name)
        assert command is not None
        lines += _section(command, click.Context(command, parent=root, info_name=name))
    return "\n".join(lines).rstrip() + "\n"


def _section(command: click.Command, context: click.Context) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _section(inner, click.Context(inner, parent=context, info_name=name))
        return
    words = context.command_path.removeprefix("rivet-dagster ")
    yield f"### {words}\n"
    yield f"{command.help}\n"
    yield f"`{context.command_path} {' '.join(command.collect_usage_pieces(context))}`\n"
    common = {option.name for option in common_options()} | {"params", "exports"}
    options = [p for p in command.params if isinstance(p, click.Option) and p.name not in common]
    options = [p for p in options if p.name != "path" or p.envvar is None]
    if not options:
        return
    yield "| option | |"
    yield "|---|---|"
    for option in options:
        shown = option.get_help_record(context)
        if shown is not None:
            yield f"| `{_cell(shown[0])}` | {_cell(shown[1])} |"
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(render(), encoding="utf-8")
    else:
        sys.stdout.write(render())
