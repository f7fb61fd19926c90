"""What an export's config means to the workers of one run."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

from rivet_dagster.engine.run.added import extender
from rivet_dagster.engine.run.fencing import FencedStore
from rivet_dagster.engine.run.figures import measure
from rivet_dagster.engine.run.options import batch_limit, checksum_key, checksums, pace_rules, write_options
from rivet_dagster.engine.run.workers import WorkOrder
from rivet_dagster.engine.sources.base import SourceFacts, UnitReader
from rivet_dagster.engine.state.lease import LeaseKeeper
from rivet_dagster.engine.types.decision import Column
from rivet_dagster.engine.write import load_writer, new_part_writer
from rivet_dagster.engine.write.base import WriteOptions

if TYPE_CHECKING:
    from rivet_dagster.config import ExportConfig
    from rivet_dagster.engine.run.engine import Engine

#: Units that may fail in a row on a guest before it leaves the rest to others: its host may be at fault.
_GUEST_FAILURES: Final = 3


def worker_label() -> str:
    """Tells this process apart from all that may work on the same run."""
    return f"{socket.gethostname()}:{os.getpid()}"


def work_order(
    engine: Engine,
    export: ExportConfig,
    run_id: str,
    *,
    only: Collection[int] | None,
    keeper: LeaseKeeper,
    store: FencedStore,
    facts: SourceFacts,
    columns: Sequence[Column],
    new_reader: Callable[[], UnitReader],
    parallel: int,
    leads: bool = True,
) -> WorkOrder:
    """The order for the outstanding units of a run. columns: of the source, with the meta columns.

    only: indexes of the units to work on, None for all that are not complete.
    """
    source = engine.source(export)
    options = write_options(export)
    tuning = engine.config.tuning_for(export)
    written = source.file_columns(tuple(columns), options.format)
    run = engine.state.patient(keeper.patience).get_run(run_id)
    assert run is not None
    assert run.created_at is not None
    return WorkOrder(
        run_id=run_id,
        state=engine.state,
        keeper=keeper,
        store=store,
        options=options,
        new_writer=lambda path: new_part_writer(path, written, options),
        new_reader=new_reader,
        new_watch=lambda: source.watch(weighs=tuning.adaptive),
        pace=pace_rules(tuning, parallel),
        checksum=checksums(options.format, checksum_key(export, facts)),
        retry_backoff_ms=tuning.retry_backoff_ms,
        only=only,
        measure=measure(export, written),
        limit=batch_limit(tuning),
        extend=extender(export, written, run.created_at),
        read_back=export.verify == "content",
        shows_schema=not export.skip_empty,
        label=f"{worker_label()}/" if export.shared else "",
        shared=export.shared,
        gives_up_after=None if leads else _GUEST_FAILURES,
    )


def load_the_rest(options: WriteOptions) -> None:
    """Import what a run needs after its plan."""
    load_writer(options)
    import rivet_dagster.engine.run.finalize  # noqa: F401
