"""A Dagster project made with ``dg``: the component is found, scaffolded, checked, and extracts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from rivet_dagster import RivetComponent
from tests.live.dagster.conftest import ORDERS
from tests.services.postgres import TestDatabase

PYPROJECT = """
[project]
name = "shop"
version = "0.1.0"
requires-python = ">=3.11"

[tool.dg]
directory_type = "project"

[tool.dg.cli]
telemetry.enabled = false

[tool.dg.project]
root_module = "shop"
code_location_target_module = "shop.definitions"
"""

DEFINITIONS = """
from pathlib import Path

import dagster as dg


@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


OURS = """
from rivet_dagster import RivetDagsterTranslator


class InTheLake(RivetDagsterTranslator):
    def get_group_name(self, export, config):
        return "lake"


class Ours(RivetComponent):
    def translator(self):
        return InTheLake()
"""


@dataclass
class DgProject:
    """A project as ``dg scaffold project`` makes one; that command itself needs the network."""

    folder: Path
    env: dict[str, str]

    @property
    def defs(self) -> Path:
        return self.folder / "src/shop/defs"

    def dg(self, *words: str) -> str:
        """What ``dg`` prints. Raises with it when the command fails."""
        tool = Path(sys.executable).parent / "dg"
        done = subprocess.run(
            [str(tool), *words], cwd=self.folder, env=self.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> DgProject:
    folder, home = tmp_path / "project", tmp_path / "home"
    (folder / "src/shop/defs").mkdir(parents=True)
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "src/shop/__init__.py").touch()
    (folder / "src/shop/defs/__init__.py").touch()
    (folder / "src/shop/definitions.py").write_text(DEFINITIONS)
    env = {**os.environ, "DAGSTER_HOME": str(home), "PYTHONWARNINGS": "ignore", "COLUMNS": "200"}
    env["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(folder / "src"), str(Path(__file__).parents[3]), env.get("PYTHONPATH")])
    )
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    return DgProject(folder, env)


def test_a_scaffolded_component_extracts_a_table(project: DgProject, db: TestDatabase) -> None:
    db.execute(*ORDERS)
    project.dg("scaffold", "defs", "rivet_dagster.RivetComponent", "my_exports", "--url-env", "SHOP_URL")
    made = project.defs / "my_exports"
    assert yaml.safe_load((made / "defs.yaml").read_text()) == {
        "type": "rivet_dagster.RivetComponent",
        "attributes": {"config_path": "rivet.yaml"},
    }
    # the server of the tests speaks no TLS
    text = (made / "rivet.yaml").read_text()
    (made / "rivet.yaml").write_text(
        text.replace("url_env: SHOP_URL", "url_env: SHOP_URL\n  tls: {mode: disable}\n #")
    )

    project.dg("check", "yaml")
    project.env["SHOP_URL"] = db.url
    project.dg("launch", "--assets", "key:rivet/orders")
    assert sum(pq.read_metadata(path).num_rows for path in (made / "out/orders").glob("*.parquet")) == 500


def test_dg_lists_the_component_and_what_it_defines(project: DgProject) -> None:
    assert "rivet_dagster.RivetComponent" in project.dg("list", "components")
    project.dg("scaffold", "defs", "rivet_dagster.RivetComponent", "one", "--table", "sales.orders")
    project.dg("scaffold", "defs", "rivet_dagster.RivetComponent", "two", "--table", "sales.customers")
    second = project.defs / "two/defs.yaml"
    second.write_text(
        yaml.safe_dump(
            {
                "type": "rivet_dagster.RivetComponent",
                "attributes": {"config_path": "rivet.yaml", "name": "crm", "reaper": False},
                "post_processing": {"assets": [{"target": "*", "attributes": {"tags": {"domain": "crm"}}}]},
            }
        )
    )
    found = json.loads(project.dg("list", "defs", "--json"))
    jobs = {job["name"] for job in found["jobs"]}
    assert {"export_orders", "export_customers", "export_all", "export_all_crm"} <= jobs
    assert {s["name"] for s in found["sensors"]} >= {"rivet_stale_runs", "rivet_stale_runs_crm"}
    assets = {asset["asset_key"] for asset in found["assets"]}
    assert {"rivet/orders", "rivet/orders/chunks", "rivet/customers"} <= assets
    project.dg("check", "defs")


def test_the_python_form_takes_an_existing_config_and_a_subclass(project: DgProject) -> None:
    (project.defs / "shared.yaml").write_text(
        "source: {type: postgres, url_env: SHOP_URL}\n"
        "exports: [{name: orders, table: public.orders, format: parquet,"
        " destination: {type: local, path: ./out}}]\n"
    )
    words = ("scaffold", "defs", "rivet_dagster.RivetComponent", "mine", "--config", "../shared.yaml")
    project.dg(*words, "--format", "python")
    (made,) = (project.defs / "mine").iterdir()
    assert made.name == "component.py"
    text = made.read_text().replace("return RivetComponent(", "return Ours(")
    made.write_text(text.replace("@dg.", f"{OURS}\n\n@dg.", 1))
    found = json.loads(project.dg("list", "defs", "--json"))
    groups = {asset["asset_key"]: asset["group_name"] for asset in found["assets"]}
    assert groups["rivet/orders"] == "lake"


def test_the_entry_point_names_the_package() -> None:
    (found,) = entry_points(group="dagster_dg_cli.registry_modules", name="rivet_dagster")
    assert found.load().RivetComponent is RivetComponent
