"""The code location: ``RIVET_CONFIG`` (default: rivet.yaml in the working directory) as definitions."""

import gc
import os
from pathlib import Path

import dagster as dg

from rivet_dagster.assets.build import build_rivet_definitions
from rivet_dagster.engine.errors import ConfigError


def _config_path() -> Path:
    named = os.environ.get("RIVET_CONFIG")
    path = Path(named) if named else Path.cwd() / "rivet.yaml"
    if not path.is_file():
        source = "RIVET_CONFIG names it" if named else "RIVET_CONFIG is not set"
        raise ConfigError(
            f"there is no config at {path} ({source})",
            code="RIVET_CONFIG_UNREADABLE",
            file=str(path),
            fix="set RIVET_CONFIG to the path of a rivet.yaml",
        )
    return path


def _definitions() -> dg.Definitions:
    """Built without the garbage collector, which would look at every definition again and again.

    They live as long as the process, so what is there now is never looked at again either: with 300
    exports that is a third of the time in which Dagster then resolves the jobs.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        built = build_rivet_definitions(_config_path(), reaper=True)
    finally:
        if enabled:
            gc.enable()
    gc.freeze()
    return built


# the reaper runs from the start here: without it a killed run stays Started until a person looks
defs = _definitions()
