"""Extract database tables as Dagster assets."""

__version__ = "0.1.0"
