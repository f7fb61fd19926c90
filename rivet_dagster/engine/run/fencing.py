"""A prefix that only the newest holder of the export's lease can change.

The state refuses the commits of a holder that stalled past its time, but a rename at the destination
asks nobody. Two rules close that gap for files on one file system:

1. every object is staged first, and the lease is looked at *after* the staged file was made;
2. a new holder removes the staged files of all earlier ones before it changes anything (``expel``).

A rename whose check passed belongs to a file that was staged before the takeover. So it either came
before ``expel``, and its result is treated like any leftover, or it finds no file to rename. What
remains is a holder stopped in the instant between its check and the *removal* of ``_SUCCESS``: the
marker of its successor may then vanish, and readers wait for the next run; they never see wrong rows.

A store that compares versions (``conditional_writes``) is fenced by that instead: what an object is
written over is looked up *before* the lease, so a late write over a successor's object is refused by the
store. Parts and first versions are new objects; one that arrives late is taken back by whoever sent it,
and no manifest ever names it. One that is there already with the same bytes was written by a successor that
completed this very run, and stays.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from rivet_dagster.engine import names
from rivet_dagster.engine.destinations.base import ConflictError, Staged, Store, StoredObject
from rivet_dagster.engine.destinations.local import destination_faults
from rivet_dagster.engine.errors import BusyError, RivetError
from rivet_dagster.engine.run.faults import fault_point

#: Where a crash test stops between the staging and the rename of an object.
_STAGED_POINTS = {names.MANIFEST: "after_manifest_staged", names.SUCCESS: "after_success_staged"}
#: How often a sidecar is written over what an earlier holder may still have written in between.
_TRIES = 3


def _aside(name: str, run_id: str) -> str:
    return f"{names.QUARANTINE}/{run_id}/{name}"


class FencedStore:
    """A Store whose every change is preceded by ``verify``, which raises when the lease has passed on."""

    def __init__(self, store: Store, export: str, verify: Callable[[], None]) -> None:
        self.capabilities = store.capabilities
        self._store = store
        self._export = export
        self._mine = names.NameMatcher(export)
        self._verify = verify

    def expel(self) -> None:
        """Remove what earlier holders have staged, so that they can publish nothing any more.

        A listing may miss a file that is renamed while it is read; it then has its final name, where
        it is found later. A second listing finds what was renamed between the first and its removal.
        """
        for _ in range(2):
            found = self._store.staged(self._mine)
            self._verify()  # no later holder's work is in the answer
            for item in found:
                self._store.unstage(item)
            if not found:
                return

    def prepare(self) -> None:
        self._verify()
        self._store.prepare()

    def unmark(self, folders: Collection[str]) -> None:
        """Take the marker away, also of these folders of partitions: readers rely on it, and it comes back
        when the folder is exact again."""
        self.delete(names.SUCCESS)
        for folder in set(folders) - {""}:
            if self.size(f"{folder}/{names.SUCCESS}") is not None:
                self.delete(f"{folder}/{names.SUCCESS}")

    def staging_path(self, name: str) -> Path:
        return self._store.staging_path(name)

    def guarded(self, verify: Callable[[], None]) -> FencedStore:
        """The same prefix, with another check before each change."""
        return FencedStore(self._store, self._export, verify)

    def retract(self, name: str, run_id: str) -> None:
        """Move a part to the quarantine that was published and will never count; its name is nobody else's.

        Asks nobody, and does not mind when it is gone: the run's lead looks for such parts too.
        """
        with contextlib.suppress(RivetError):
            if self._store.size(name) is not None:
                self._store.move(name, _aside(name, run_id))

    def set_aside(self, name: str, run_id: str) -> None:
        """Move what does not count to the quarantine; a worker that was refused may just have done it."""
        try:
            self.move(name, _aside(name, run_id))
        except RivetError:
            if self._store.size(name) is not None:
                raise

    def publish(self, staged: Path, name: str) -> str:
        self._verify()
        fault_point("after_part_staged")
        with self._blaming_the_lease():
            md5 = self._store.publish(staged, name)
        self._verify_again(name)
        return md5

    def version(self, name: str) -> str | None:
        return self._store.version(name)

    def replace(self, staged: Path, name: str, over: str | None) -> bool:
        """``over`` is to be looked up before this: a successor's write after that makes it fail."""
        self._verify()
        fault_point(_STAGED_POINTS.get(posixpath.basename(name), "after_manifest_copy_staged"))
        with self._blaming_the_lease():
            return self._store.replace(staged, name, over)

    def discard(self, staged: Path) -> None:
        self._store.discard(staged)

    def put_bytes(self, name: str, data: bytes) -> None:
        """Replace ``name`` atomically and durably (M7)."""
        over, made = None, False
        for left in reversed(range(_TRIES)):
            over = self._store.version(name)
            try:
                made = self._put(name, data, over)
                break
            except ConflictError:  # with the lease still ours: an earlier holder's last word
                if not left:
                    raise
        if not made:  # a successor that completed this very run has written the same: it stays
            self._verify()
        elif over is None:
            self._verify_again(name, data)

    def _put(self, name: str, data: bytes, over: str | None) -> bool:
        staged = self._store.staging_path(name)
        try:
            with destination_faults(self._store.uri(name)):
                staged.write_bytes(data)
            return self.replace(staged, name, over)
        except BaseException:
            self._store.discard(staged)
            raise

    def read_bytes(self, name: str, limit: int) -> bytes | None:
        return self._store.read_bytes(name, limit)

    def open_input(self, name: str) -> BinaryIO:
        return self._store.open_input(name)

    def size(self, name: str) -> int | None:
        return self._store.size(name)

    def list(self) -> Iterator[StoredObject]:
        """What is there. Looks at the lease afterwards: no later holder's object is in the answer."""
        found = tuple(self._store.list())
        self._verify()
        return iter(found)

    def staged(self, mine: names.NameMatcher) -> tuple[Staged, ...]:
        return self._store.staged(mine)

    def unstage(self, item: Staged) -> None:
        self._verify()
        self._store.unstage(item)

    def list_quarantine(self) -> Iterator[StoredObject]:
        return self._store.list_quarantine()

    def move(self, name: str, target: str) -> None:
        with self._blaming_the_lease():
            self._store.move(name, target)

    def delete(self, name: str) -> None:
        self._verify()
        self._store.delete(name)

    def uri(self, name: str = "") -> str:
        return self._store.uri(name)

    def close(self) -> None:
        self._store.close()

    def _verify_again(self, name: str, data: bytes | None = None) -> None:
        """Take back a new object that came after the lease had passed on, where no rename was fenced.

        data: of an object that a successor may have written over. Parts have names of their own.
        """
        if not self.capabilities.conditional_writes:
            return
        try:
            self._verify()
        except BusyError:
            if data is None or self._store.read_bytes(name, len(data)) == data:
                self._store.delete(name)
            raise

    @contextlib.contextmanager
    def _blaming_the_lease(self) -> Iterator[None]:
        """A file that is gone may be the successor's doing: then that is what is reported."""
        try:
            yield
        except RivetError:
            self._verify()
            raise
