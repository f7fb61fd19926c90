"""``verify: content``: a published part read back from its destination, before anything counts on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from rivet_dagster.engine.destinations.base import Store
from rivet_dagster.engine.verify import checksum
from rivet_dagster.engine.verify.fingerprint import stream_fingerprint
from rivet_dagster.engine.verify.part_reader import csv_rows, parquet_batches

if TYPE_CHECKING:
    from rivet_dagster.engine.plan.units import Part

#: Column checksums of a batch, by the function that took those of the part while it was written.
BatchChecksums = Callable[[pa.RecordBatch], dict[str, int]]


def content_fault(store: Store, part: Part, checksums: BatchChecksums | None) -> str | None:
    """How the stored part differs from what was handed to its writer; None when it does not.

    checksums: None for a format without value checksums (CSV), whose bytes and records are compared.
    Raises RivetError when the part cannot be opened, OSError when it cannot be read.
    """
    with store.open_input(part.path) as file:
        found = stream_fingerprint(file)
    if found != part.fingerprint:
        return f"the bytes of {part.path} have the fingerprint {found}, not {part.fingerprint}"
    try:
        with store.open_input(part.path) as file:
            if checksums is None:
                rows, sums = csv_rows(file), dict(part.checksums or {})
            else:
                rows, sums = 0, {}
                for batch in parquet_batches(file):
                    rows += batch.num_rows
                    for name, value in checksums(batch).items():
                        sums[name] = checksum.add(sums.get(name, 0), value)
    except (OSError, pa.ArrowException, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        # pyarrow raises OSError without a number for bytes that are no Parquet
        return f"{part.path} does not read back: {type(error).__name__}"
    if rows != part.rows:
        return f"{part.path} holds {rows} rows, not {part.rows}"
    wanted = part.checksums or {}
    differ = sorted(name for name in wanted.keys() | sums.keys() if wanted.get(name) != sums.get(name))
    if differ:
        return f"{part.path} holds other values of {', '.join(differ[:10])} than were read"
    return None


__all__ = ["BatchChecksums", "content_fault"]
