"""What a destination can do, and the interface that every store has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from msgspec import Struct

from rivet_dagster.engine.errors import TransientError
from rivet_dagster.engine.names import NameMatcher


class DestinationCapabilities(Struct, frozen=True):
    """ADR-0004's write contract as data.

    conditional_writes: the store itself refuses to replace an object that is not the one expected; so
    what a stalled writer sends late never wins. Without it, a writer is fenced by what it has staged.
    """

    kind: str
    atomic_publish: bool  # a reader sees the whole object or none
    idempotent_overwrite: bool
    retry_safe: bool
    partial_write_risk: bool
    conditional_writes: bool = False


class StoredObject(Struct, frozen=True):
    name: str  # relative to the prefix, '/' as separator
    size: int  # bytes
    md5: str = ""  # base64 of the bytes' MD5 as the store took it, "" where a listing does not tell


class Staged(Struct, frozen=True):
    """Something that an unfinished write has left at the destination, invisible to readers."""

    name: str
    upload: str = ""  # the store's id of it


class ConflictError(TransientError):
    """Somebody else has written the object meanwhile; nothing was changed."""

    default_code = "RIVET_DEST_CONFLICT"


class Store(Protocol):
    """One export's prefix. Names are relative to it. Failures are of the engine's error tree."""

    capabilities: DestinationCapabilities

    def prepare(self) -> None:
        """Make the prefix usable; raises EnvironmentFault when it cannot be written."""
        ...

    def staging_path(self, name: str) -> Path:
        """A local path, invisible to readers, where the part ``name`` is written first."""
        ...

    def publish(self, staged: Path, name: str) -> str:
        """Make the staged file visible as ``name``, a new object, durably, whole or not at all.

        Returns the base64 of its MD5 when the store took one that it shows in listings, else "".
        """
        ...

    def version(self, name: str) -> str | None:
        """What ``replace`` compares; None when there is no such object."""
        ...

    def replace(self, staged: Path, name: str, over: str | None) -> bool:
        """Make the staged file ``name``, atomically and durably (M7), over that version of it (None: none).

        False: the same bytes were there already, of another writer as far as the store can tell.
        Raises ConflictError when another version is there, where the store can tell.
        """
        ...

    def discard(self, staged: Path) -> None: ...

    def read_bytes(self, name: str, limit: int) -> bytes | None:
        """The object's bytes, None when absent; more than ``limit`` bytes is an IntegrityError."""
        ...

    def open_input(self, name: str) -> BinaryIO: ...

    def size(self, name: str) -> int | None:
        """Size in bytes, None when absent."""
        ...

    def list(self) -> Iterator[StoredObject]:
        """Objects directly or deeper under the prefix, quarantine excluded."""
        ...

    def list_quarantine(self) -> Iterator[StoredObject]:
        """Objects under ``_quarantine``, named like those of ``list``."""
        ...

    def staged(self, mine: NameMatcher) -> tuple[Staged, ...]:
        """What unfinished writes of ``mine`` left, and could still make visible."""
        ...

    def unstage(self, item: Staged) -> None:
        """Remove it; absent is fine."""
        ...

    def move(self, name: str, target: str) -> None: ...

    def delete(self, name: str) -> None:
        """Remove ``name``; absent is fine."""
        ...

    def uri(self, name: str = "") -> str: ...

    def close(self) -> None:
        """Let go of connections."""
        ...
