"""A prefix of a bucket, copied to a folder for readers of files."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rivet_dagster.engine.destinations.bucket import Bucket, NoObjectError
from tests.services.fake_gcs import GcsServer
from tests.services.seaweed import BUCKET, S3Server

#: Names of this hold what a key may and a URL must escape.
AWKWARD = "a b+c%20=ü"


@dataclass(slots=True)
class Mirror:
    """keys: of the destination beside its place. client: reads past the store of a run."""

    server: S3Server | GcsServer
    client: Bucket
    prefix: str
    folder: Path
    keys: Mapping[str, Any] = field(default_factory=dict)
    _seen: dict[str, str] = field(default_factory=dict)

    def beside(self, number: int) -> Mirror:
        """Another prefix with a folder of its own."""
        folder = self.folder.with_name(f"{self.folder.name}-{number}")
        return Mirror(self.server, self.client, f"{self.prefix}-{number}", folder, self.keys)

    def destination(self, below: str) -> dict[str, Any]:
        where = f"{self.prefix}/{below}" if below else self.prefix
        return {**self.server.destination(BUCKET, where), **self.keys}

    def refreshed(self) -> Path:
        """The folder, made to hold what the prefix holds now."""
        found = {e.key: e.version for e in self.client.list(f"{self.prefix}/")}
        for key in self._seen.keys() - found.keys():
            self._path(key).unlink(missing_ok=True)
        for key, version in found.items():
            if self._seen.get(key) != version:
                path = self._path(key)
                path.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(NoObjectError):  # gone meanwhile
                    path.write_bytes(self.client.read(key, 0, 1 << 30))
        self._seen = found
        self.folder.mkdir(exist_ok=True)
        for folder in sorted((p for p in self.folder.rglob("*") if p.is_dir()), reverse=True):
            if not any(folder.iterdir()):
                shutil.rmtree(folder)
        return self.folder

    def lose(self, part: Path) -> None:
        """Remove the object behind a file of the folder."""
        self.client.delete(f"{self.prefix}/{part.relative_to(self.folder)}")

    def _path(self, key: str) -> Path:
        return self.folder / key.removeprefix(f"{self.prefix}/")
