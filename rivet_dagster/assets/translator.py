"""How an export looks in Dagster: keys, groups, owners, tags, kinds, dependencies, metadata.

Subclass ``RivetDagsterTranslator`` and hand it to ``build_rivet_definitions`` to change any of it.
Execution never depends on what a translator returns, except through the two asset keys.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from rivet_dagster.assets.automation import automation_condition, freshness_policy
from rivet_dagster.assets.metadata import RivetMetadataSet
from rivet_dagster.assets.naming import safe_name
from rivet_dagster.config import ExportConfig, RivetConfig


class RivetDagsterTranslator:
    """Maps a config's exports to asset specs. Every method may be overridden.

    Called at load time: no method may touch the source, the state or a secret.
    """

    def get_asset_key(self, export: ExportConfig, config: RivetConfig) -> dg.AssetKey:
        """Key of the table asset: what people select, schedule and depend on."""
        return dg.AssetKey([*config.dagster.key_prefix, export.asset_name])

    def get_chunks_key(self, export: ExportConfig, config: RivetConfig) -> dg.AssetKey:
        """Key of the chunk asset, whose partitions mirror the work units."""
        return dg.AssetKey([*self.get_asset_key(export, config).path, "chunks"])

    def get_nulls_key(self, export: ExportConfig, config: RivetConfig) -> dg.AssetKey:
        """Key of the rows without a time, of an export whose chunk partitions are windows of time."""
        return dg.AssetKey([*self.get_asset_key(export, config).path, "nulls"])

    def get_group_name(self, export: ExportConfig, config: RivetConfig) -> str:
        return config.group_for(export) or safe_name(config.path.stem)

    def get_owners(self, export: ExportConfig, config: RivetConfig) -> Sequence[str]:
        return list(export.dagster.owners)

    def get_tags(self, export: ExportConfig, config: RivetConfig) -> Mapping[str, str]:
        """Those of the config, and what to filter by: ``rivet/mode``, ``rivet/format``."""
        return {"rivet/mode": export.mode, "rivet/format": export.format, **export.dagster.tags}

    def get_description(self, export: ExportConfig, config: RivetConfig) -> str | None:
        return export.dagster.description or self.default_description(export)

    def default_description(self, export: ExportConfig) -> str:
        source = export.table or "a query"
        return f"Rows of {source}, extracted to {export.format} (mode: {export.mode})."

    def get_kinds(self, export: ExportConfig, config: RivetConfig) -> set[str]:
        """Source and format, and what the config adds. Dagster takes ten."""
        return {config.source.type, export.format, *export.dagster.kinds}

    def get_deps(self, export: ExportConfig, config: RivetConfig) -> Sequence[dg.AssetKey]:
        """Upstream assets, written ``a/b`` in the config."""
        return [dg.AssetKey(dep.split("/")) for dep in export.dagster.deps]

    def get_metadata(self, export: ExportConfig, config: RivetConfig) -> Mapping[str, Any]:
        metadata: dict[str, Any] = dict(
            RivetMetadataSet(
                export=export.name,
                mode=export.mode,
                format=export.format,
                config=config.path.name,
                line=config.line_of(export),
            )
        )
        if export.table:
            metadata["dagster/table_name"] = export.table
        return metadata

    def get_automation_condition(
        self, export: ExportConfig, config: RivetConfig
    ) -> dg.AutomationCondition[Any] | None:
        """Of the table. One of your own should ignore the chunk asset, as the default does."""
        own = [self.get_chunks_key(export, config), self.get_nulls_key(export, config)]
        return automation_condition(export, own)

    def get_freshness_policy(self, export: ExportConfig, config: RivetConfig) -> dg.FreshnessPolicy | None:
        return freshness_policy(export)

    def get_asset_spec(self, export: ExportConfig, config: RivetConfig) -> dg.AssetSpec:
        """The table asset, without its dependency on the chunk asset (the builder adds it)."""
        return dg.AssetSpec(
            self.get_asset_key(export, config),
            deps=self.get_deps(export, config),
            description=self.get_description(export, config),
            group_name=self.get_group_name(export, config),
            owners=list(self.get_owners(export, config)),
            tags=dict(self.get_tags(export, config)),
            kinds=self.get_kinds(export, config),
            metadata=dict(self.get_metadata(export, config)),
            automation_condition=self.get_automation_condition(export, config),
            freshness_policy=self.get_freshness_policy(export, config),
        )

    def get_chunks_spec(self, export: ExportConfig, config: RivetConfig) -> dg.AssetSpec:
        """The chunk asset, without its partitions (the builder adds them)."""
        return dg.AssetSpec(
            self.get_chunks_key(export, config),
            deps=self.get_deps(export, config),
            description=f"Work units of export {export.name}: one partition for each, or for neighbours.",
            group_name=self.get_group_name(export, config),
            owners=list(self.get_owners(export, config)),
            tags=dict(self.get_tags(export, config)),
            kinds={export.format},
            metadata=dict(RivetMetadataSet(export=export.name)),
        )

    def get_nulls_spec(self, export: ExportConfig, config: RivetConfig) -> dg.AssetSpec:
        """The rows without a time; everything but key and description is the chunk asset's."""
        return self.get_chunks_spec(export, config).replace_attributes(
            key=self.get_nulls_key(export, config),
            description=f"Rows of export {export.name} whose {export.partition_by} is NULL.",
        )
