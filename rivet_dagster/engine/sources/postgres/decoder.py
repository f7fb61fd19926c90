"""COPY BINARY of PostgreSQL -> Arrow record batches, by the C kernel, with the GIL released.

A decoder serves one work unit. Its batches close by rows or bytes and go on over the borders of COPY
statements, so the same rows give the same batches however they were asked for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

import psycopg
import pyarrow as pa
from psycopg.pq import ExecStatus

from rivet_dagster.engine.errors import (
    IntegrityError,
    InternalError,
    RefusalError,
    RivetError,
    TransientError,
    UsageError,
)
from rivet_dagster.engine.sources.postgres.buffers import ColumnBuffers
from rivet_dagster.engine.sources.postgres.kernel import (
    ColumnState,
    CopyState,
    Special,
    SpecialKind,
    Status,
    Transport,
    libpq,
    load,
)
from rivet_dagster.engine.types.decision import Column, arrow_schema

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

Policy = Literal["error", "null"]

_PHASE_DONE: Final = 2
_SPECIALS_KEPT: Final = 64
_OFFSET_LIMIT: Final = 2**31 - 1  # int32 offsets of Arrow

_SPECIAL_TEXT: Final[dict[SpecialKind, str]] = {
    SpecialKind.NAN: "NaN",
    SpecialKind.INFINITY: "infinity",
    SpecialKind.NEG_INFINITY: "-infinity",
    SpecialKind.DATE_RANGE: "a date out of Arrow's range",
    SpecialKind.TIMESTAMP_RANGE: "a timestamp out of Arrow's range",
    SpecialKind.TIME_24: "24:00:00",
    SpecialKind.ARRAY_DIMS: "a multi-dimensional array",
    SpecialKind.ARRAY_BOUND: "an array that does not start at 1",
}

_FORMAT_TEXT: Final[dict[Status, str]] = {
    Status.BAD_HEADER: "the COPY header is not the binary format this version reads",
    Status.TRUNCATED: "a row is shorter than its lengths say",
    Status.COLUMN_COUNT: "a row has another number of columns",
    Status.BAD_LENGTH: "a value has a length that its type does not allow",
    Status.BAD_VALUE: "a value breaks the format of its type",
    Status.TRAILING: "data after the end of the COPY",
}


class CopyDecoder:
    """Decode the COPY streams of one unit.

    columns: in the order of the SELECT list. max_rows, max_bytes: a batch closes with the row that
    reaches either (bytes of Arrow data). max_value_bytes: a larger value is refused by name. policies:
    column name -> ``error`` (default) or ``null`` for values without an Arrow form.

    One thread at a time; ``cancel`` may come from another. After an error the connection is still in
    COPY: close it. A decoder that raised raises InternalError when it is used again.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        max_rows: int = 131072,
        max_bytes: int = 16 << 20,
        max_value_bytes: int = 256 << 20,
        policies: Mapping[str, Policy] | None = None,
    ) -> None:
        if (
            max_rows < 1
            or max_bytes < 1
            or max_value_bytes < 1
            or max_bytes + max_value_bytes > _OFFSET_LIMIT
        ):
            raise UsageError("batch and value limits must be positive and together below 2 GiB")
        self._kernel = load()
        self.columns = tuple(columns)
        self.schema = arrow_schema(self.columns)
        self._table = (ColumnState * len(self.columns))()
        wanted = policies or {}
        self._buffers = [
            ColumnBuffers(c, self._table[i], null_policy=wanted.get(c.name, "error") == "null")
            for i, c in enumerate(self.columns)
        ]
        self._specials = (Special * _SPECIALS_KEPT)()
        self._state = CopyState(
            ncols=len(self.columns),
            cols=ctypes.cast(self._table, ctypes.POINTER(ColumnState)),
            max_rows=max_rows,
            max_bytes=max_bytes,
            max_value=max_value_bytes,
            fixed_row_bytes=sum(b.fixed_bytes for b in self._buffers),
            specials=ctypes.cast(self._specials, ctypes.POINTER(Special)),
            special_cap=_SPECIALS_KEPT,
        )
        self._done_rows = 0
        self._broken = False
        self._guess = max_bytes // max(1, sum(b.guessed_bytes for b in self._buffers)) + 64
        self._allocated = False

    @property
    def rows(self) -> int:
        """Rows decoded so far, those of an unfinished batch included."""
        return self._done_rows + int(self._state.row)

    @property
    def nulled(self) -> dict[str, int]:
        """Column name -> values that the policy ``null`` replaced (columns with none are left out)."""
        return {b.column.name: n for b in self._buffers if (n := int(b.state.specials))}

    def cancel(self) -> None:
        """Make a read that waits for the server stop within about 100 ms (unencrypted connections;
        on others cancel the statement or shut the socket down)."""
        self._state.cancel = 1

    def copy(self, pgconn: PGconn, statement: bytes) -> Iterator[pa.RecordBatch]:
        """Run ``statement`` (a COPY ... TO STDOUT (FORMAT BINARY)) and yield its full batches."""
        result = pgconn.exec_(statement)
        if result.status != ExecStatus.COPY_OUT:
            raise psycopg.errors.error_from_result(result)
        yield from self.batches(pgconn)

    def batches(self, pgconn: PGconn) -> Iterator[pa.RecordBatch]:
        """Yield full batches while consuming the COPY that ``pgconn`` is in; drain its result.

        Raises the server's own error as psycopg's class (SQLSTATE kept), RefusalError for values that
        cannot be represented or decoded, IntegrityError when the server counted other rows than we
        decoded. Rows after the last full batch stay for the next COPY or ``flush``.
        """
        yield from self.decode(libpq().transport(pgconn), pgconn)
        self._finish(pgconn)

    def decode(self, transport: Transport, pgconn: PGconn | None = None) -> Iterator[pa.RecordBatch]:
        """Yield full batches of one stream, up to its end. ``pgconn``: where errors are explained."""
        state = self._state
        self._kernel.rivet_copy_reset(state)
        state.get, state.release, state.consume = transport.get, transport.release, transport.consume
        state.conn, state.fd = transport.conn, transport.fd
        try:
            while True:
                status = self._step()
                if status == Status.END:
                    break
                if status == Status.BATCH_FULL:
                    yield self._take()
                else:
                    raise self._failure(status, pgconn)
        finally:
            self._kernel.rivet_copy_reset(state) if state.msg else None

    def flush(self) -> pa.RecordBatch | None:
        """The rows of the unfinished batch, or None. Call once, when the unit's last COPY is over."""
        self._check()
        return self._take() if self._state.row else None

    def _check(self) -> None:
        if self._broken:
            raise InternalError("the decoder was used after it had failed")

    def _step(self) -> Status:
        """Run the kernel until it has something to say, growing buffers on the way."""
        self._check()
        state = self._state
        if not self._allocated:
            self._allocate()
        while True:
            status = Status(self._kernel.rivet_copy_loop(state))
            if status == Status.NEED_ROWS:
                self._set_rows(min(int(state.max_rows), int(state.row_cap) * 2))
            elif status == Status.NEED_SPACE:
                self._buffers[state.err_col].grow_space(int(state.err_detail))
            else:
                return status

    def _allocate(self) -> None:
        state = self._state
        rows = max(1, min(int(state.max_rows), self._guess))
        for buffers in self._buffers:
            buffers.allocate(rows)
        state.row_cap = rows
        state.row = state.var_bytes = 0
        self._allocated = True

    def _set_rows(self, rows: int) -> None:
        for buffers in self._buffers:
            buffers.grow_rows(rows)
        self._state.row_cap = rows

    def _take(self) -> pa.RecordBatch:
        state = self._state
        rows = int(state.row)
        for b in self._buffers:
            if b.state.nulls and b.column.required:
                raise self._null_error(b.column)
        arrays = [b.finish(rows) for b in self._buffers]
        batch = (
            pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            if arrays
            else pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
        )
        self._done_rows += rows
        self._guess = int(rows * 1.07) + 64
        state.row = state.special_count = 0
        self._allocated = False
        return batch

    def _null_error(self, column: Column) -> RivetError:
        self._broken = True
        return TransientError(
            f"column {column.name!r} holds NULL, and was NOT NULL when the run was planned",
            code="RIVET_SOURCE_SCHEMA_CHANGED",
            field=column.name,
        )

    def _failure(self, status: Status, pgconn: PGconn | None) -> BaseException:
        self._broken = True
        column = self.columns[self._state.err_col] if self._state.err_col >= 0 else None
        row = self.rows + 1
        if status == Status.SPECIAL and column is not None:
            return self._special_error(column, row)
        if status == Status.VALUE_TOO_LARGE and column is not None:
            return RefusalError(
                f"column {column.name!r}: a value of {self._state.err_detail} bytes in row {row} of the unit "
                f"is over the limit of {self._state.max_value}",
                code="RIVET_VALUE_TOO_LARGE",
                field=column.name,
                stops_run=False,
            )
        if status == Status.CANCELLED:
            return psycopg.errors.QueryCanceled("the read was cancelled")
        if status == Status.CONN_ERROR:
            return _server_error(pgconn)
        where = f"column {column.name!r}, " if column is not None else ""
        text = _FORMAT_TEXT.get(status, status.name)
        return _undecodable(f"{where}row {row} of the unit: {text}", column)

    def _special_error(self, column: Column, row: int) -> RivetError:
        special = self._specials[max(0, self._state.special_count - 1)]
        kind = SpecialKind(self._state.err_detail)
        what = _SPECIAL_TEXT.get(kind) or f"a value that does not fit {column.native_type} as {column.arrow}"
        if kind is SpecialKind.ARRAY_DIMS:
            what += f" ({special.raw} dimensions)"
        return RefusalError(
            f"column {column.name!r}: {what} in row {row} of the unit has no form in {column.arrow}",
            code="RIVET_SOURCE_VALUE_UNREPRESENTABLE",
            field=column.name,
            stops_run=False,
        )

    def _finish(self, pgconn: PGconn) -> None:
        """Drain the result of the COPY; compare the server's count with ours."""
        counted, failed = _drain(pgconn)
        if failed is not None:
            self._broken = True
            raise failed
        decoded = int(self._state.copy_rows)
        if self._state.phase != _PHASE_DONE:
            self._broken = True
            raise _undecodable(f"the COPY ended without its trailer after {decoded} rows", None)
        if counted != decoded:
            self._broken = True
            raise IntegrityError(
                f"the server sent {counted} rows by its own count, {decoded} were decoded",
                code="RIVET_UNIT_COUNT_MISMATCH",
            )


