"""The page of error codes, from the registry. ``python -m rivet_dagster.engine.errors_doc --write``."""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec import Struct

from rivet_dagster.engine.errors import REGISTRY, Kind

PAGE = Path("docs/errors.md")

#: What a kind means to whoever is woken by it: (exit code, retried, in words).
MEANING: dict[Kind, tuple[str, str, str]] = {
    "usage": ("1", "no", "The config or the call is wrong; nothing was read or written."),
    "environment": ("1", "no", "The surroundings are wrong: a role, a disk, a server's version."),
    "transient": ("2", "yes", "A new attempt may succeed; the engine and Dagster make it by themselves."),
    "busy": ("2", "yes", "Another run of the export holds it."),
    "integrity": ("3", "no", "Data is wrong, or would be. Nothing is published over it."),
    "refusal": ("5 (`RIVET_SCHEMA_DRIFT`: 4)", "no", "Going on would not be safe."),
    "internal": ("6", "no", "A defect of ours."),
}


class Row(Struct, frozen=True):
    code: str
    kind: Kind
    action: str


def rows() -> list[Row]:
    """Every code, by kind and name."""
    order = list(MEANING)
    found = [Row(code, entry.kind, entry.action) for code, entry in REGISTRY.items()]
    return sorted(found, key=lambda r: (order.index(r.kind), r.code))


def render() -> str:
    lines = [
        "# Error codes",
        "",
        "Made from the registry by `python -m rivet_dagster.engine.errors_doc --write`. A failed step has "
        "the code, its class and `retryable` in its metadata; the text is in the run's log only. "
        "[runbook.md](runbook.md) says of each code what happened and what to look at.",
    ]
    for kind, (code, retried, words) in MEANING.items():
        lines += ["", f"## {kind}", "", f"{words} Exit code {code}; retried: {retried}.", ""]
        lines += ["| code | what to do |", "|---|---|"]
        lines += [
            f"| [`{r.code}`](runbook.md#{r.code.lower()}) | {r.action} |" for r in rows() if r.kind == kind
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(render())
    else:
        sys.stdout.write(render())
