"""The extraction engine: plan, read, write, commit, finalize. It imports no Dagster."""
