"""A hundred tables as a database has them: a few large ones, many small ones, some without a row."""

from __future__ import annotations

import random
from typing import Final

from benchmarks.load import (
    LINEITEM_COLUMNS,
    LINEITEM_ROWS,
    NARROW_COLUMNS,
    NARROW_ROWS,
    SEED,
    WIDE_COLUMNS,
    WIDE_ROWS,
    Table,
)

_SHAPES: Final = (
    ("narrow", NARROW_COLUMNS, NARROW_ROWS, "id", "id"),
    ("wide", WIDE_COLUMNS, WIDE_ROWS, "id", "id"),
    ("lineitem", LINEITEM_COLUMNS, LINEITEM_ROWS, "l_orderkey", "l_orderkey, l_linenumber"),
)
_EMPTY = 0.05
_SIGMA = 1.6


def mixed_tables(count: int, total_rows: int) -> list[Table]:
    """``count`` tables of the three shapes in turn; their sizes are log-normal and sum up to about
    ``total_rows``, one in twenty is empty. The same for the same arguments."""
    chance = random.Random(SEED)
    weights = [0.0 if n < count * _EMPTY else chance.lognormvariate(0, _SIGMA) for n in range(count)]
    chance.shuffle(weights)
    whole = sum(weights)
    return [
        Table(
            f"many_{count}_{n:03d}_{name}",
            columns,
            rows_sql,
            round(total_rows * weight / whole),
            key,
            primary,
        )
        for n, weight in enumerate(weights)
        for name, columns, rows_sql, key, primary in [_SHAPES[n % len(_SHAPES)]]
    ]
