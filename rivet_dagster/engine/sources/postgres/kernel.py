"""Load the C kernel and find the libpq that psycopg itself uses.

The kernel is a plain shared library (``_kernel``, built by setup.py) called through ctypes, which
releases the GIL for the length of a call. It calls libpq through function pointers that are looked up
from psycopg's own extension module: a second libpq in the process (psycopg2 brings one) must never
see psycopg's connections.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import Struct

from rivet_dagster.engine.errors import EnvironmentFault

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg.pq.abc import PGconn

_ABI: Final = 2


class Wire(IntEnum):
    """How the kernel decodes a value. A list is ``Wire.LIST | element kind``."""

    BOOL = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    OID = 5  # uint32 on the wire, int64 in Arrow
    FLOAT32 = 6
    FLOAT64 = 7
    DATE = 8
    TIMESTAMP = 9  # with and without time zone
    TIME = 10
    DECIMAL128 = 11
    UUID = 12
    DECIMAL256 = 13
    TIMESTAMP_NS = 14  # microseconds on the wire, nanoseconds in Arrow
    TEXT = 15  # also json, xml, enums: every type whose send function sends its text
    BYTES = 16
    JSONB = 17
    LIST = 0x100


class Status(IntEnum):
    """Why ``rivet_copy_loop`` came back (kernel.h)."""

    BATCH_FULL = 1
    NEED_ROWS = 2
    NEED_SPACE = 3
    END = 4
    CONN_ERROR = 5
    CANCELLED = 6
    BAD_HEADER = -1
    TRUNCATED = -2
    COLUMN_COUNT = -3
    BAD_LENGTH = -4
    BAD_VALUE = -5
    TRAILING = -6
    VALUE_TOO_LARGE = -7
    SPECIAL = -8
    BAD_CONFIG = -9


class SpecialKind(IntEnum):
    """Values that the Arrow type of their column cannot hold."""

    NAN = 1
    INFINITY = 2
    NEG_INFINITY = 3
    DATE_RANGE = 4
    TIMESTAMP_RANGE = 5
    TIME_24 = 6
    ARRAY_DIMS = 7
    ARRAY_BOUND = 8
    OVERFLOW = 9


class Special(ctypes.Structure):
    _fields_ = (
        ("column", ctypes.c_int32),
        ("kind", ctypes.c_int32),
        ("row", ctypes.c_int64),
        ("raw", ctypes.c_int64),
    )


class ColumnState(ctypes.Structure):
    """``rivet_column``: one column's buffers."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("is_list", ctypes.c_int32),
        ("precision", ctypes.c_int32),
        ("scale", ctypes.c_int32),
        ("null_policy", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("valid", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("data_cap", ctypes.c_int64),
        ("data_used", ctypes.c_int64),
        ("child_valid", ctypes.c_void_p),
        ("child_offsets", ctypes.c_void_p),
        ("child_cap", ctypes.c_int64),
        ("child_used", ctypes.c_int64),
        ("nulls", ctypes.c_int64),
        ("child_nulls", ctypes.c_int64),
        ("specials", ctypes.c_int64),
    )


class CopyState(ctypes.Structure):
    """``rivet_state``: one reader. Not shared between threads, except for ``cancel``."""

    _fields_ = (
        ("get", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("consume", ctypes.c_void_p),
        ("conn", ctypes.c_void_p),
        ("fd", ctypes.c_int32),
        ("cancel", ctypes.c_int32),
        ("msg", ctypes.c_void_p),
        ("msg_len", ctypes.c_int64),
        ("msg_pos", ctypes.c_int64),
        ("phase", ctypes.c_int32),
        ("ncols", ctypes.c_int32),
        ("cols", ctypes.POINTER(ColumnState)),
        ("row", ctypes.c_int64),
        ("row_cap", ctypes.c_int64),
        ("max_rows", ctypes.c_int64),
        ("fixed_row_bytes", ctypes.c_int64),
        ("var_bytes", ctypes.c_int64),
        ("max_bytes", ctypes.c_int64),
        ("max_value", ctypes.c_int64),
        ("copy_rows", ctypes.c_int64),
        ("specials", ctypes.POINTER(Special)),
        ("special_cap", ctypes.c_int32),
        ("special_count", ctypes.c_int32),
        ("err_col", ctypes.c_int32),
        ("err_reserved", ctypes.c_int32),
        ("err_detail", ctypes.c_int64),
        ("nap_ns", ctypes.c_int64),
        ("wake_bytes", ctypes.c_int64),
    )


class Transport(Struct, frozen=True):
    """Where COPY messages come from: C function addresses and the connection they belong to.

    ``consume`` None: ``get`` blocks by itself. Otherwise the kernel waits on ``fd`` and looks at its
    cancel flag every 100 ms. ``owner`` is what the addresses belong to, kept alive with them.
    """

    get: int
    release: int
    conn: int | None
    consume: int | None = None
    fd: int = -1
    owner: object = None


class Libpq(Struct, frozen=True):
    """Addresses in the libpq that psycopg uses, and the calls that tell whether it is encrypted."""

    get_copy_data: int
    freemem: int
    consume_input: int
    encrypted: tuple[Any, ...]

    def transport(self, pgconn: PGconn) -> Transport:
        """The transport of a connection that is in COPY OUT."""
        pointer = cast(Any, pgconn).pgconn_ptr  # every implementation has it, the protocol does not name it
        # Bytes that wait inside the TLS or GSS layer do not wake poll(): libpq must do the waiting.
        blocking = any(probe(pointer) for probe in self.encrypted)
        consume = None if blocking else self.consume_input
        return Transport(self.get_copy_data, self.freemem, pointer, consume, pgconn.socket, pgconn)


def _missing(reason: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"the PostgreSQL read kernel cannot be loaded: {reason}", code="RIVET_KERNEL_MISSING"
    )


def _outdated(path: Path) -> EnvironmentFault:
    return _missing(
        f"{path} was built from other sources than this package; install the package again, or in a source "
        "tree run `python setup.py build_ext --inplace`"
    )


def _library_path() -> Path:
    folder = Path(__file__).parent
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = folder / f"_kernel{suffix}"
        if path.exists():
            return path
    raise _missing(
        f"no _kernel library in {folder}: the package was installed without a C compiler, or is used "
        "from a source tree that was never installed"
    )


@cache
def load() -> ctypes.CDLL:
    """The kernel library. EnvironmentFault RIVET_KERNEL_MISSING when it is absent or does not fit."""
    path = _library_path()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise _missing(f"{path.name}: {error}") from error
    try:
        abi, sizes = library.rivet_abi, library.rivet_sizes
        entries = (
            library.rivet_copy_loop,
            library.rivet_copy_reset,
            library.rivet_checksum,
            library.rivet_xxh3_64,
            library.rivet_row_hashes,
            library.rivet_widest,
            library.rivet_cell_hashes,
            library.rivet_cell_span,
            library.rivet_keep_distinct,
        )
    except AttributeError as error:
        raise _outdated(path) from error
    sizes.restype = ctypes.c_int64
    expected = [ctypes.sizeof(s) for s in (ColumnState, CopyState, Special)]
    if abi() != _ABI or [sizes(i) for i in range(3)] != expected:
        raise _outdated(path)
    loop, reset, checksum, xxh3, row_hashes, widest, hashes, span, distinct = entries
    loop.argtypes, loop.restype = [ctypes.POINTER(CopyState)], ctypes.c_int32
    reset.argtypes, reset.restype = [ctypes.POINTER(CopyState)], None
    checksum.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    checksum.restype = ctypes.c_int32
    xxh3.argtypes, xxh3.restype = [ctypes.c_char_p, ctypes.c_uint64], ctypes.c_uint64
    row_hashes.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    row_hashes.restype = ctypes.c_int32
    pointer, number, word = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64
    widest.argtypes, widest.restype = [pointer, number], number
    hashes.argtypes, hashes.restype = [pointer, number, word, word, pointer], number
    span.argtypes, span.restype = [pointer, number, ctypes.c_int32, pointer], ctypes.c_int32
    distinct.argtypes, distinct.restype = [pointer, number, pointer, number, pointer], number
    return library


def _psycopg_library() -> ctypes.CDLL:
    """A handle in which libpq's symbols resolve to the libpq that psycopg is linked to."""
    from psycopg import pq

    if pq.__impl__ == "python":
        loaded: ctypes.CDLL = importlib.import_module("psycopg.pq._pq_ctypes").pq
        return loaded
    module = importlib.import_module({"binary": "psycopg_binary", "c": "psycopg_c"}[pq.__impl__] + ".pq")
    # dlsym on a handle searches the library and then what it was linked to, in that order
    return ctypes.CDLL(str(module.__file__))


@cache
def libpq() -> Libpq:
    """The libpq of psycopg. EnvironmentFault RIVET_KERNEL_MISSING when its symbols cannot be reached."""
    from psycopg import pq

    try:
        library = _psycopg_library()
        get, freemem, consume = library.PQgetCopyData, library.PQfreemem, library.PQconsumeInput
        probes = (library.PQsslInUse, library.PQgssEncInUse)
        version = library.PQlibVersion()
    except (OSError, AttributeError, KeyError, ImportError) as error:
        raise _missing(f"no libpq behind psycopg ({pq.__impl__} implementation): {error}") from error
    if version != pq.version():
        raise _missing(f"psycopg uses libpq {pq.version()}, but its symbols lead to {version}")
    for probe in probes:
        probe.argtypes, probe.restype = [ctypes.c_void_p], ctypes.c_int
    first, second, third = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (get, freemem, consume))
    return Libpq(first, second, third, encrypted=probes)


def column_checksum(array: pa.Array, key: pa.Array | None = None) -> int | None:
    """``cells.column_checksum``: the sum of the cells' hashes, None for a type not hashed natively."""
    from rivet_dagster.engine.sources.postgres import cells

    return cells.column_checksum(array, key)


def batch_checksums(batch: pa.RecordBatch, key: str | None = None) -> dict[str, int]:
    """``cells.batch_checksums``: column name -> checksum of the columns that are hashed natively."""
    from rivet_dagster.engine.sources.postgres import cells

    return cells.batch_checksums(batch, key)
