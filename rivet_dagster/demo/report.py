"""The few lines that the demo ends with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rivet_dagster.demo.check import Checked
from rivet_dagster.demo.watch import Left


def report(results: Sequence[Checked], resumed: Mapping[str, Left], out: Path, seconds: float) -> str:
    """What was exported and whether it is right, where it is, and what to try next."""
    rows = sum(result.rows for result in results)
    lines = [
        f"Exported {len(results)} tables with {rows:,} rows through Dagster, {seconds:.0f} s in all.",
        "",
        *_table([_HEAD, *(_row(result) for result in results)]),
        "",
        "check: the files, read without manifest or state, hold each key of the table exactly once",
    ]
    lines += [
        f"{name} was resumed: {left.done} of {left.total} units were already done by the run that was killed"
        for name, left in resumed.items()
    ]
    lines += [
        "",
        f"The files      {out}",
        "In Dagster     make ui",
        "Kill it        kill -9 $(cat .demo/pid) half-way through, then make demo again: it resumes",
    ]
    return "\n".join(lines)


_HEAD = ("export", "mode", "rows", "files", "size", "rows/s", "check")


def _row(result: Checked) -> tuple[str, ...]:
    rate = result.rows_per_second
    if result.ok:
        verdict = "ok" if result.fresh else "ok, nothing new"
    else:
        verdict = f"WRONG: {result.keys:,} keys, the table has {result.expected:,}"
    return (
        result.export,
        result.mode,
        f"{result.rows:,}",
        f"{result.files}",
        f"{result.bytes / 1e6:.1f} MB",
        "-" if rate is None else f"{rate:,.0f}",
        verdict,
    )


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns in line: the first two and the last to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    left = {0, 1, len(widths) - 1}
    return [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
