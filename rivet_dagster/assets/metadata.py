"""Metadata with names and types of their own, and the lineage of columns.

``RivetMetadataSet.extract(spec.metadata).mode`` reads what a definition says of its export.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import dagster as dg

from rivet_dagster.assets._internal import MetadataSet

if TYPE_CHECKING:
    from rivet_dagster.engine.types.decision import Column


class RivetMetadataSet(MetadataSet):
    """What the definitions of an export's assets carry, each key below ``rivet/``.

    config: file name of the rivet.yaml; line: where the export begins in it. format: of the files.
    """

    export: str | None = None
    mode: str | None = None
    format: str | None = None
    config: str | None = None
    line: int | None = None

    @classmethod
    def namespace(cls) -> str:
        return "rivet"


def column_lineage(upstream: dg.AssetKey, columns: Iterable[str]) -> dg.TableColumnLineage:
    """Each of ``columns`` comes from the column of ``upstream`` that has its name.

    For the export's own table, and for assets downstream that take its columns over as they are::

        MaterializeResult(metadata={"dagster/column_lineage": column_lineage(orders_key, ["id", "amount"])})
    """
    return dg.TableColumnLineage(
        deps_by_column={name: [dg.TableColumnDep(asset_key=upstream, column_name=name)] for name in columns}
    )


def source_lineage(
    table: str | None, deps: Iterable[dg.AssetKey], columns: Iterable["Column"]
) -> dg.TableColumnLineage | None:
    """Of an export that reads one table, whose asset is the one thing it depends on; else None.

    Columns that the export itself adds come from no column.
    """
    above = list(deps)
    if table is None or len(above) != 1:
        return None
    return column_lineage(above[0], [column.name for column in columns if not column.added])


def place(uri: str) -> dg.MetadataValue[str]:
    """A file or folder: a path to copy where it is local, else its address."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return dg.MetadataValue.path(unquote(parts.path))
    if parts.scheme in ("http", "https"):
        return dg.MetadataValue.url(uri)
    return dg.MetadataValue.text(uri)
