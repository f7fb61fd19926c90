"""Every object store: a prefix of a bucket, whoever runs the bucket.

A part is staged on local disk and sent when it is whole: in one request where it fits the budget, else
in pieces that become an object only when all have arrived. Each request carries its MD5, and what the
service says it has is compared with it, so that nothing is downloaded to be sure.
"""

from __future__ import annotations

import base64
import hashlib
import io
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar, cast

from msgspec.structs import replace

from rivet_dagster.engine import names
from rivet_dagster.engine.destinations.base import ConflictError, Staged, StoredObject
from rivet_dagster.engine.destinations.bucket import (
    Bucket,
    Entry,
    NoObjectError,
    Piece,
    UnexplainedError,
    Upload,
    patience_s,
    retried,
)
from rivet_dagster.engine.destinations.local import destination_faults
from rivet_dagster.engine.destinations.staging import discard, staging_path
from rivet_dagster.engine.errors import EnvironmentFault, IntegrityError, RivetError, TransientError

T = TypeVar("T")

DEFAULT_BUDGET_MB: Final = 64
_READ_AHEAD: Final = 4 << 20
_MOST_PIECES: Final = 9_000  # every service takes 10,000
#: Services answer with an MD5 of something else than the bytes when they encrypt with a key of the user.
_UNKNOWN: Final = ""


class _Budget:
    """Bytes that all threads of the process hold for requests at one time."""

    def __init__(self) -> None:
        self._used = 0
        self._freed = threading.Condition()

    @contextmanager
    def hold(self, size: int, limit: int) -> Iterator[None]:
        with self._freed:
            # one that is larger than the limit goes alone
            self._freed.wait_for(lambda: self._used == 0 or self._used + size <= limit)
            self._used += size
        try:
            yield
        finally:
            with self._freed:
                self._used -= size
                self._freed.notify_all()


_BUDGET: Final = _Budget()


def _b64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


