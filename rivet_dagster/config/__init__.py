"""rivet.yaml as frozen models. ``load_config`` is the way in."""

from __future__ import annotations

from rivet_dagster.config.destination import DestinationConfig
from rivet_dagster.config.export import ExportConfig
from rivet_dagster.config.loader import load_config, parse_config
from rivet_dagster.config.resolved import ResolvedSource
from rivet_dagster.config.root import RivetConfig
from rivet_dagster.config.source import SourceConfig
from rivet_dagster.config.tuning import Tuning

__all__ = [
    "DestinationConfig",
    "ExportConfig",
    "ResolvedSource",
    "RivetConfig",
    "SourceConfig",
    "Tuning",
    "load_config",
    "parse_config",
]
