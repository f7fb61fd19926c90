"""Reads a manifest that anybody could have written: bounded, typed, never trusted.

Unknown keys are ignored (readers of version 1 must). A path may not leave the prefix, a number may
not be a text, and no key may stand twice, because two readers would then see two manifests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar

from rivet_dagster.engine.verify import checksum
from rivet_dagster.engine.verify.manifest import (
    COMMITTED,
    EXTENSION_KEY,
    MANIFEST_VERSION,
    MAX_MANIFEST_BYTES,
    QUARANTINED,
    Additions,
    Extraction,
    Manifest,
    ManifestError,
    PartRecord,
    SourceRecord,
    UnitRecord,
)

_T = TypeVar("_T")
_LARGEST: Final = (1 << 63) - 1
_STATUSES: Final = frozenset({"running", "success", "failed", "interrupted"})


def parse_manifest(data: bytes) -> Manifest:
    """The manifest in ``data``. Raises ManifestError; it never repeats a value from the file."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise ManifestError(f"manifest is larger than {MAX_MANIFEST_BYTES} bytes")
    try:
        body = json.loads(data.decode(), object_pairs_hook=_object)
        # what cannot be written again (a lone surrogate, an infinite number) could not be stored or printed
        json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise ManifestError(f"manifest is not readable JSON ({type(error).__name__})") from None
    root = _Node(body, "manifest")
    version = root.integer("manifest_version")
    if version != MANIFEST_VERSION:
        raise ManifestError(f"manifest_version {version} is not supported (expected {MANIFEST_VERSION})")
    return _manifest(root)


def _manifest(root: _Node) -> Manifest:
    destination = root.node("destination")
    status = root.text("status")
    if status not in _STATUSES:
        raise ManifestError("manifest.status is none of running, success, failed, interrupted")
    sums = root.optional_nodes("column_checksums")
    return Manifest(
        run_id=root.text("run_id"),
        export_name=root.text("export_name"),
        export_family=root.optional_text("export_family") or "",
        mode=root.optional_text("mode") or "batch",
        started_at=root.text("started_at"),
        finished_at=root.text("finished_at"),
        status=status,
        source=_source(root.node("source")),
        destination_kind=destination.text("kind"),
        destination_uri=destination.text("uri"),
        format=root.text("format"),
        compression=root.text("compression"),
        schema_fingerprint=root.text("schema_fingerprint"),
        row_count=root.integer("row_count"),
        part_count=root.integer("part_count"),
        parts=tuple(_part(item) for item in root.nodes("parts")),
        column_checksums=None if sums is None else _checksums(sums),
        checksum_render=root.optional_text("checksum_render"),
        checksum_key_column=root.optional_text("checksum_key_column"),
        row_hash=root.mapping("row_hash") or None,
        additions=_additions(root.node(EXTENSION_KEY)) if root.has(EXTENSION_KEY) else None,
    )


def _source(node: _Node) -> SourceRecord:
    detail = node.node("extraction")
    extraction = Extraction(
        strategy=detail.text("strategy"),
        cursor_column=detail.optional_text("cursor_column"),
        cursor_type=detail.optional_text("cursor_type"),
        cursor_low=detail.optional_text("cursor_low"),
        cursor_high=detail.optional_text("cursor_high"),
        source_row_count=detail.integer("source_row_count") if detail.has("source_row_count") else None,
    )
    return SourceRecord(
        node.text("engine"), node.optional_text("schema"), node.optional_text("table"), extraction
    )


def _part(node: _Node) -> PartRecord:
    status = node.text("status")
    if status not in {COMMITTED, QUARANTINED}:
        raise ManifestError(f"{node.where}.status is neither committed nor quarantined")
    return PartRecord(
        part_id=node.integer("part_id"),
        path=_inner_path(node.text("path"), node.where),
        rows=node.integer("rows"),
        size_bytes=node.integer("size_bytes"),
        content_fingerprint=node.text("content_fingerprint"),
        content_md5=node.optional_text("content_md5") or "",
        status=status,
    )


def _inner_path(path: str, where: str) -> str:
    """``path`` when it names a file below the prefix; a manifest must not point a reader elsewhere."""
    pure = PurePosixPath(path)
    inside = path and not pure.is_absolute() and ".." not in pure.parts and str(pure) == path
    if not inside or path == "." or "\\" in path or any(ord(c) < 32 for c in path):
        raise ManifestError(f"{where}.path does not name a file below the prefix")
    return path


def _additions(node: _Node) -> Additions:
    return Additions(
        units=tuple(_unit(item) for item in node.optional_nodes("units") or ()),
        consistency=node.optional_text("consistency") or "",
        supersedes=tuple(node.texts("supersedes")),
        policies=node.mapping("policies"),
        column_checksums=_checksums(node.optional_nodes("column_checksums") or []),
        column_origins=node.mapping("column_origins"),
        csv=node.mapping("csv"),
    )


def _unit(node: _Node) -> UnitRecord:
    return UnitRecord(
        index=node.integer("index"),
        partition=node.text("partition"),
        kind=node.text("kind"),
        start_key=node.optional_text("start_key"),
        end_key=node.optional_text("end_key"),
        parts=tuple(node.integers("parts")),
        rows=node.integer("rows"),
    )


def _checksums(items: list[_Node]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for node in items:
        name, text = node.text("name"), node.text("checksum")
        if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= checksum.MASK):
            raise ManifestError(f"{node.where}.checksum is no unsigned 64-bit number")
        if name in sums:
            raise ManifestError(f"{node.where}.name stands twice")
        sums[name] = int(text)
    return sums


class _Node:
    """A JSON object with typed access; ``where`` is its path of keys for messages."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise ManifestError(f"{where} is not an object")
        self._values: dict[str, Any] = value
        self.where = where

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def node(self, key: str) -> _Node:
        return _Node(self._values.get(key), f"{self.where}.{key}")

    def text(self, key: str) -> str:
        return self._typed(key, str, "a text")

    def optional_text(self, key: str) -> str | None:
        return self.text(key) if self.has(key) else None

    def integer(self, key: str) -> int:
        return _counted(self._typed(key, int, "a number"), f"{self.where}.{key}")

    def nodes(self, key: str) -> list[_Node]:
        items = self._typed(key, list, "a list")
        return [_Node(item, f"{self.where}.{key}[{i}]") for i, item in enumerate(items)]

    def optional_nodes(self, key: str) -> list[_Node] | None:
        return self.nodes(key) if self.has(key) else None

    def texts(self, key: str) -> list[str]:
        items = self._typed(key, list, "a list") if self.has(key) else []
        if not all(isinstance(item, str) for item in items):
            raise ManifestError(f"{self.where}.{key} is not a list of texts")
        return items

    def integers(self, key: str) -> list[int]:
        return [_counted(item, f"{self.where}.{key}") for item in self._typed(key, list, "a list")]

    def mapping(self, key: str) -> Mapping[str, Any]:
        return self.node(key)._values if self.has(key) else {}

    def _typed(self, key: str, kind: type[_T], name: str) -> _T:
        value = self._values.get(key)
        if not isinstance(value, kind):
            raise ManifestError(f"{self.where}.{key} is missing or not {name}")
        return value


def _counted(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise ManifestError(f"{where} is not a count")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


__all__ = ["parse_manifest"]