class ObjectStore:
    """The objects below one prefix. ``where``: its URI, without a slash at the end.

    prefix: of the keys, without slashes around; "" is the whole bucket. budget_bytes: what the process
    holds in memory for requests; a part that is larger is sent in pieces.
    """

    def __init__(self, bucket: Bucket, prefix: str, where: str, *, budget_bytes: int | None = None) -> None:
        self.capabilities = bucket.capabilities
        self.expires = bucket.expires
        self._bucket = bucket
        self._base = f"{prefix}/" if prefix else ""
        self._where = where
        budget = DEFAULT_BUDGET_MB << 20 if budget_bytes is None else budget_bytes
        self._one_request = budget
        self._budget = max(budget, bucket.piece_bytes * bucket.pieces_at_once)
        self._patience = patience_s()

    def prepare(self) -> None:
        """One listing: the bucket is there and lets us in. Whether it takes objects, the first one shows."""
        self._ask(lambda: next(iter(self._bucket.list(self._base)), None))

    def probe(self) -> None:
        """Write, read and remove an object, each with one request and no second try."""
        key, data = self._key(f".rivet_doctor_probe.{secrets.token_hex(4)}"), b"probe"
        self._bucket.put(key, data, hashlib.md5(data, usedforsecurity=False).digest(), None)
        try:
            if self._bucket.read(key, 0, len(data)) != data:
                raise TransientError(
                    f"{self._where}: what was written is not what is read", code="RIVET_DEST_CONTENT_DIFFERS"
                )
        finally:
            self._bucket.delete(key)

    def staging_path(self, name: str) -> Path:
        return staging_path(name)

    def discard(self, staged: Path) -> None:
        discard(staged)

    def publish(self, staged: Path, name: str) -> str:
        return self._send(staged, name, None)[0].md5

    def version(self, name: str) -> str | None:
        try:
            return self._ask(lambda: self._bucket.head(self._key(name))).version
        except NoObjectError:
            return None

    def replace(self, staged: Path, name: str, over: str | None) -> bool:
        return self._send(staged, name, over)[1]

    def read_bytes(self, name: str, limit: int) -> bytes | None:
        try:
            data = self._ask(lambda: self._bucket.read(self._key(name), 0, limit + 1))
        except NoObjectError:
            return None
        if len(data) > limit:
            raise IntegrityError(f"{name} is larger than {limit} bytes", code="RIVET_VALIDATE_FAILED")
        return data

    def open_input(self, name: str) -> BinaryIO:
        key = self._key(name)
        try:
            size = self._ask(lambda: self._bucket.head(key)).size
        except NoObjectError:
            raise TransientError(f"{self.uri(name)} is not there", code="RIVET_DEST_UNAVAILABLE") from None
        raw = _Object(lambda start, end: self._ask(lambda: self._bucket.read(key, start, end)), size)
        return cast(BinaryIO, io.BufferedReader(raw, _READ_AHEAD))

    def size(self, name: str) -> int | None:
        try:
            return self._ask(lambda: self._bucket.head(self._key(name))).size
        except NoObjectError:
            return None

    def list(self) -> Iterator[StoredObject]:
        aside = f"{names.QUARANTINE}/"
        return (item for item in self._listed(self._base) if not item.name.startswith(aside))

    def list_quarantine(self) -> Iterator[StoredObject]:
        return self._listed(f"{self._base}{names.QUARANTINE}/")

    def staged(self, mine: names.NameMatcher) -> tuple[Staged, ...]:
        found = self._ask(lambda: tuple(self._bucket.uploads(self._base)))
        items = (Staged(upload.key.removeprefix(self._base), upload.id) for upload in found)
        return tuple(item for item in items if mine.match(item.name) is not None)

    def unstage(self, item: Staged) -> None:
        self._ask(lambda: self._bucket.abort(Upload(self._key(item.name), item.upload, 0)))

    def move(self, name: str, target: str) -> None:
        """Copied, then removed: a move that is cut short leaves both, and the next one does it again."""
        size = self.size(name)
        if size is not None:
            self._write(lambda: self._bucket.copy(self._key(name), self._key(target), size))
            self.delete(name)

    def delete(self, name: str) -> None:
        self._ask(lambda: self._bucket.delete(self._key(name)))

    def uri(self, name: str = "") -> str:
        return f"{self._where}/{name}" if name else self._where

    def close(self) -> None:
        self._bucket.close()

    def _key(self, name: str) -> str:
        return self._base + name

    def _ask(self, ask: Callable[[], T]) -> T:
        return retried(ask, self._patience)

    def _write(self, ask: Callable[[], T]) -> T:
        """``_ask`` for requests that need room. A store that has none may say no more than that it failed."""
        try:
            return self._ask(ask)
        except UnexplainedError as error:
            if not self._takes_names():
                raise
            said = f"{error.message}, and the store takes an object without bytes: it has no room for more"
            raise EnvironmentFault(said, code="RIVET_DEST_FULL") from error

    def _takes_names(self) -> bool:
        key = self._key(f".rivet_doctor_probe.{secrets.token_hex(4)}")
        try:
            self._bucket.put(key, b"", hashlib.md5(usedforsecurity=False).digest(), None)
            self._bucket.delete(key)
        except RivetError:
            return False
        return True

    def _listed(self, prefix: str) -> Iterator[StoredObject]:
        # a page that fails is asked for again inside; a listing that fails for good is begun again
        for entry in self._ask(lambda: tuple(self._bucket.list(prefix))):
            if not entry.key.endswith("/"):  # what consoles make to show an empty folder
                yield StoredObject(entry.key.removeprefix(self._base), entry.size, entry.md5)

    def _send(self, staged: Path, name: str, over: str | None) -> tuple[Entry, bool]:
        """The object that is there then, and whether it was surely this call that made it."""
        with destination_faults(staged):
            size = staged.stat().st_size
            send = self._in_one if size <= self._one_request else self._in_pieces
            sent, made = send(staged, self._key(name), size, over)
        self.discard(staged)
        if sent.size != size:
            raise TransientError(
                f"{self.uri(name)} has {sent.size} bytes, {size} were sent", code="RIVET_DEST_CONTENT_DIFFERS"
            )
        return sent, made

    def _in_one(self, staged: Path, key: str, size: int, over: str | None) -> tuple[Entry, bool]:
        with _BUDGET.hold(size, self._budget):
            data = staged.read_bytes()
            digest = hashlib.md5(data, usedforsecurity=False).digest()
            try:
                return self._write(lambda: self._bucket.put(key, data, digest, over)), True
            except ConflictError:
                # the answer to an earlier try may have been lost on its way
                return self._ours(key, size, _b64(digest)), False

    def _in_pieces(self, staged: Path, key: str, size: int, over: str | None) -> tuple[Entry, bool]:
        each = max(self._bucket.piece_bytes, -(-size // _MOST_PIECES))
        upload = self._write(lambda: self._bucket.begin(key, size, over))
        whole = hashlib.md5(usedforsecurity=False) if self._bucket.whole_md5 else None
        try:
            with staged.open("rb") as file, ThreadPoolExecutor(self._bucket.pieces_at_once) as pool:
                held = threading.Semaphore(self._bucket.pieces_at_once)
                waiting = []
                for number, offset in enumerate(range(0, size, each), 1):
                    held.acquire()
                    data = file.read(each)
                    if whole is not None:
                        whole.update(data)
                    waiting.append(pool.submit(self._piece, upload, number, offset, data, held))
                    del data
                    if any(sent.done() and sent.exception() for sent in waiting):
                        break
                pieces = [sent.result() for sent in waiting]
            digest = whole.digest() if whole is not None else b""
            try:
                return self._write(lambda: self._bucket.complete(upload, pieces, digest, over)), True
            except ConflictError:
                found = self._ours(key, size, _b64(digest), pieces)
                self._ask(lambda: self._bucket.abort(upload))
                return found, False
        except BaseException:
            with suppress(RivetError):  # what is left of it is found by the next run
                self._bucket.abort(upload)
            raise

    def _piece(
        self, upload: Upload, number: int, offset: int, data: bytes, held: threading.Semaphore
    ) -> Piece:
        try:
            piece = Piece(number, offset, hashlib.md5(data, usedforsecurity=False).digest())
            with _BUDGET.hold(len(data), self._budget):
                return self._write(lambda: self._bucket.send(upload, piece, data))
        finally:
            held.release()

    def _ours(self, key: str, size: int, md5: str, pieces: Sequence[Piece] | None = None) -> Entry:
        """The object that is there, when it is what we sent. Raises ConflictError when it is another."""
        found = None
        with suppress(NoObjectError):
            found = self._ask(lambda: self._bucket.head(key))
        if found is not None and found.size == size:
            if md5 and found.md5 == md5:
                return found
            if pieces is not None and found.version == self._bucket.composed(pieces):
                return replace(found, md5=_UNKNOWN)
        raise ConflictError(f"{self._where}: another writer has put {key.removeprefix(self._base)} there")


class _Object(io.RawIOBase):
    """An object as a seekable file. read: bytes from a start to an end."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        super().__init__()
        self._read = read
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        end = min(self._at + len(view), self._size)
        if end <= self._at:
            return 0
        data = self._read(self._at, end)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
