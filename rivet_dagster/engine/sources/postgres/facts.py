"""What planning needs to know of a relation, from its entry in the catalog."""

from __future__ import annotations

from typing import Final

from rivet_dagster.engine.errors import EnvironmentFault, RefusalError
from rivet_dagster.engine.sources.base import Heap, SourceFacts
from rivet_dagster.engine.sources.postgres import catalog
from rivet_dagster.engine.types.decision import Column

_TID_RANGE_SCAN: Final = 140_000  # before it, a ctid range reads the whole heap


def _heaps(relation: catalog.Relation, version: int) -> tuple[Heap, ...]:
    """The relation's own heaps; empty when it has to be read in one piece through its name."""
    if relation.kind in "vf" or not all(leaf.readable for leaf in relation.leaves):
        return ()
    return tuple(
        Heap(
            {"relation": [leaf.schema, leaf.name], "only": leaf.kind in "rf"},
            leaf.pages,
            leaf.bytes,
            split=leaf.is_heap and version >= _TID_RANGE_SCAN,
        )
        for leaf in relation.leaves
    )


def source_facts(
    columns: tuple[Column, ...], relation: catalog.Relation | None, server: catalog.ServerFacts
) -> SourceFacts:
    """What planning asks about a relation, or about a query (None)."""
    integers = frozenset(c.name for c in columns if c.integer)
    standby = "a standby does not show the open transactions of its primary" if server.in_recovery else None
    if relation is None:
        names = frozenset(c.name for c in columns)
        return SourceFacts(
            *(None, None, columns, (), None, None, (), (), (), integers, names, frozenset()), unseen=standby
        )
    unique = [k.columns for k in relation.unique_keys if k.not_null]
    rows = int(relation.tuples) if relation.tuples and relation.tuples > 0 else None
    foreign = any(leaf.kind == "f" for leaf in relation.leaves)
    return SourceFacts(
        relation.schema,
        relation.name,
        columns,
        _heaps(relation, server.version),
        rows,
        relation.bytes,
        tuple(columns[0] for columns in unique if len(columns) == 1),
        tuple(columns for columns in unique if len(columns) > 1),
        relation.primary_key,
        integers,
        frozenset(c.name for c in columns if c.nullable),
        relation.indexed,
        relation=relation,
        origins=relation.origins,
        analysed=all(leaf.analysed for leaf in relation.leaves),
        numbers=relation.numbers,
        sequenced=frozenset(relation.sequences) if relation.kind in "rp" else frozenset(),
        unseen="a foreign table's transactions are of another server" if foreign else standby,
        in_order=relation.in_order,
    )


def require_readable(relation: catalog.Relation) -> None:
    """Raise unless this role may read every column and every row."""
    if not relation.can_select:
        what = (
            f"columns {', '.join(relation.columns_denied[:10])} of {relation.sql}"
            if relation.columns_denied and relation.schema_usage
            else relation.sql
        )
        raise EnvironmentFault(
            f"the role may not read {what}", code="RIVET_SOURCE_PERMISSION_DENIED", sqlstate="42501"
        )
    if relation.rows_hidden:
        raise RefusalError(
            f"row-level security hides rows of {relation.sql} from this role",
            code="RIVET_SOURCE_ROW_SECURITY",
        )
