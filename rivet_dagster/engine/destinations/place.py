"""Where an export's files go: the name of its prefix, and the store that is rooted there."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rivet_dagster.engine.destinations.base import Store
from rivet_dagster.engine.destinations.local import LocalStore
from rivet_dagster.engine.errors import EnvironmentFault
from rivet_dagster.engine.names import expand_path

if TYPE_CHECKING:
    from rivet_dagster.config.destination import DestinationConfig, Kind
    from rivet_dagster.engine.destinations.objects import ObjectStore

#: Kind -> module and class of its bucket. Each needs the package's extra of the same name.
_BUCKETS: Final = {
    "s3": ("s3", "S3Bucket"),
    "gcs": ("gcs", "GcsBucket"),
    "azure": ("azure", "AzureBucket"),
}
#: The prefix of what goes to standard output.
STDOUT: Final = "stdout:"
_KINDS: Final[dict[str, Kind]] = {"s3": "s3", "gs": "gcs", "abfss": "azure"}


def prefix_of(destination: DestinationConfig, export: str) -> str:
    """The export's prefix, its tokens expanded now: a local path, or the URI of an object store's.

    A run expands them once and keeps the result. Folders of ``partition_by`` lie below it. URIs hold keys
    as they are, nothing in them is escaped.
    """
    if destination.type == "stdout":
        return STDOUT
    root = expand_path(destination.root, export=export)
    if destination.type == "local":
        return str(Path(root))
    return f"{_bucket_uri(destination)}/{root}".rstrip("/")


def open_store(destination: DestinationConfig, prefix: str) -> Store:
    """The store of a prefix that ``prefix_of`` named, now or when the run began.

    The config may name another place by then; it is entered with the credentials of the one it names now
    when both are of one kind, else with those that the process has anyway.
    """
    if prefix == STDOUT:
        from rivet_dagster.engine.destinations.stdout import StdoutStore

        return StdoutStore()
    scheme, found, rest = prefix.partition("://")
    if not found:
        return LocalStore(Path(prefix))
    here = _bucket_uri(destination)
    if f"{prefix}/".startswith(f"{here}/"):
        return open_objects(destination, prefix)
    bucket, _, account = rest.partition("/")[0].partition("@")
    kind = _KINDS[scheme]
    there: dict[str, Any] = {"bucket": bucket}
    if account:
        there["account_name"] = account.partition(".")[0]
    if destination.type == kind:
        return open_objects(destination.model_copy(update=there), prefix)
    return open_objects(destination.model_construct(type=kind, **there), prefix)


def open_objects(destination: DestinationConfig, prefix: str) -> ObjectStore:
    """Raises EnvironmentFault RIVET_PACKAGE_MISSING without the client of this kind of store."""
    from rivet_dagster.engine.destinations.objects import ObjectStore

    module, name = _BUCKETS[destination.type]
    try:
        bucket = getattr(importlib.import_module(f"rivet_dagster.engine.destinations.{module}"), name)
    except ImportError as error:
        raise EnvironmentFault(
            f"a destination of type {destination.type} needs the package {error.name}: "
            f"install rivet-dagster[{destination.type}]",
            code="RIVET_PACKAGE_MISSING",
            field="destination.type",
        ) from error
    budget = destination.oneshot_budget_mb
    return ObjectStore(
        bucket(destination),
        prefix.removeprefix(_bucket_uri(destination)).strip("/"),
        prefix,
        budget_bytes=None if budget is None else budget << 20,
    )


def _bucket_uri(destination: DestinationConfig) -> str:
    match destination.type:
        case "local" | "stdout":
            return ""
        case "s3":
            return f"s3://{destination.bucket}"
        case "gcs":
            return f"gs://{destination.bucket}"
        case _:
            return f"abfss://{destination.bucket}@{destination.account_name}.dfs.core.windows.net"
