"""Where a step's process lives, and whether a SQLite state there would outlive it (seed ADR-0039, D5).

The engine cannot tell a pod from a host; whoever launches the process can. On a pod the first run would
succeed and every later one begin with an empty state: it would read everything again, or miss rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import dagster as dg

from rivet_dagster.engine.errors import RefusalError

if TYPE_CHECKING:
    from rivet_dagster.engine.state.location import StateLocation

Lives = Literal["host", "container", "pod"]

#: Packages of launchers and executors whose process has a disk of its own, by the start of the module.
_BY_MODULE: Final[dict[str, Lives]] = {
    "dagster_k8s": "pod",
    "dagster_celery_k8s": "pod",
    "dagster_aws.ecs": "pod",
    "dagster_contrib_gcp.cloud_run": "pod",
    "dagster_docker": "container",
    "dagster_celery_docker": "container",
}
_BY_EXECUTOR: Final[dict[str, Lives]] = {
    "k8s": "pod",
    "celery-k8s": "pod",
    "ecs": "pod",
    "docker": "container",
    "celery-docker": "container",
}


@dataclass(frozen=True, slots=True)
class Worker:
    """lives: on a host, in a container that may have a volume, or on a pod. name: of what launches it."""

    lives: Lives = "host"
    name: str = ""

    def require_lasting(self, location: StateLocation) -> None:
        """Raise RefusalError (RIVET_STATE_EPHEMERAL) for a state that goes with this worker.

        In a container a directory that somebody named is taken to be a volume; on a pod nothing is.
        """
        if location.backend != "sqlite" or self.lives == "host":
            return
        if self.lives == "container" and location.declared:
            return
        volume = ", or to sqlite:<a mounted directory>" if self.lives == "container" else ""
        raise RefusalError(
            f"{self.name} starts a {self.lives} for each run, and the state {location.display} would end "
            f"with it; set RIVET_STATE_URL to postgresql://...{volume}",
            code="RIVET_STATE_EPHEMERAL",
            field="RIVET_STATE_URL",
        )


HOST: Final = Worker()


def worker_of(context: dg.OpExecutionContext) -> Worker:
    """The worker that runs the step of ``context``."""
    executor = context.job_def.executor_def.name
    if executor in _BY_EXECUTOR:
        return Worker(_BY_EXECUTOR[executor], f"the executor {executor}")
    return launched_by(context.instance)


def launched_by(instance: dg.DagsterInstance) -> Worker:
    """A worker as ``instance`` starts them. Subclasses of a known launcher count as it."""
    launcher = type(instance.run_launcher)
    for parent in launcher.__mro__:
        for module, lives in _BY_MODULE.items():
            if f"{parent.__module__}.".startswith(f"{module}."):
                return Worker(lives, launcher.__name__)
    return HOST
