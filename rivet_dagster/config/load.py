"""``load``: the second step, from files into a warehouse."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

from pydantic import Field

from rivet_dagster.config.base import Context, Flag, Int, Problem, Secret, Section, Text, TextList

Granularity = Literal["hour", "day", "month", "year"]
KeyColumns = Literal["auto", "none"] | TextList
Layout = Literal["log_view", "base_buffer"]

#: Keys that belong to one target only, and those that it cannot do without.
TARGET_KEYS: Final = {
    "bigquery": frozenset({"project", "dataset"}),
    "snowflake": frozenset({"connection", "warehouse", "database", "schema", "storage_integration"}),
    "clickhouse": frozenset({"url", "database", "user", "password_env", "named_collection", "ca_file"}),
}


class PartitionRange(Section):
    column: Text
    start: Int
    end: Int
    interval: Annotated[Int, Field(ge=1)]


class LoadPartition(Section):
    column: Text | None = None
    granularity: Granularity | None = None
    range: PartitionRange | None = None
    ingestion: Granularity | None = None
    expiration_days: Annotated[Int, Field(ge=1)] | None = None
    require_filter: Flag = False

    def problems(self, context: Context) -> Iterator[Problem]:
        ways = [self.given("column"), self.given("range"), self.given("ingestion")]
        if sum(ways) != 1:
            yield Problem(
                (), "a partition is by one of `column`, `range` and `ingestion`", "keep exactly one"
            )


class LoadOverride(Section):
    pk: KeyColumns | None = None
    cleanup_source: Flag | None = None
    gc_orphans: Flag | None = None
    cluster_by: KeyColumns | None = None
    allow_source_drift: Flag | None = None
    layout: Layout | None = None
    deleted_flag: Flag | None = None
    partition: Literal["none"] | LoadPartition | None = None
    tables: Mapping[Text, "LoadOverride"] = {}

    def problems(self, context: Context) -> Iterator[Problem]:
        yield from _shared(self.cluster_by, self.partition, context)
        for name, override in self.tables.items():
            yield from (p.under("tables", name) for p in override.problems(context))


class LoadConfig(Section):
    target: Literal["bigquery", "snowflake", "clickhouse"]
    project: Text | None = None
    dataset: Text | None = None
    connection: Text | None = None
    warehouse: Text | None = None
    database: Text | None = None
    schema_: Text | None = Field(None, alias="schema")
    storage_integration: Text | None = None
    url: Secret | None = None
    user: Text | None = None
    password_env: Text | None = None
    named_collection: Text | None = None
    ca_file: Text | None = None
    cleanup_source: Flag = False
    pk: KeyColumns = ()
    layout: Layout | None = None
    deleted_flag: Flag | None = None
    allow_source_drift: Flag = False
    gc_orphans: Flag = False
    cluster_by: KeyColumns = ()
    partition: Literal["none"] | LoadPartition | None = None

    def problems(self, context: Context) -> Iterator[Problem]:
        own = TARGET_KEYS[self.target]
        others = frozenset().union(*TARGET_KEYS.values()) - own
        for key in sorted(others):
            if self.given("schema_" if key == "schema" else key):
                yield Problem(
                    (key,), f"`{key}` does not belong to the target {self.target}", f"remove `{key}`"
                )
        yield from _shared(self.cluster_by, self.partition, context)


def _shared(
    cluster_by: KeyColumns | None, partition: Literal["none"] | LoadPartition | None, context: Context
) -> Iterator[Problem]:
    if isinstance(cluster_by, tuple) and len(cluster_by) > 4:
        yield Problem(("cluster_by",), "more than four columns", "name at most four columns")
    if isinstance(partition, LoadPartition):
        yield from (p.under("partition") for p in partition.problems(context))
