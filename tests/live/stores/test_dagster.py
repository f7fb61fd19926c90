"""An export to S3 as Dagster shows it."""

from __future__ import annotations

import secrets

import dagster as dg
import yaml

from tests.live.dagster.conftest import Project, instance, plain, project
from tests.services.seaweed import BUCKET, S3Server

__all__ = ["instance", "project"]


def test_assets_checks_and_links(project: Project, s3: S3Server) -> None:
    prefix = f"dagster/{secrets.token_hex(4)}"
    export = {
        "name": "orders",
        "table": "public.orders",
        "mode": "chunked",
        "chunk_column": "id",
        "chunk_size": 100,
        "format": "parquet",
        "destination": s3.destination(BUCKET, prefix + "/{export}"),
    }
    aside = {"name": "aside", "table": "public.orders", "format": "csv", "destination": {"type": "stdout"}}
    project.write(yaml.safe_dump({"exports": [export, aside]}))
    keys = project.defs.resolve_asset_graph().get_all_asset_keys()
    assert not any("aside" in key.to_user_string() for key in keys), "standard output is no asset"

    result = project.run("export_orders")
    assert result.success
    where = f"s3://{BUCKET}/{prefix}/orders"
    (table,) = project.materialized(result, dg.AssetKey(["rivet", "orders"]))
    metadata = plain(table.metadata)
    assert (metadata["rows"], metadata["dagster/uri"]) == (500, where)
    assert metadata["manifest"].startswith(f"{where}/manifest-")
    chunk = plain(project.materialized(result, dg.AssetKey(["rivet", "orders", "chunks"]))[0].metadata)
    assert chunk["dagster/uri"].startswith(f"{where}/orders_")
    checks = {e.check_name: e.passed for e in result.get_asset_check_evaluations()}
    assert checks["validate"]
    assert all(checks.values())
    again = project.run("validate_orders")
    assert again.success
    assert s3.secret not in str(metadata)
