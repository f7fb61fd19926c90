"""What a run of Dagster costs before anything of ours: a job of one op that does nothing."""

from dagster import Definitions, in_process_executor, job, op


@op
def nothing() -> None:
    pass


@job(executor_def=in_process_executor)  # as our jobs of one export
def empty() -> None:
    nothing()


defs = Definitions(jobs=[empty])
