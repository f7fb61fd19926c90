"""``python -m rivet_dagster.cli``."""

from rivet_dagster.cli import entry

if __name__ == "__main__":
    entry()
