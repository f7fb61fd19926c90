"""Batches of one unit become published parts: the writing half of steps 1 to 3 of the durability order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from rivet_dagster.engine.destinations.base import Store
from rivet_dagster.engine.destinations.local import destination_faults, os_fault
from rivet_dagster.engine.errors import RefusalError, RivetError, TransientError
from rivet_dagster.engine.plan.units import Part, PartStats
from rivet_dagster.engine.run.faults import fault_point
from rivet_dagster.engine.verify.fingerprint import stream_fingerprint
from rivet_dagster.engine.write.base import PartWriter, WriteOptions

Checksum = Callable[[pa.RecordBatch], dict[str, int]]
Measure = Callable[[pa.RecordBatch], PartStats]
#: Adds the columns that are ours to a batch of the source.
Extend = Callable[[pa.RecordBatch], pa.RecordBatch]


class BatchLimit(Struct, frozen=True):
    """Bytes of a batch's Arrow data. refuses: a larger one ends the run; else it is reported."""

    bytes: int
    refuses: bool

    def hold(
        self, batches: Iterable[pa.RecordBatch], say: Callable[[str], object]
    ) -> Iterator[pa.RecordBatch]:
        """``batches`` as they are. Raises RefusalError RIVET_BATCH_TOO_LARGE; ``say`` is told once."""
        said = False
        for batch in batches:
            if batch.nbytes > self.bytes:
                text = f"a batch of {batch.num_rows} rows takes {batch.nbytes} bytes, more than {self.bytes}"
                if self.refuses:
                    raise RefusalError(text, code="RIVET_BATCH_TOO_LARGE", field="tuning.max_batch_memory_mb")
                if not said:
                    say(text)
                said = True
            yield batch


class UnitSink:
    """Writes one unit's batches, rotating parts by size. Used by one thread at a time.

    read_back: look at each part again where it was published (``verify: content``).
    """

    def __init__(
        self,
        store: Store,
        options: WriteOptions,
        new_writer: Callable[[Path], PartWriter],
        name_part: Callable[[int], str],
        checksum: Checksum | None,
        *,
        measure: Measure | None = None,
        extend: Extend | None = None,
        read_back: bool = False,
    ) -> None:
        self._store = store
        self._options = options
        self._new_writer = new_writer
        self._name_part = name_part
        self._checksum = checksum
        self._measure = measure
        self._extend = extend
        self._read_back = read_back
        self._stats: PartStats | None = None
        self._sums: dict[str, int] | None = None
        self._writer: PartWriter | None = None
        self._staged: Path | None = None
        self.parts: list[Part] = []
        #: values of the unit that the policy ``null`` replaced, by column; known when all is read
        self.nulled: Mapping[str, int] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        writer = self._open()
        if self._extend is not None:
            batch = self._extend(batch)
        with destination_faults(self._store.uri()):
            writer.write(batch)
        if self._checksum is not None:
            for name, value in self._checksum(batch).items():
                assert self._sums is not None
                self._sums[name] = (self._sums.get(name, 0) + value) & 0xFFFFFFFFFFFFFFFF
        if self._measure is not None:
            found = self._measure(batch)
            self._stats = found if self._stats is None else self._stats.joined(found)
        limit = self._options.max_file_bytes
        if limit is not None and writer.tell() >= limit:
            self._close_part()

    def finish(self, *, schema_only: bool) -> list[Part]:
        """Publish what is open. schema_only: a unit without rows still gets its (empty) part."""
        fault_point("after_source_read")
        if not self.parts and self._writer is None and schema_only:
            self._open()
        if self._writer is not None:
            self._close_part()
        if self.nulled and self.parts:
            stats = replace(self.parts[0].stats or PartStats(), nulled=self.nulled)
            self.parts[0] = replace(self.parts[0], stats=stats)
        return self.parts

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.abort()
        if self._staged is not None:
            self._store.discard(self._staged)
        self._writer = self._staged = None

    def _open(self) -> PartWriter:
        if self._writer is None:
            self._staged = self._store.staging_path(self._name_part(len(self.parts)))
            with destination_faults(self._store.uri()):
                self._writer = self._new_writer(self._staged)
            self._sums = {} if self._checksum is not None else None
        return self._writer

    def _close_part(self) -> None:
        assert self._writer is not None
        assert self._staged is not None
        with destination_faults(self._store.uri()):
            self._writer.close()
            with self._staged.open("rb") as file:
                fingerprint = stream_fingerprint(file)
            size = self._staged.stat().st_size
        name = self._name_part(len(self.parts))
        md5 = self._store.publish(self._staged, name)
        fault_point("after_file_write")
        part = Part(name, self._writer.rows, size, fingerprint, md5, self._sums, self._stats)
        self._writer = self._staged = self._stats = None
        if self._read_back:
            self._require_content(part)
        self.parts.append(part)

    def _require_content(self, part: Part) -> None:
        """Raise TransientError, so that the unit is written again, when the part is not what was written."""
        from rivet_dagster.engine.verify.content import content_fault

        with destination_faults(self._store.uri(part.path)):
            fault = content_fault(self._store, part, self._checksum)
        if fault is not None:
            raise TransientError(fault, code="RIVET_DEST_CONTENT_DIFFERS")


class UnitStream:
    """Encodes one unit on a thread of its own behind a queue of one, so that reading and encoding overlap.

    ``settle`` is called once, on that thread, with the published parts or with what went wrong; nothing
    of a failed unit stays staged. The reading of the next unit need not wait for it: with ``after``,
    the stream before, this one encodes nothing until that one is settled. So memory stays at one batch
    being filled, one waiting and one being encoded.
    """

    def __init__(
        self,
        sink: UnitSink,
        settle: Callable[[list[Part] | BaseException], None],
        *,
        schema_only: bool,
        after: UnitStream | None = None,
    ) -> None:
        self._sink = sink
        self._settle = settle
        self._schema_only = schema_only
        self._queue: queue.Queue[pa.RecordBatch | None] = queue.Queue(1)
        self._error: BaseException | None = None
        before = None if after is None else after._thread
        self._thread: threading.Thread = threading.Thread(
            target=self._run, args=(before,), name="rivet-writer", daemon=True
        )
        self._thread.start()

    def feed(self, batches: Iterable[pa.RecordBatch]) -> bool:
        """Take all ``batches``. False: reading or writing them failed, and that is settled now."""
        try:
            for batch in batches:
                if self._error is not None:
                    break
                self._queue.put(batch)
                del batch
        except BaseException as error:  # noqa: BLE001 - settled on the stream's thread
            self._error = self._error or error
        self._queue.put(None)
        if self._error is None:
            return True
        self.join()
        return False

    def join(self) -> None:
        """Wait until the unit is settled."""
        self._thread.join()

    def _run(self, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        while (batch := self._queue.get()) is not None:
            if self._error is not None:
                continue  # drain, so that the reader never blocks on a dead writer
            try:
                self._sink.write(batch)
            except BaseException as error:  # noqa: BLE001 - settled at the end
                self._error = error
        self._settle(self._outcome())

    def _outcome(self) -> list[Part] | BaseException:
        try:
            if self._error is None:
                return self._sink.finish(schema_only=self._schema_only)
        except BaseException as error:  # noqa: BLE001 - handed to settle
            self._error = error
        self._sink.abort()
        if isinstance(self._error, OSError) and not isinstance(self._error, RivetError):
            fault = os_fault(self._error, "the destination")
            fault.__cause__ = self._error
            return fault
        assert self._error is not None
        return self._error
