"""The body of an export's step: one engine session, told to Dagster as it goes.

Two modes. *Table*: no partitions were selected; the engine plans (or resumes), the plan's partitions
are registered, and each is reported as its last unit commits. *Range*: partitions of the chunk asset
were selected; only those are executed, and each that is complete is reported, also when an earlier
attempt completed it: this run announced it as planned, and would otherwise leave it Failed.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dagster as dg

from rivet_dagster.assets._internal import die_with_parent, mark_partitions_planned
from rivet_dagster.assets._running import event_files_open
from rivet_dagster.assets.checks import validation_result
from rivet_dagster.assets.entries import tell_entry
from rivet_dagster.assets.events import Bucket, Tally, observation_metadata, table_metadata
from rivet_dagster.assets.failure import failure_metadata, retry_or_failure, tell, worst
from rivet_dagster.assets.gates import StepResult, gate_results, tell_checks
from rivet_dagster.assets.launcher import worker_of
from rivet_dagster.assets.metadata import source_lineage
from rivet_dagster.assets.naming import CHECKS_LOGGED, DRIFT, QUALITY, VALIDATE
from rivet_dagster.assets.partitions import is_window
from rivet_dagster.assets.pools import ensure_pools
from rivet_dagster.assets.reaper import holder_of
from rivet_dagster.engine.errors import RivetError, as_rivet_error
from rivet_dagster.engine.names import NULL_KEY
from rivet_dagster.engine.redact import redact
from rivet_dagster.engine.results import failed_entry, run_entry

if TYPE_CHECKING:
    from rivet_dagster.assets.exports import ExportAssets
    from rivet_dagster.assets.resources import RivetResource
    from rivet_dagster.engine.run.events import RunOutcome, RunPlan
    from rivet_dagster.engine.run.session import Session
    from rivet_dagster.engine.verify.report import Depth

#: Notes of the engine that go to the event log, per minute; the rest goes to stderr alone.
_NOTES_PER_MINUTE = 20


def run_export(
    context: dg.AssetExecutionContext,
    assets: ExportAssets,
    rivet: RivetResource,
    *,
    lock_wait: int | None,
    fresh: bool,
    depth: Depth | None,
) -> Iterator[StepResult]:
    """Run the export; yields the table's result and checks. Raises Failure or RetryRequested only.

    When checks alone were selected, they look at the last complete run.
    """
    die_with_parent()
    requested, yields_table = _requested(context, assets), assets.table_key in context.selected_asset_keys
    selected = checks = frozenset(key.name for key in context.selected_asset_check_keys)
    if CHECKS_LOGGED in context.run.tags:
        checks |= {spec.name for spec in assets.inline_checks}
    op_context = context.op_execution_context
    run = ExportRun(op_context, assets, requested, yields_table, checks, depth)
    caught: Exception | None = None
    try:
        if context.selected_asset_keys:
            results = run.steps(rivet, lock_wait=lock_wait, fresh=fresh)
            yield from tell_checks(op_context, results, selected)
        else:
            yield from run.checks_alone(rivet, lock_wait=lock_wait)
    except Exception as error:  # noqa: BLE001 - the event log would keep its text: it is told, not raised
        caught = error
    if caught is not None:
        # raised here, not in the handler: Dagster also stores the context of an exception
        raise run.verdict(caught)


def _requested(context: dg.AssetExecutionContext, assets: ExportAssets) -> list[str] | None:
    """Selected partitions of the chunk asset, with rows without a time if selected; None in table mode."""
    selected = context.selected_asset_keys
    found: list[str] = []
    if assets.chunks_key in selected and (context.has_partition_key or context.has_partition_key_range):
        found.extend(context.partition_keys)
    elif assets.table_key in selected:
        return None
    if assets.nulls is not None and assets.nulls.key in selected:
        found.append(NULL_KEY)
    return found or None


@dataclass
class _Notes:
    """The engine's notes: all to stderr, a limited number a minute to Dagster's event log."""

    window: float = field(default_factory=time.monotonic)
    written: int = 0

    def write(self, context: dg.OpExecutionContext, text: str) -> None:
        now = time.monotonic()
        if now - self.window >= 60:
            self.window, self.written = now, 0
        self.written += 1
        if self.written <= _NOTES_PER_MINUTE:
            context.log.info(redact(text))
        else:
            print(f"rivet: {redact(text)}", file=sys.stderr, flush=True)


@dataclass
class ExportRun:
    """One attempt of a step. requested: chunk partitions to run, None for all that are outstanding.

    yields_table: the table was selected, so its materialization is a result of the step; otherwise it
    is only logged. checks: names of the inline checks to tell of.
    """

    context: dg.OpExecutionContext
    assets: ExportAssets
    requested: list[str] | None
    yields_table: bool = False
    checks: frozenset[str] = frozenset()
    depth: Depth | None = None
    run_id: str | None = None
    started: float = field(default_factory=time.monotonic)
    errors: list[RivetError] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    notes: _Notes = field(default_factory=_Notes)

    def steps(
        self,
        rivet: RivetResource,
        *,
        lock_wait: int | None,
        fresh: bool = False,
        repair: bool = False,
        going_on: str | None = None,
    ) -> Iterator[StepResult]:
        """Plan, execute, finalize. Gates that end the run are told before their error is raised.

        going_on: only with the run of this id, as its new lead; nothing when it is over.
        """
        from rivet_dagster.engine.run.events import AlreadyAppliedError

        how = {"fresh": fresh, "repair": repair, "going_on": going_on}
        try:
            yield from self._steps(rivet, lock_wait, how)
        except AlreadyAppliedError as over:
            self.context.log.info(str(over))
        except RivetError as error:
            yield from self._gates(error.details)
            raise

    def checks_alone(self, rivet: RivetResource, *, lock_wait: int | None) -> Iterator[StepResult]:
        """The selected checks over the last complete run, under the lease: no run changes its files."""
        name = self.assets.export.name
        ensure_pools(self.context.instance, self.assets.config, exports=[name])
        with (
            rivet.engine(self.assets.config, worker_of(self.context)) as engine,
            engine.session(name, holder=holder_of(self.context.run_id), lock_wait=lock_wait),
        ):
            if VALIDATE in self.checks:
                yield validation_result(self.assets, engine.validate(name, depth=self.depth or "full"))
            found: dict[str, Any] = {}
            if QUALITY in self.checks:
                found["quality"] = engine.quality(name).as_json()
            if DRIFT in self.checks:
                found["drift"] = engine.drift(name).as_json()
            yield from self._gates(found)

    def _gates(self, details: Mapping[str, Any]) -> Iterator[StepResult]:
        return (r for r in gate_results(self.assets, details) if r.check_name in self.checks)

    def _steps(
        self, rivet: RivetResource, lock_wait: int | None, how: Mapping[str, Any]
    ) -> Iterator[StepResult]:
        context, assets = self.context, self.assets
        ensure_pools(context.instance, assets.config, exports=[assets.export.name])
        only = set(self.requested) if self.requested is not None else None
        holder = holder_of(context.run_id)
        with (
            event_files_open(context.instance),  # a partition is an event, and there may be thousands
            rivet.engine(assets.config, worker_of(context)) as engine,
            engine.session(assets.export.name, holder=holder, lock_wait=lock_wait) as session,
        ):
            plan = session.plan(only=only, **how)
            self.run_id = plan.run_id
            self._register(plan)
            self._execute(session, plan, engine.store(session.export, session.header.prefix).uri())
            if self.errors:
                self._mark_failed(plan)
                raise worst(self.errors)
            yield from self._finish(session, plan)

    def _register(self, plan: RunPlan) -> None:
        partitions, known = list(plan.partitions), self.assets.partitions
        if isinstance(known, dg.DynamicPartitionsDefinition):
            self.context.instance.add_dynamic_partitions(known.name or "", partitions)
        elif outside := [key for key in partitions if key != NULL_KEY and not is_window(known, key)]:
            self.context.log.info(
                f"{len(outside)} partitions lie before or after the asset's time partitions ({outside[0]} to "
                f"{outside[-1]}): they are exported, and not shown one by one"
            )
        how = "resumed" if plan.resumed else "planned"
        reads = f", consistency {plan.consistency}" if plan.consistency else ""
        self.context.log.info(
            redact(
                f"run {plan.run_id} {how}: {len(plan.units)} units in {len(partitions)} partitions, "
                f"{len(plan.outstanding)} to do ({plan.strategy}{reads}): {plan.reason}"
            )
        )

    def _execute(self, session: Session, plan: RunPlan, prefix_uri: str) -> None:
        """Report each partition the moment its last unit is durable; collect final failures."""
        from rivet_dagster.engine.run.events import UnitCommitted, UnitFailed

        tally = Tally(plan.units)
        for event in session.execute():
            if isinstance(event, UnitCommitted):
                bucket = tally.committed(event)
                if bucket is not None and (not event.carried or self._announced(bucket.key)):
                    self._log_chunk(bucket, bucket.metadata(run_id=plan.run_id, prefix_uri=prefix_uri))
            elif isinstance(event, UnitFailed):
                tell(event.error)
                if event.final:
                    self.errors.append(event.error)
                    self.failed.append(event.unit.partition)
            else:
                self.notes.write(self.context, event.text)

    def _announced(self, partition: str) -> bool:
        """A range run says nothing about partitions that it neither ran nor announced."""
        return self.requested is None or partition in self.requested

    def _log_chunk(self, bucket: Bucket, metadata: dict[str, Any]) -> None:
        assets = self.assets
        if is_window(assets.partitions, bucket.key):
            event = dg.AssetMaterialization(assets.chunks_key, partition=bucket.key, metadata=metadata)
        elif bucket.key == NULL_KEY and assets.nulls is not None:
            event = dg.AssetMaterialization(assets.nulls.key, metadata=metadata)
        else:
            return  # of a time before or after all windows
        self.context.log_event(event)

    def _mark_failed(self, plan: RunPlan) -> None:
        """Let failed chunks show as Failed. Range mode needs nothing: its partitions were planned."""
        self.failed = list(dict.fromkeys(self.failed))
        self.context.log.error(f"run {plan.run_id}: {len(self.failed)} partitions failed")
        if self.requested is not None or self._will_retry(worst(self.errors)):
            return
        mark_partitions_planned(
            self.context.instance,
            run_id=self.context.run_id,
            job_name=self.context.job_name,
            step_key=self.context.get_step_execution_context().step.key,
            asset_key=self.assets.chunks_key,
            partitions=[key for key in self.failed if is_window(self.assets.partitions, key)],
        )

    def _finish(self, session: Session, plan: RunPlan) -> Iterator[StepResult]:
        """The table and its check, when every unit of the plan is complete. Still under the lease."""
        if not session.complete:
            self.context.log.info(f"run {plan.run_id}: units of other partitions are still to do")
            return
        outcome = session.finalize()
        tell_entry(run_entry(outcome))
        for text in outcome.warnings:
            self.context.log.warning(redact(text))
        yield from self._table(outcome, plan)
        yield from self._gates(outcome.details)
        if VALIDATE in self.checks:
            yield from self._validate(session, outcome)

    def _validate(self, session: Session, outcome: RunOutcome) -> Iterator[StepResult]:
        """By default the cheap depth: marker, manifest, presence and size of each part; it reads none."""
        from rivet_dagster.engine.verify.validate import validate_prefix

        store = session.engine.store(session.export, session.header.prefix)
        name = self.assets.export.name
        report = validate_prefix(store, outcome.prefix_uri, depth=self.depth or "sample", export_name=name)
        if outcome.status != "skipped" or report.manifest_found:
            yield validation_result(self.assets, report)

    def _table(self, outcome: RunOutcome, plan: RunPlan) -> Iterator[StepResult]:
        key = self.assets.table_key
        if outcome.status == "skipped":
            # nothing new: the table is as it was, and what depends on it has nothing to do
            self.context.log_event(dg.AssetObservation(key, metadata=observation_metadata(outcome)))
            return
        lineage = source_lineage(self.assets.export.table, self.assets.upstream, outcome.columns)
        metadata = table_metadata(outcome, plan, lineage)
        if self.yields_table:
            yield dg.MaterializeResult(asset_key=key, metadata=metadata)
        else:
            self.context.log_event(dg.AssetMaterialization(key, metadata=metadata))

    def _will_retry(self, error: RivetError) -> bool:
        return error.retryable and self.context.retry_number < self.assets.tuning.max_retries

    def verdict(self, caught: Exception) -> Exception:
        """What Dagster gets to see of ``caught``."""
        if isinstance(caught, dg.Failure):
            return caught
        error = as_rivet_error(caught)
        tell(error)
        if not isinstance(caught, RivetError):
            print(redact("".join(traceback.format_exception(caught))), file=sys.stderr, flush=True)
        export = self.assets.export.name
        tell_entry(
            failed_entry(
                export,
                error,
                run_id=self.run_id or "",
                mode=self.assets.export.mode,
                seconds=time.monotonic() - self.started,
            )
        )
        tuning = self.assets.tuning
        return retry_or_failure(
            error,
            export=export,
            retry_number=self.context.retry_number,
            max_retries=tuning.max_retries,
            backoff_base_ms=tuning.retry_backoff_ms,
            metadata=failure_metadata(
                error,
                export=export,
                mode=self.assets.export.mode,
                run_id=self.run_id,
                failed_partitions=self.failed,
                failures=max(1, len(self.errors)),
            ),
        )
