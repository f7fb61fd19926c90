"""The executor that the config names, with its config as Dagster takes it."""

from __future__ import annotations

import importlib
from typing import Final

import dagster as dg

from rivet_dagster.config import RivetConfig
from rivet_dagster.engine.errors import ConfigError

_EXTRA: Final = {
    "celery": ("dagster_celery", "celery_executor"),
    "k8s": ("dagster_k8s", "k8s_job_executor"),
}


def executor_of(
    config: RivetConfig, default: dg.ExecutorDefinition | None = None
) -> dg.ExecutorDefinition | None:
    """The one that the config names, else ``default``.

    Raises ConfigError when its package is not installed. Dagster itself
    looks at the executor's config, when a run is launched.
    """
    if not config.dagster.executor:
        return default
    ((name, settings),) = config.dagster.executor.items()
    executor = _named(config, name)
    if not settings:
        return executor
    configured: dg.ExecutorDefinition = executor.configured(settings)
    return configured


def _named(config: RivetConfig, name: str) -> dg.ExecutorDefinition:
    if name == "in_process":
        return dg.in_process_executor
    if name == "multiprocess":
        return dg.multiprocess_executor
    module, attribute = _EXTRA[name]
    try:
        found: dg.ExecutorDefinition = getattr(importlib.import_module(module), attribute)
        return found
    except ModuleNotFoundError:
        what = f"the executor `{name}` needs the package {module}, which is not installed"
        raise _wrong(config, what, f"pip install 'rivet-dagster[{name}]'") from None


def _wrong(config: RivetConfig, what: str, fix: str) -> ConfigError:
    return ConfigError(what, file=str(config.path), field="dagster.executor", fix=fix)
