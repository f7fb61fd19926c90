"""What an export's config means to the workers of one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rivet_dagster.engine.destinations.base import Store
from rivet_dagster.engine.run.added import extender
from rivet_dagster.engine.run.events import RunPlan
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


def work_order(
    engine: Engine,
    export: ExportConfig,
    plan: RunPlan,
    *,
    keeper: LeaseKeeper,
    store: Store,
    facts: SourceFacts,
    columns: Sequence[Column],
    new_reader: Callable[[], UnitReader],
) -> WorkOrder:
    """The order for the outstanding units of ``plan``. columns: of the source, with the meta columns."""
    source = engine.source(export)
    options = write_options(export)
    tuning = engine.config.tuning_for(export)
    written = source.file_columns(tuple(columns), options.format)
    run = engine.state.get_run(plan.run_id)
    assert run is not None
    assert run.created_at is not None
    return WorkOrder(
        run_id=plan.run_id,
        state=engine.state,
        keeper=keeper,
        store=store,
        options=options,
        new_writer=lambda path: new_part_writer(path, written, options),
        new_reader=new_reader,
        new_watch=lambda: source.watch(weighs=tuning.adaptive),
        pace=pace_rules(tuning, min(export.parallel, len(plan.outstanding))),
        checksum=checksums(options.format, checksum_key(export, facts)),
        retry_backoff_ms=tuning.retry_backoff_ms,
        only=plan.outstanding,
        measure=measure(export, written),
        limit=batch_limit(tuning),
        extend=extender(export, written, run.created_at),
        read_back=export.verify == "content",
        shows_schema=not export.skip_empty,
    )


def load_the_rest(options: WriteOptions) -> None:
    """Import what a run needs after its plan."""
    load_writer(options)
    import rivet_dagster.engine.run.finalize  # noqa: F401
