"""What a destination can do, and the interface that every store has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol


@dataclass(frozen=True, slots=True)
class DestinationCapabilities:
    """ADR-0004's write contract as data."""

    kind: str
    atomic_publish: bool  # a reader sees the whole object or none
    idempotent_overwrite: bool
    retry_safe: bool
    partial_write_risk: bool


@dataclass(frozen=True, slots=True)
class StoredObject:
    name: str  # relative to the prefix, '/' as separator
    size: int  # bytes


class Store(Protocol):
    """One export's prefix. Names are relative to it. Failures are of the engine's error tree."""

    capabilities: DestinationCapabilities

    def prepare(self) -> None:
        """Make the prefix usable; raises EnvironmentFault when it cannot be written."""
        ...

    def staging_path(self, name: str) -> Path:
        """A local path, invisible to readers, where the part ``name`` is written first."""
        ...

    def publish(self, staged: Path, name: str) -> None:
        """Make the staged file visible as ``name``, durably, whole or not at all."""
        ...

    def discard(self, staged: Path) -> None: ...

    def put_bytes(self, name: str, data: bytes) -> None:
        """Replace ``name`` atomically and durably (M7)."""
        ...

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

    def move(self, name: str, target: str) -> None: ...

    def delete(self, name: str) -> None:
        """Remove ``name``; absent is fine."""
        ...

    def uri(self, name: str = "") -> str: ...
