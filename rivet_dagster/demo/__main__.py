"""``python -m rivet_dagster.demo run`` and ``ui``: what ``make demo`` and ``make ui`` call."""

from __future__ import annotations

import sys

from rivet_dagster.demo.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
