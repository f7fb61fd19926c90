"""``rivet_dagster.RivetComponent``: a rivet.yaml as a component of a Dagster project.

``dg scaffold defs rivet_dagster.RivetComponent <folder>`` writes a ``defs.yaml`` and, unless told of an
existing config, a first ``rivet.yaml`` beside it.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import dagster as dg
from dagster.components.component_scaffolding import scaffold_component
from pydantic import BaseModel, Field

from rivet_dagster.assets.build import build_rivet_definitions
from rivet_dagster.assets.translator import RivetDagsterTranslator

_CONFIG = "rivet.yaml"

_FIRST_CONFIG = """\
# What this component exports. `rivet-dagster init --url-env {url_env} -o {file}` writes this file from a
# live database: every table with a mode that fits it.
source:
  type: postgres
  url_env: {url_env}   # the variable that holds postgresql://user:password@host:5432/database

exports:
  - name: {name}
    table: {table}
    mode: full
    format: parquet
    destination: {{type: local, path: "./out/{{export}}"}}   # relative to this file
"""

_INSTANCE = """\
import dagster as dg

from rivet_dagster import RivetComponent


@dg.component_instance
def load(context: dg.ComponentLoadContext) -> RivetComponent:
    return RivetComponent(config_path={config!r})
"""


class ScaffoldParams(BaseModel):
    """Options of ``dg scaffold defs``."""

    config: str | None = Field(
        default=None, description="An existing rivet.yaml, as a path from the new folder; none is written."
    )
    table: str = Field(default="public.orders", description="Table of the first export.")
    url_env: str = Field(default="DATABASE_URL", description="Variable that holds the database's URL.")


class RivetComponentScaffolder(dg.Scaffolder[ScaffoldParams]):
    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParams]:
        return ScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParams]) -> None:
        """Write the instance and a first config. A config that is there already is kept."""
        # dg hands a mapping over when it was given no option at all
        params = ScaffoldParams.model_validate(request.params or {}, from_attributes=True)
        config = params.config or _CONFIG
        if request.scaffold_format == "yaml":
            scaffold_component(request, {"config_path": config})
        else:
            (request.target_path / "component.py").write_text(_INSTANCE.format(config=config))
        path = request.target_path / config
        if params.config is None and not path.exists():
            path.write_text(
                _FIRST_CONFIG.format(
                    file=config,
                    url_env=params.url_env,
                    name=json.dumps(params.table.rsplit(".", 1)[-1]),
                    table=json.dumps(params.table),
                )
            )


@dg.scaffold_with(RivetComponentScaffolder)
class RivetComponent(dg.Component, dg.Model, dg.Resolvable):
    """Every export of a rivet.yaml as assets, checks, jobs, schedules and sensors."""

    config_path: str = Field(default=_CONFIG, description="The config, relative to the component's folder.")
    name: str | None = Field(
        default=None,
        description="Tells this config's `export_all` and `rivet_stale_runs` from those of another one in "
        "the same code location.",
    )
    params: Mapping[str, str] = Field(default={}, description="Values of `${...}` in the config's queries.")
    reaper: bool = Field(default=True, description="Whether `rivet_stale_runs` is on from the start.")

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        return dg.ComponentTypeSpec(
            description="Database tables as exact, resumable Parquet or CSV exports.",
            tags=["postgres", "parquet", "csv", "extract"],
            produces=["asset", "asset_check", "job", "schedule", "sensor", "resource"],
        )

    def translator(self) -> RivetDagsterTranslator:
        """How exports look in Dagster. Override it, or use ``post_processing`` in defs.yaml."""
        return RivetDagsterTranslator()

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        here = Path(context.path)  # of component.py it is the file
        return build_rivet_definitions(
            (here if here.is_dir() else here.parent) / self.config_path,
            translator=self.translator(),
            params=dict(self.params),
            reaper=self.reaper,
            name=self.name,
            executor=None,  # the project's own
        )
