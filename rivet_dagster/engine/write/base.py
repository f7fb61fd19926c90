"""The interface of a part writer and what both formats share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
from msgspec import Struct

#: How a reader takes our CSV apart: NULL is ``null`` without quotes, ``quote`` stands doubled in a field.
CSV_DIALECT: Final[Mapping[str, Any]] = {
    "delimiter": ",",
    "quote": '"',
    "escape": '"',
    "null": "",
    "line_end": "\n",
    "header": True,
    "encoding": "utf-8",
}


class WriteOptions(Struct, frozen=True):
    """format: ``parquet`` or ``csv``. codec: Arrow's name or None. level: of the codec, None: default.

    max_rows / max_bytes: a row group closes at whichever comes first (Arrow bytes, in memory).
    max_file_bytes: a part rotates after the row group that reaches it; None: never.
    """

    format: str
    codec: str | None
    level: int | None
    max_rows: int
    max_bytes: int
    max_file_bytes: int | None = None

    @property
    def extension(self) -> str:
        return self.format


class PartWriter(Protocol):
    """Writes one file at a local path. Not thread safe; used by one writer thread."""

    rows: int

    def write(self, batch: pa.RecordBatch) -> None: ...

    def tell(self) -> int:
        """Bytes written so far."""
        ...

    def close(self) -> None:
        """Write the footer and close (I1)."""
        ...

    def abort(self) -> None:
        """Close the file without making it valid; the caller removes it."""
        ...


class WriterFactory(Protocol):
    def __call__(self, path: Path) -> PartWriter: ...
