"""Preloaded by the fork server of ``export_all``: its steps begin with everything imported.

It serves where the run worker itself cannot be forked, and replaces processes that died (``executor.py``).
Importing Dagster and the engine takes a process about four CPU seconds; the fork server imports once and
forks. Two things follow from it:

- The steps are its children, not the run worker's, and they keep it alive. So it asks the kernel to be
  killed with the run worker, as each step asks to be killed with it (``die_with_parent``).
- This module is imported by name in an empty process: it must not read a config or start a thread.
"""

import rivet_dagster.assets.build
import rivet_dagster.assets.step_worker
import rivet_dagster.config  # noqa: F401 - imported for the steps
from rivet_dagster.assets._internal import kill_with_parent

kill_with_parent()
