"""The local file system: staged beside the target, fsynced, renamed, folder fsynced."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from rivet_dagster.engine import names
from rivet_dagster.engine.destinations.base import DestinationCapabilities, Staged, StoredObject
from rivet_dagster.engine.errors import EnvironmentFault, IntegrityError, RivetError, TransientError

LOCAL = DestinationCapabilities(
    kind="local",
    atomic_publish=True,
    idempotent_overwrite=True,
    retry_safe=True,
    partial_write_risk=False,
)

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_WRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}


def os_fault(error: OSError, where: Path | str) -> RivetError:
    """Classify an OSError at the destination by errno, never by text."""
    if error.errno in _FULL:
        return EnvironmentFault(f"no space left at {where}", code="RIVET_DEST_FULL")
    if error.errno in _NOT_WRITABLE:
        return EnvironmentFault(f"cannot write at {where}: {error.strerror}", code="RIVET_DEST_NOT_WRITABLE")
    return TransientError(f"destination {where}: {error.strerror or error}", code="RIVET_DEST_UNAVAILABLE")


@contextmanager
def destination_faults(where: Path | str) -> Iterator[None]:
    """Turn OSErrors of the block into the engine's errors."""
    try:
        yield
    except OSError as error:
        raise os_fault(error, where) from error


def _fsync(path: Path, flags: int = os.O_RDONLY) -> None:
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class LocalStore:
    """A folder. Readers see a part only after its rename; a crash leaves at most a dot-temp file.

    All is staged in the folder itself, so that folders below it appear with their first object and go
    with their last.
    """

    capabilities = LOCAL

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        with destination_faults(self.root):
            if not self.root.is_dir():
                self.root.mkdir(parents=True, exist_ok=True)
                _fsync(self.root.parent)
            probe = self.root / f".rivet_probe.{secrets.token_hex(4)}.tmp"
            probe.write_bytes(b"")
            probe.unlink()

    def staging_path(self, name: str) -> Path:
        return self.root / f".{Path(name).name}.{secrets.token_hex(4)}.tmp"

    def publish(self, staged: Path, name: str) -> str:
        with destination_faults(self.root / name):
            _fsync(staged)
            folder = self._folder_of(name)
            os.rename(staged, self.root / name)
            _fsync(folder)
        return ""

    def version(self, name: str) -> str | None:
        return None  # a rename compares nothing

    def replace(self, staged: Path, name: str, over: str | None) -> bool:
        self.publish(staged, name)
        return True

    def discard(self, staged: Path) -> None:
        with suppress(OSError):
            staged.unlink()

    def read_bytes(self, name: str, limit: int) -> bytes | None:
        try:
            with (self.root / name).open("rb") as file:
                data = file.read(limit + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise os_fault(error, self.root / name) from error
        if len(data) > limit:
            raise IntegrityError(f"{name} is larger than {limit} bytes", code="RIVET_VALIDATE_FAILED")
        return data

    def open_input(self, name: str) -> BinaryIO:
        with destination_faults(self.root / name):
            return (self.root / name).open("rb")

    def size(self, name: str) -> int | None:
        try:
            return (self.root / name).stat().st_size
        except FileNotFoundError:
            return None
        except OSError as error:
            raise os_fault(error, self.root / name) from error

    def list(self) -> Iterator[StoredObject]:
        return self._walk(self.root)

    def list_quarantine(self) -> Iterator[StoredObject]:
        return self._walk(self.root / names.QUARANTINE)

    def staged(self, mine: names.NameMatcher) -> tuple[Staged, ...]:
        return tuple(Staged(item.name) for item in self.list() if mine.is_staged(item.name))

    def unstage(self, item: Staged) -> None:
        self.delete(item.name)

    def _walk(self, top: Path) -> Iterator[StoredObject]:
        if not top.is_dir():
            return
        with destination_faults(top):
            for folder, folders, files in os.walk(top):
                base = Path(folder)
                if base == self.root and names.QUARANTINE in folders:
                    folders.remove(names.QUARANTINE)
                folders.sort()
                for file in sorted(files):
                    path = base / file
                    with suppress(FileNotFoundError):
                        yield StoredObject(path.relative_to(self.root).as_posix(), path.stat().st_size)

    def move(self, name: str, target: str) -> None:
        with destination_faults(self.root / target):
            (self.root / target).parent.mkdir(parents=True, exist_ok=True)
            os.rename(self.root / name, self.root / target)
        self._drop_empty(name)

    def delete(self, name: str) -> None:
        path = self.root / name
        with destination_faults(path):
            path.unlink(missing_ok=True)
            if path.parent.is_dir():
                _fsync(path.parent)
        self._drop_empty(name)

    def _folder_of(self, name: str) -> Path:
        """The folder of ``name``, made durably if it is not there."""
        folder = (self.root / name).parent
        if folder != self.root and not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            above = folder.parent
            while above != self.root.parent:
                _fsync(above)
                above = above.parent
        return folder

    def _drop_empty(self, name: str) -> None:
        """Remove the folder below the root that ``name`` was the last object of."""
        folder = (self.root / name).parent
        if folder != self.root:
            with suppress(OSError):
                folder.rmdir()

    def path(self, name: str) -> Path:
        return self.root / name

    def uri(self, name: str = "") -> str:
        return (self.root / name).absolute().as_uri() if name else self.root.absolute().as_uri()

    def close(self) -> None:
        return
