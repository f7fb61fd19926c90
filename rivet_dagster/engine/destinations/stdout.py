"""Standard output: rows go by once. Nothing of it can be read again, so there is no manifest for others."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from rivet_dagster.engine.destinations.base import DestinationCapabilities, Staged, StoredObject
from rivet_dagster.engine.destinations.local import destination_faults
from rivet_dagster.engine.destinations.staging import discard, staging_path
from rivet_dagster.engine.errors import EnvironmentFault, UsageError
from rivet_dagster.engine.names import NameMatcher

STDOUT: Final = DestinationCapabilities(
    kind="stdout",
    atomic_publish=False,
    idempotent_overwrite=False,
    retry_safe=False,
    partial_write_risk=True,
)

_BLOCK: Final = 1 << 20

#: Several exports of a process share it; a part goes out whole.
_OUT: Final = threading.Lock()


class StdoutStore:
    """CSV parts one after another, the header once. Sidecars are kept in memory until the run's end.

    A part is staged on local disk first, so a unit that fails has written nothing and may be tried again;
    what is lost half-way through a part is not.
    """

    capabilities = STDOUT

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._sidecars: dict[str, bytes] = {}

    def prepare(self) -> None:
        """A run begins, with a header of its own."""
        self._sizes.clear()
        self._sidecars.clear()

    def staging_path(self, name: str) -> Path:
        return staging_path(name)

    def publish(self, staged: Path, name: str) -> str:
        with destination_faults(staged), staged.open("rb") as file, _OUT:
            size = staged.stat().st_size
            if self._sizes:
                _skip_header(file)
            self._write(file)
            self._sizes[name] = size
        self.discard(staged)
        return ""

    def _write(self, file: BinaryIO) -> None:
        """Raises EnvironmentFault, which nobody tries again: some of the rows are out."""
        try:
            sys.stdout.flush()
            out = sys.stdout.buffer
            while block := file.read(_BLOCK):
                out.write(block)
            out.flush()
        except (OSError, ValueError) as error:
            raise EnvironmentFault(
                f"standard output was closed before all rows were out ({type(error).__name__})",
                code="RIVET_DEST_NOT_WRITABLE",
            ) from None

    def version(self, name: str) -> str | None:
        return None

    def replace(self, staged: Path, name: str, over: str | None) -> bool:
        self._sidecars[name] = staged.read_bytes()
        self.discard(staged)
        return True

    def discard(self, staged: Path) -> None:
        discard(staged)

    def read_bytes(self, name: str, limit: int) -> bytes | None:
        return self._sidecars.get(name)

    def open_input(self, name: str) -> BinaryIO:
        raise UsageError("what went to standard output cannot be read again", field="destination.type")

    def size(self, name: str) -> int | None:
        data = self._sidecars.get(name)
        return self._sizes.get(name) if data is None else len(data)

    def list(self) -> Iterator[StoredObject]:
        sidecars = {name: len(data) for name, data in self._sidecars.items()}
        return iter([StoredObject(*item) for item in {**self._sizes, **sidecars}.items()])

    def list_quarantine(self) -> Iterator[StoredObject]:
        return iter(())

    def staged(self, mine: NameMatcher) -> tuple[Staged, ...]:
        return ()

    def unstage(self, item: Staged) -> None:
        return

    def move(self, name: str, target: str) -> None:
        return

    def delete(self, name: str) -> None:
        self._sidecars.pop(name, None)

    def uri(self, name: str = "") -> str:
        return "stdout:"

    def close(self) -> None:
        return


def _skip_header(file: BinaryIO) -> None:
    """A name in quotes may hold line breaks."""
    quotes = 0
    while line := file.readline():
        quotes += line.count(b'"')
        if quotes % 2 == 0:
            return
