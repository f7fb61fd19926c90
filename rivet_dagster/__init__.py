"""Extract database tables as Dagster assets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rivet_dagster.assets.build import build_rivet_definitions
    from rivet_dagster.assets.component import RivetComponent
    from rivet_dagster.assets.metadata import RivetMetadataSet, column_lineage
    from rivet_dagster.assets.resources import RivetResource
    from rivet_dagster.assets.translator import RivetDagsterTranslator

__version__ = "0.1.0"

__all__ = [
    "RivetComponent",
    "RivetDagsterTranslator",
    "RivetMetadataSet",
    "RivetResource",
    "__version__",
    "build_rivet_definitions",
    "column_lineage",
]

_HOMES = {
    "build_rivet_definitions": "rivet_dagster.assets.build",
    "RivetComponent": "rivet_dagster.assets.component",
    "RivetMetadataSet": "rivet_dagster.assets.metadata",
    "column_lineage": "rivet_dagster.assets.metadata",
    "RivetResource": "rivet_dagster.assets.resources",
    "RivetDagsterTranslator": "rivet_dagster.assets.translator",
}


def __getattr__(name: str) -> Any:
    """Dagster is imported when something of it is asked for: the engine runs without it."""
    if name in _HOMES:
        from importlib import import_module

        try:
            return getattr(import_module(_HOMES[name]), name)
        except AttributeError as error:  # would read as: the package has no such name
            raise ImportError(f"cannot import {_HOMES[name]}: {error}") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """With the names above: ``dg`` finds the component by listing them."""
    return sorted({*globals(), *__all__})
