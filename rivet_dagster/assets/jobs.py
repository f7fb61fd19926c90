"""Jobs of an export, and the one that runs them all.

Executors are explicit. A job with one step runs it in the run's own process: a second process would
cost about four CPU seconds, and one process dies whole. ``export_all`` runs each export in a process of
its own (``executor.py``), so that one export's crash or memory is not another's.
"""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from rivet_dagster.assets._internal import AssetJob, near_job
from rivet_dagster.assets.export_all import packed_executor
from rivet_dagster.assets.exports import ExportAssets
from rivet_dagster.assets.naming import CHECKS_LOGGED, export_all_job
from rivet_dagster.assets.resources import RivetResource
from rivet_dagster.assets.shared import shared_job

ExportJob = AssetJob | dg.JobDefinition


def table_selection(assets: Sequence[ExportAssets]) -> dg.AssetSelection:
    """Tables with their inline checks: the table mode, which needs no partition to be chosen."""
    return _bare_tables(assets) | dg.AssetSelection.checks(
        *(spec.key for a in assets for spec in a.inline_checks)
    )


def _bare_tables(assets: Sequence[ExportAssets]) -> dg.AssetSelection:
    return dg.AssetSelection.assets(*(a.table_key for a in assets)).without_checks()


def export_job(
    assets: ExportAssets, rivet: RivetResource, executor: dg.ExecutorDefinition | None
) -> ExportJob:
    """executor: of an export that several processes share."""
    if assets.export.shared:
        return shared_job(assets, rivet, executor)
    job = dg.define_asset_job(
        assets.names.export_job,
        selection=table_selection([assets]),
        description=f"Run export {assets.export.name}: plan or resume, extract, verify.",
        executor_def=dg.in_process_executor,
        tags={"rivet/export": assets.names.base},
    )
    return near_job(job)


def validate_job(assets: ExportAssets) -> AssetJob:
    job = dg.define_asset_job(
        assets.names.validate_job,
        selection=dg.AssetSelection.checks(assets.validate_key),
        description=f"Compare the files of {assets.export.name} with their manifest; reads no source.",
        executor_def=dg.in_process_executor,
        tags={"rivet/export": assets.names.base},
    )
    return near_job(job)


def reconcile_job(assets: ExportAssets) -> AssetJob:
    job = dg.define_asset_job(
        assets.names.reconcile_job,
        selection=dg.AssetSelection.checks(assets.reconcile_key),
        description=f"Compare the source of {assets.export.name} with its files, chunk by chunk.",
        executor_def=dg.in_process_executor,
        tags={"rivet/export": assets.names.base},
    )
    return near_job(job)


def all_job(assets: Sequence[ExportAssets], rivet: RivetResource, name: str | None = None) -> AssetJob:
    return dg.define_asset_job(
        export_all_job((a.export for a in assets), name),
        # each check is evaluated all the same: to plan hundreds of them delays the first export by seconds
        selection=_bare_tables(assets),
        run_tags={CHECKS_LOGGED: "true"},
        description="Run every export of the config, each in a process of its own, the longest first.",
        executor_def=packed_executor(assets, rivet),
    )
