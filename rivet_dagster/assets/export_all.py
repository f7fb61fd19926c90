"""``export_all``: every export of the config, packed; what became of each is told and kept at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
from dagster._core.events import DagsterEvent, EngineEventData

from rivet_dagster.assets._internal import retries_config, retry_mode
from rivet_dagster.assets.failure import tell
from rivet_dagster.assets.launcher import HOST
from rivet_dagster.assets.reaper import holder_of
from rivet_dagster.engine.errors import RivetError
from rivet_dagster.engine.packing import Packer, budget_of, in_order, needs
from rivet_dagster.engine.results import Aggregate, blank_entry, unit_facts, without_messages

if TYPE_CHECKING:
    from dagster._core.execution.context.system import PlanOrchestrationContext

    from rivet_dagster.assets.executor import Packing, Summary
    from rivet_dagster.assets.exports import ExportAssets
    from rivet_dagster.assets.resources import RivetResource
    from rivet_dagster.engine.run.engine import Engine

#: Exports at a time unless the launch says otherwise: while one waits for the disk, another works.
MAX_CONCURRENT: Final = (os.cpu_count() or 1) + 1
_LISTED: Final = 500


def packed_executor(assets: Sequence[ExportAssets], rivet: RivetResource) -> dg.ExecutorDefinition:
    """The executor of a job over all of ``assets``."""

    @dg.executor(
        name="packed",
        config_schema={
            "max_concurrent": dg.Field(
                dg.Noneable(int), default_value=None, description="Exports at a time; default: cores + 1."
            ),
            "retries": retries_config(),
        },
        requirements=dg.multiple_process_executor_requirements(),
    )
    def packed(context: dg.InitExecutorContext) -> dg.Executor:
        from rivet_dagster.assets.executor import PackedExecutor

        config = context.executor_config
        limit = config.get("max_concurrent") or MAX_CONCURRENT
        assert isinstance(limit, int)
        return PackedExecutor(retry_mode(config), limit, _packing(assets, rivet), _summary(assets, rivet))

    return packed


def _packing(assets: Sequence[ExportAssets], rivet: RivetResource) -> Callable[[list[str]], Packing]:
    by_step = {a.names.op: a for a in assets}

    def pack(steps: list[str]) -> Packing:
        from rivet_dagster.assets.executor import Packing

        config = assets[0].config
        chosen = {by_step[step].export.name: step for step in steps if step in by_step}
        # it only looks: a state that would not last is refused by each step, under its own name
        with rivet.engine(config, HOST) as engine:
            order = in_order(needs(engine, list(chosen)).values())
        return Packing({chosen[need.name]: need for need in order}, Packer(budget_of(config)))

    return pack


def _summary(assets: Sequence[ExportAssets], rivet: RivetResource) -> Summary:
    by_step = {a.names.op: a for a in assets}

    def summary(
        context: PlanOrchestrationContext,
        entries: Mapping[str, dict[str, Any] | None],
        died: frozenset[str],
        began: datetime,
    ) -> Iterator[DagsterEvent]:
        config = assets[0].config
        total = Aggregate(str(config.path), "packed", began)
        try:
            with rivet.engine(config, HOST) as engine:
                for step, entry in entries.items():
                    if step in by_step:
                        total.entries.append(
                            entry or _untold(engine, by_step[step], context.run_id, died=step in died)
                        )
                record = without_messages(total.ended())
                engine.patient_state.record_aggregate(record)
        except RivetError as error:  # the runs are what they are without this line about them
            tell(error)
            return
        text = (
            f"{record.total_exports} exports: {record.success_count} succeeded, {record.failed_count} failed,"
            f" {record.skipped_count} skipped; {record.total_rows} rows ({record.run_aggregate_id})"
        )
        metadata: dict[str, Any] = {
            "run_aggregate_id": record.run_aggregate_id,
            "exports": dg.MetadataValue.json([unit_facts(entry) for entry in record.details[:_LISTED]]),
        }
        yield DagsterEvent.engine_event(context, text, EngineEventData(metadata))

    return summary


def _untold(engine: Engine, assets: ExportAssets, run_id: str, *, died: bool) -> dict[str, Any]:
    """The entry of an export whose process said nothing: it died, or never had the step."""
    from rivet_dagster.engine.run.crashed import record_crash

    export = assets.export
    if died:
        return record_crash(engine, export.name, holder_of(run_id))
    reason = "the run ended before it began"
    return {**blank_entry(export.name, "skipped", mode=export.mode), "skip_reason": reason}
