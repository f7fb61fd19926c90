"""The Kubernetes example: its config loads, and a step is rendered as a cluster would get it. Not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster_k8s.container_context import K8sContainerContext
from dagster_k8s.job import DagsterK8sJobConfig, UserDefinedDagsterK8sConfig, construct_dagster_k8s_job
from kubernetes import client

from rivet_dagster import build_rivet_definitions

EXAMPLE = Path(__file__).parents[3] / "examples/kubernetes/rivet.yaml"


def rendered(config: dict[str, Any], step: str) -> dict[str, Any]:
    """The Job of a step, as JSON for the API server; the client's models refuse unknown fields."""
    context = K8sContainerContext.create_from_config(
        {"k8s": {key: value for key, value in config.items() if key.startswith(("env_", "service_"))}}
    ).merge(
        K8sContainerContext(
            run_k8s_config=UserDefinedDagsterK8sConfig.from_dict(config["step_k8s_config"])  # type: ignore[no-untyped-call]
        )
    )
    job_config = DagsterK8sJobConfig(config["job_image"], "/opt/dagster/dagster_home")
    job = construct_dagster_k8s_job(
        job_config, ["dagster", "api", "execute_step"], step, context.run_k8s_config
    )
    found: dict[str, Any] = client.ApiClient().sanitize_for_serialization(job)
    return found


def test_the_example_makes_a_step_for_each_pod() -> None:
    defs = build_rivet_definitions(EXAMPLE)
    job = defs.resolve_job_def("export_orders")
    assert job.executor_def.name == "k8s"
    assert {node.name for node in job.nodes} == {
        "rivet_lead__orders",
        *(f"rivet_worker__orders_{n}" for n in (1, 2, 3)),
    }
    dg.Definitions.validate_loadable(defs)
    dg.validate_run_config(job)  # the executor's settings are what Dagster takes


def test_settings_that_the_executor_does_not_have_are_refused_before_a_pod_starts(tmp_path: Path) -> None:
    wrong = tmp_path / "rivet.yaml"
    wrong.write_text(EXAMPLE.read_text().replace("job_image:", "image:"))
    job = build_rivet_definitions(wrong).resolve_job_def("export_orders")
    with pytest.raises(dg.DagsterInvalidConfigError, match="image"):
        dg.validate_run_config(job)


def test_the_steps_of_the_example_are_rendered_as_jobs() -> None:
    config = yaml.safe_load(EXAMPLE.read_text())["dagster"]["executor"]["k8s"]
    job = rendered(config, "rivet-lead-orders")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert job["kind"] == "Job"
    assert container["image"] == config["job_image"]
    assert {"secretRef": {"name": "rivet"}} in container["envFrom"]
    assert {"name": "RIVET_CONFIG", "value": "/etl/rivet.yaml"} in container["env"]
    assert job["spec"]["template"]["spec"]["serviceAccountName"] == "dagster"
    assert container["resources"] == config["step_k8s_config"]["container_config"]["resources"]
