"""What an export to standard output cannot have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rivet_dagster.config.base import Problem

if TYPE_CHECKING:
    from rivet_dagster.config.export import ExportConfig


def stdout_problems(export: ExportConfig) -> Iterator[Problem]:
    """Standard output keeps nothing: what needs files to go on, to check or to split is not for it."""
    if export.destination.type != "stdout":
        return
    never = "standard output"
    if export.format != "csv":
        yield Problem(("format",), f"`format: {export.format}` does not work on {never}", "use `format: csv`")
    if export.accumulates:
        yield Problem(
            ("mode",), f"a cursor would move past rows that {never} may have lost", "use another mode"
        )
    for key in ("partition_by", "chunk_checkpoint", "max_file_size"):
        if getattr(export, key):
            yield Problem((key,), f"`{key}` does not work on {never}", f"remove `{key}`")
    if export.verify == "content":
        yield Problem(("verify",), f"nothing is read back from {never}", "remove `verify`")
