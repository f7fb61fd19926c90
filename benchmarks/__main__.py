"""``python -m benchmarks``: the full measurement; ``python -m benchmarks peer``: the short one."""

from __future__ import annotations

import sys

from benchmarks.run import main

if __name__ == "__main__":
    given = sys.argv[1:]
    sys.exit(main(["--quick", *given[1:]] if given[:1] == ["peer"] else given))
