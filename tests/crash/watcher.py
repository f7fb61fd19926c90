"""A reader that polls a prefix all the time, and believes what markers and manifests say."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import xxhash

from rivet_dagster.engine.destinations.bucket import Bucket, NoObjectError

_LIMIT = 1 << 24


@dataclass(slots=True)
class Watcher:
    """wrong: what no reader may see. finished: run ids of which a marker and its manifest were seen."""

    client: Bucket
    prefix: str
    looks: int = 0
    wrong: list[str] = field(default_factory=list)
    finished: set[str] = field(default_factory=set)

    def look(self) -> None:
        """Each verdict is about two things that did not change while a third was read between them."""
        self.looks += 1
        marker, manifest = self._read("_SUCCESS"), self._read("manifest.json")
        sizes = {e.key.removeprefix(f"{self.prefix}/"): e.size for e in self.client.list(f"{self.prefix}/")}
        if self._read("manifest.json") != manifest:
            return
        if manifest is not None:
            found = json.loads(manifest)
            for part in found["parts"]:
                if sizes.get(part["path"]) != part["size_bytes"]:
                    self.wrong.append(f"{found['run_id']} names {part['path']}, there: {sizes}")
        if marker is None or self._read("_SUCCESS") != marker:
            return
        if manifest is None:
            self.wrong.append("a marker without a manifest")
        elif marker.decode() != f"xxh3:{xxhash.xxh3_64_hexdigest(manifest)}\n":
            self.wrong.append("a marker over another manifest than its own")
        else:
            self.finished.add(found["run_id"])

    def _read(self, name: str) -> bytes | None:
        try:
            return self.client.read(f"{self.prefix}/{name}", 0, _LIMIT)
        except NoObjectError:
            return None


@contextlib.contextmanager
def watching(client: Bucket, prefix: str) -> Iterator[Watcher]:
    """Polls during the block; fails at its end when anything wrong was seen."""
    watcher, end = Watcher(client, prefix), threading.Event()

    def poll() -> None:
        while not end.wait(0.01):
            try:
                watcher.look()
            except Exception as error:  # noqa: BLE001 - reported below
                watcher.wrong.append(repr(error))
                return

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield watcher
    finally:
        end.set()
        thread.join()
    watcher.look()
    assert watcher.wrong == []
    assert watcher.looks > 5
