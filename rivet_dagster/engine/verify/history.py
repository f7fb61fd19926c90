"""Which of the runs that wrote to a prefix make up the export now, by their manifests alone."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from rivet_dagster.engine.verify.manifest import Manifest


def still_counted(manifests: Iterable[Manifest]) -> set[str]:
    """Runs whose parts make up the export: since the last whole pass, without those repaired since."""
    good = sorted((m for m in manifests if m.status == "success"), key=_finished)
    replaced = {run for m in good if m.additions for run in m.additions.supersedes}
    last_pass = max((i for i, m in enumerate(good) if _is_pass(m)), default=0)
    return {m.run_id for m in good[last_pass:] if m.run_id not in replaced}


def _is_pass(manifest: Manifest) -> bool:
    """Whether the run replaced all that was there: it began at no value of a cursor. First windows of the
    reference do not."""
    return manifest.additions is not None and manifest.source.extraction.cursor_low is None


def _finished(manifest: Manifest) -> datetime:
    try:
        at = datetime.fromisoformat(manifest.finished_at)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _accumulates(manifest: Manifest) -> bool:
    """Whether the run is one window of a cursor; any other run is the whole table again."""
    return manifest.source.extraction.cursor_column is not None


__all__ = ["still_counted"]