def _undecodable(message: str, column: Column | None) -> RefusalError:
    field = column.name if column is not None else None
    return RefusalError(message, code="RIVET_SOURCE_UNDECODABLE", field=field)


def _drain(pgconn: PGconn) -> tuple[int | None, psycopg.Error | None]:
    """Read the results that are left: (rows of the command tag, the first error)."""
    counted: int | None = None
    failed: psycopg.Error | None = None
    while (result := pgconn.get_result()) is not None:
        if result.status == ExecStatus.COMMAND_OK:
            counted = result.command_tuples
        elif failed is None:
            failed = psycopg.errors.error_from_result(result)
            if failed.sqlstate is None:  # libpq's own: the connection is gone
                failed = psycopg.OperationalError(str(failed))
        if result.status in (ExecStatus.COPY_OUT, ExecStatus.COPY_IN, ExecStatus.COPY_BOTH):
            break
    return counted, failed


def _server_error(pgconn: PGconn | None) -> BaseException:
    """What libpq says after it reported an error: the result's, or that of a lost connection."""
    if pgconn is None:
        return _undecodable("the stream broke off", None)
    _, failed = _drain(pgconn)
    return failed or psycopg.OperationalError(pgconn.get_error_message() or "the connection was lost")


__all__ = ["CopyDecoder", "Policy"]
