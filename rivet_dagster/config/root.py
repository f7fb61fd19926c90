"""The whole of rivet.yaml."""

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, PrivateAttr

from rivet_dagster.config.base import Context, Flag, Int, Place, Problem, Section, read_list
from rivet_dagster.config.cdc import DEFAULT_SERVER_ID, DEFAULT_SLOT
from rivet_dagster.config.dagster_block import RootDagster
from rivet_dagster.config.export import ExportConfig
from rivet_dagster.config.load import LoadConfig
from rivet_dagster.config.notifications import NotificationsConfig
from rivet_dagster.config.source import SourceConfig
from rivet_dagster.config.tuning import Tuning, both_sizes, merge, merged_values
from rivet_dagster.engine.errors import UsageError
from rivet_dagster.engine.names import expand_path

DEFAULT_LOCK_WAIT_S = 600


class RivetConfig(Section):
    source: SourceConfig
    exports: Annotated[tuple[ExportConfig, ...], BeforeValidator(read_list)]
    notifications: NotificationsConfig | None = None
    parallel_exports: Flag = False
    parallel_export_processes: Flag = False
    load: LoadConfig | None = None
    lock_wait: Annotated[Int, Field(ge=0)] | None = None
    dagster: RootDagster = RootDagster()

    _path: Path = PrivateAttr(Path("rivet.yaml"))
    _lines: Mapping[str, int] = PrivateAttr(default_factory=dict)

    @property
    def path(self) -> Path:
        """The config file, absolute."""
        return self._path

    @property
    def dir(self) -> Path:
        return self._path.parent

    def line_of(self, export: ExportConfig) -> int | None:
        """Where ``export`` begins in the file; None for a config that was not read from one."""
        return self._lines.get(export.name)

    @cached_property
    def _by_name(self) -> dict[str, ExportConfig]:
        return {export.name: export for export in self.exports}

    def export(self, name: str) -> ExportConfig:
        """The export called ``name``. Raises UsageError."""
        try:
            return self._by_name[name]
        except KeyError:
            known = ", ".join(sorted(self._by_name)[:10])
            raise UsageError(
                f"no export is called '{name}' in {self._path.name}; there are: {known}",
                code="RIVET_CLI_EXPORT_UNKNOWN",
            ) from None

    def tuning_for(self, export: ExportConfig) -> Tuning:
        """Export over source over profile; the profile's default follows ``source.environment``."""
        return merge(self.source.tuning, export.tuning, self.source.default_profile)

    def attempts_for(self, export: ExportConfig) -> int:
        """How often one unit is tried at most: ``chunk_max_attempts``, else ``max_retries`` + 1."""
        return export.chunk_max_attempts or self.tuning_for(export).max_retries + 1

    def lock_wait_for(self, export: ExportConfig) -> int:
        """Seconds to wait for another run of ``export``."""
        for value in (export.lock_wait, self.lock_wait):
            if value is not None:
                return value
        return DEFAULT_LOCK_WAIT_S

    def group_for(self, export: ExportConfig) -> str | None:
        return export.dagster.group or self.dagster.group

    def problems(self, context: Context) -> Iterator[Problem]:
        if not self.exports:
            yield Problem(
                ("exports",), "the list of exports is empty", "add an export", "RIVET_CONFIG_NO_EXPORTS"
            )
        yield from (p.under("source") for p in self.source.problems(context))
        for key in ("notifications", "load", "dagster"):
            section: Section | None = getattr(self, key)
            if section is not None:
                yield from (p.under(key) for p in section.problems(context))
        for at, export in enumerate(self.exports):
            for problem in [*export.problems(context), *self._with_source(export)]:
                yield problem.under("exports", at)
        yield from self._names()
        yield from self._destinations()
        yield from self._logs()

    def _with_source(self, export: ExportConfig) -> Iterator[Problem]:
        kind = self.source.type
        values = merged_values(self.source.tuning, export.tuning)
        alone = [merged_values(None, block) for block in (self.source.tuning, export.tuning)]
        both = {"batch_size", "batch_size_memory_mb"}
        if both <= values.keys() and not any(both <= block.keys() for block in alone):
            yield both_sizes(("tuning", next(iter(both & alone[1].keys()))))
        if export.partition_by is not None and self.load is not None:
            yield Problem(
                ("partition_by",), "`partition_by` does not work with a `load` block", "remove one of the two"
            )
        if kind == "mongo":
            if export.mode not in ("full", "cdc"):
                yield Problem(
                    ("mode",), f"a mongo source has no `mode: {export.mode}`", "use `full` or `cdc`"
                )
            if self.source.mongo is not None and self.source.mongo.resume and export.parallel > 1:
                yield Problem(("parallel",), "`mongo.resume` works only with one worker", "remove `parallel`")
        if export.dagster.pool is not None and self.dagster.source_pool_limit is not None:
            yield Problem(
                ("dagster", "pool"),
                "a step queues in one pool: in this one it would not count for `source_pool_limit`",
                "remove `pool` here or `source_pool_limit` above",
            )
        if export.mode == "cdc":
            yield from self._cdc(export)

    def _cdc(self, export: ExportConfig) -> Iterator[Problem]:
        kind, cdc = self.source.type, export.cdc
        checkpoint = cdc.checkpoint if cdc is not None else None
        if kind == "mssql":
            if export.tables is not None:
                yield Problem(("tables",), "SQL Server captures one table an export", "use `table`")
            if cdc is None or not cdc.capture_instance:
                yield Problem(("cdc",), "SQL Server needs `capture_instance`", "add `cdc.capture_instance:`")
        if kind in ("mysql", "mongo", "oracle") and checkpoint is None:
            yield Problem(("cdc",), f"a {kind} source needs `checkpoint`", "add `cdc.checkpoint:`")
        elif cdc is not None and cdc.initial is not None and kind != "postgres" and checkpoint is None:
            yield Problem(("cdc", "initial"), "`initial` needs `checkpoint`", "add `cdc.checkpoint:`")
        names = export.tables or ((export.table,) if export.table else ())
        if kind == "mongo" and any("." in name for name in names):
            yield Problem(
                ("cdc",), "a collection with a dot in its name cannot be captured", "rename the collection"
            )

    def _names(self) -> Iterator[Problem]:
        names: dict[str, int] = {}
        assets: dict[str, str] = {}
        for at, export in enumerate(self.exports):
            if export.name in names:
                yield Problem(
                    ("exports", at, "name"),
                    f"number {names[export.name] + 1} of the list is called '{export.name}' too",
                    "give every export its own name",
                    "RIVET_CONFIG_DUPLICATE_EXPORT",
                )
            elif (other := assets.get(export.asset_name)) is not None:
                yield Problem(
                    ("exports", at, "name"),
                    f"'{export.name}' and '{other}' both become the asset '{export.asset_name}'",
                    "make the names differ in letters, digits or `_`",
                    "RIVET_CONFIG_DUPLICATE_EXPORT",
                )
            names.setdefault(export.name, at)
            assets.setdefault(export.asset_name, export.name)

    def _destinations(self) -> Iterator[Problem]:
        owners: dict[str, str] = {}
        for at, export in enumerate(self.exports):
            there = export.destination
            if there.type == "stdout" or (there.type == "local" and not there.path):
                continue
            folder = expand_path(there.root, export=export.name)
            if there.type == "local":
                key, folder = "path", os.path.realpath(folder)
            else:
                key = "prefix"
                folder = "\0".join(str(p) for p in (there.type, there.account_name, there.bucket, folder))
            if (other := owners.get(folder)) is not None and other != export.name:
                yield Problem(
                    ("exports", at, "destination", key),
                    f"the export '{other}' writes into the same folder; each would replace the other's files",
                    'give each export a folder of its own, e.g. "./out/{export}"',
                )
            owners.setdefault(folder, export.name)

    def _logs(self) -> Iterator[Problem]:
        """Two readers of one slot, server id or checkpoint would each take what the other needs."""
        used: dict[tuple[str, str], str] = {}
        for at, export in enumerate(self.exports):
            if export.mode != "cdc":
                continue
            for key, value in _log_resources(self.source.type, export):
                if (other := used.get((key, value))) is not None:
                    yield Problem(
                        ("exports", at, "cdc", key),
                        f"the export '{other}' uses the same `{key}` (the default counts)",
                        f"give each export its own `cdc.{key}`",
                    )
                used.setdefault((key, value), export.name)


def _log_resources(kind: str, export: ExportConfig) -> Iterator[tuple[str, str]]:
    cdc = export.cdc
    if kind == "postgres":
        yield "slot", (cdc.slot if cdc is not None else None) or DEFAULT_SLOT
    if kind == "mysql":
        yield "server_id", str((cdc.server_id if cdc is not None else None) or DEFAULT_SERVER_ID)
    if cdc is not None and cdc.checkpoint is not None:
        yield "checkpoint", os.path.normpath(cdc.checkpoint)


def attach(config: RivetConfig, path: Path, place: Place) -> None:
    """Tell the models where they came from."""
    config._path = path
    lines = {export.name: place.line(("exports", at)) for at, export in enumerate(config.exports)}
    config._lines = {name: line for name, line in lines.items() if line is not None}
    config.source._place = place
    config.source._dir = path.parent
    for export in config.exports:
        export._dir = path.parent
