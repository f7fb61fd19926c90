"""``reap`` and ``setup``: what concerns the Dagster instance. The only verbs that import Dagster."""

from __future__ import annotations

import click

from rivet_dagster.cli.shared import Options, Verb, export_options, load


@click.command(cls=Verb)
@export_options
@click.option("--min-age", type=click.FloatRange(min=0), help="Shortest silence in seconds that counts.")
def reap(path: str, exports: tuple[str, ...], params: Options, min_age: float | None) -> None:
    """End Dagster runs whose worker is gone, and free their pool slots. Needs DAGSTER_HOME."""
    import dagster as dg

    from rivet_dagster.assets.build import load_export_assets
    from rivet_dagster.assets.resources import RivetResource
    from rivet_dagster.assets.sensors import reap_stale_runs

    config = load(path, params)
    assets = [a for a in load_export_assets(config) if not exports or a.export.name in exports]
    with dg.DagsterInstance.get() as instance:
        ended = reap_stale_runs(
            instance, config, assets, RivetResource.with_state_url(None), min_age_s=min_age
        )
    for one in ended:
        click.echo(f"ended run {one.run.run_id} of {', '.join(one.exports)}")
    click.echo(f"{len(ended)} stale runs")


@click.command(cls=Verb)
@export_options
def setup(path: str, exports: tuple[str, ...], params: Options) -> None:
    """Give the pools of the exports their limits. Once an instance and after a change of
    `source_pool_limit`; needs DAGSTER_HOME."""
    import dagster as dg

    from rivet_dagster.assets.pools import ensure_pools

    config = load(path, params)
    with dg.DagsterInstance.get() as instance:
        made = ensure_pools(instance, config, exports=exports or None, renew=True)
    click.echo(f"{len(made)} pools set: {', '.join(made)}" if made else "every pool has its limit already")
