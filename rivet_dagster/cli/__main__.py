"""``python -m rivet_dagster.cli``."""

from rivet_dagster.cli import main

main()
