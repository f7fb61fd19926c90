"""The extraction engine: plan, read, write, commit, finalize. It imports no Dagster."""

from __future__ import annotations

from rivet_dagster.engine.memory import choose_pool

choose_pool()  # pyarrow reads it when it is imported, which only modules of this package do first
