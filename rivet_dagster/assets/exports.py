"""One export -> one multi_asset: the table, its chunks, and rows that no window of time holds."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import dagster as dg

from rivet_dagster.assets.automation import with_its_table
from rivet_dagster.assets.checks import validate_spec
from rivet_dagster.assets.execution import run_export
from rivet_dagster.assets.gates import StepResult, gate_specs
from rivet_dagster.assets.naming import RECONCILE, VALIDATE, ExportNames
from rivet_dagster.assets.partitions import chunk_partitions
from rivet_dagster.assets.pools import pool_of
from rivet_dagster.assets.resources import schema_of
from rivet_dagster.assets.translator import RivetDagsterTranslator
from rivet_dagster.config import ExportConfig, RivetConfig, Tuning


class CheckDepth(Enum):
    """How much ``validate`` reads: three small files, also the listing, also every part."""

    light = "light"
    sample = "sample"
    full = "full"


class RunConfig(dg.Config):
    """What a person may set for one run. It is stored in the clear: no secrets.

    depth: of the ``validate`` check: light, sample or full. By default sample after a run, and full
    when the check runs alone. no_notify: no message about this run.
    """

    lock_wait: int | None = None
    no_notify: bool = False
    fresh: bool = False
    depth: CheckDepth | None = None


@dataclass(frozen=True)
class ExportAssets:
    """An export as Dagster knows it: its config, keys, names and partitions.

    nulls: the rows without a time, beside chunks whose partitions are windows of time; else None.
    """

    config: RivetConfig
    export: ExportConfig
    table: dg.AssetSpec
    chunks: dg.AssetSpec
    partitions: dg.PartitionsDefinition[str] = field(repr=False)
    nulls: dg.AssetSpec | None = None

    @property
    def names(self) -> ExportNames:
        return ExportNames.of(self.export)

    @property
    def table_key(self) -> dg.AssetKey:
        return self.table.key

    @property
    def chunks_key(self) -> dg.AssetKey:
        return self.chunks.key

    @property
    def specs(self) -> list[dg.AssetSpec]:
        return [self.chunks, *([self.nulls] if self.nulls else []), self.table]

    @property
    def validate_key(self) -> dg.AssetCheckKey:
        return dg.AssetCheckKey(self.table_key, VALIDATE)

    @property
    def inline_checks(self) -> tuple[dg.AssetCheckSpec, ...]:
        """Checks that the export's own step evaluates."""
        condition = with_its_table(self.export)
        return (
            validate_spec(self.table_key, condition),
            *gate_specs(self.export, self.table_key, condition),
        )

    @property
    def upstream(self) -> list[dg.AssetKey]:
        """What the table depends on beside its own chunks."""
        own = {self.chunks_key, *([self.nulls.key] if self.nulls else [])}
        return [dep.asset_key for dep in self.table.deps if dep.asset_key not in own]

    @property
    def reconcile_key(self) -> dg.AssetCheckKey:
        return dg.AssetCheckKey(self.table_key, RECONCILE)

    @property
    def pool(self) -> str:
        return pool_of(self.config, self.export)

    @property
    def tuning(self) -> Tuning:
        return self.config.tuning_for(self.export)


def export_assets(
    config: RivetConfig, export: ExportConfig, translator: RivetDagsterTranslator
) -> ExportAssets:
    """The specs of ``export``. All are skippable: a run may have nothing to say about some of them."""
    partitions = chunk_partitions(export)
    chunks = translator.get_chunks_spec(export, config).replace_attributes(
        partitions_def=partitions, skippable=True
    )
    table = translator.get_asset_spec(export, config)
    nulls = None
    if not isinstance(partitions, dg.DynamicPartitionsDefinition):
        nulls = translator.get_nulls_spec(export, config).replace_attributes(skippable=True)
    below = [spec.key for spec in (chunks, nulls) if spec is not None]
    table = table.replace_attributes(deps=[*table.deps, *below], skippable=True)
    return ExportAssets(config, export, table, chunks, partitions, nulls)


def build_export_asset(assets: ExportAssets) -> dg.AssetsDefinition:
    """The asset that runs the export when it is materialized."""

    @dg.multi_asset(
        name=assets.names.op,
        specs=assets.specs,
        check_specs=assets.inline_checks,
        can_subset=True,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=assets.pool,
        op_tags={"rivet/export": assets.names.base},
        config_schema=schema_of(RunConfig),
        required_resource_keys={"rivet"},
    )
    def run(context: dg.AssetExecutionContext) -> Iterator[StepResult]:
        config = RunConfig(**context.op_execution_context.op_config)
        yield from run_export(
            context,
            assets,
            context.resources.rivet,
            lock_wait=config.lock_wait,
            fresh=config.fresh,
            depth=config.depth.value if config.depth else None,
        )

    definition: dg.AssetsDefinition = run
    return definition
