"""Names: run ids, part files, path tokens. One place, because a name is a promise to a reader."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime

from msgspec import Struct

MANIFEST = "manifest.json"
SUCCESS = "_SUCCESS"
QUARANTINE = "_quarantine"

#: What Hive calls the folder of the rows without a value.
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
#: ... and how a person and Dagster name the partition.
NULL_KEY = "null"
_HIVE_FOLDER = rf"[^/=]+=(?:\d{{4}}(?:-\d{{2}}){{0,2}}|{HIVE_NULL})"

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_RUN_TAIL = r"_\d{8}T\d{6}\.\d{3}_[0-9a-f]{6}"


def sanitize(name: str) -> str:
    """``name`` with everything outside ``[A-Za-z0-9._-]`` replaced by ``-``."""
    return _UNSAFE.sub("-", name)


def new_run_id(export: str, now: datetime | None = None) -> str:
    """``<export>_YYYYMMDDTHHMMSS.mmm_<6 hex>``: unique also for two runs in one millisecond."""
    at = (now or datetime.now(UTC)).astimezone(UTC)
    return f"{export}_{at:%Y%m%dT%H%M%S}.{at.microsecond // 1000:03d}_{secrets.token_hex(3)}"


def manifest_copy(run_id: str) -> str:
    return f"manifest-{sanitize(run_id)}.json"


def is_manifest_copy(name: str) -> bool:
    return name.startswith("manifest-") and name.endswith(".json") and "/" not in name


def is_sidecar(name: str) -> bool:
    """Whether a run writes a file of this name beside its parts."""
    return (
        name in {MANIFEST, SUCCESS}
        or is_manifest_copy(name)
        or name.startswith((f"{QUARANTINE}/", ".rivet_doctor_probe", ".rivet_probe"))
    )


def part_name(run_id: str, unit: int, attempt: int, part: int, extension: str) -> str:
    """Holds run, unit, attempt and part, so no other attempt ever writes the same name."""
    return f"{sanitize(run_id)}-u{unit:05d}-a{attempt}-p{part:03d}.{extension}"


class OwnedName(Struct, frozen=True):
    """A file name that this export's runs could have written."""

    name: str
    run_id: str
    temporary: bool


class NameMatcher:
    """Tells which files of a folder belong to one export; everything else is somebody else's."""

    def __init__(self, export: str) -> None:
        run = re.escape(sanitize(export)) + _RUN_TAIL
        part = rf"(?P<run>{run})-u\d{{5,}}-a\d+-p\d{{3,}}\.(?:parquet|csv)"
        self._part = re.compile(rf"^(?:{_HIVE_FOLDER}/)?{part}\Z")
        self._temp = re.compile(rf"^\.{part}\.[0-9a-f]+\.tmp\Z")
        single = rf"{re.escape(MANIFEST)}|manifest-{run}\.json|{SUCCESS}|rivet_probe"
        sidecar = rf"{re.escape(MANIFEST)}|manifest-{run}\.json|{SUCCESS}"
        self._sidecar = re.compile(rf"^{_HIVE_FOLDER}/(?:{sidecar})\Z")
        self._staged = re.compile(rf"^\.(?:{single})\.[0-9a-f]+\.tmp\Z")

    def match(self, name: str) -> OwnedName | None:
        if found := self._part.match(name):
            return OwnedName(name, found["run"], temporary=False)
        if found := self._temp.match(name):
            return OwnedName(name, found["run"], temporary=True)
        return None

    def is_folder_sidecar(self, name: str) -> bool:
        """A manifest or marker of this export in the folder of a partition."""
        return self._sidecar.match(name) is not None

    def is_staged(self, name: str) -> bool:
        """A file that a run of this export had staged, or the probe of its prefix: never seen by readers."""
        return self._temp.match(name) is not None or self._staged.match(name) is not None


def hive_folder(column: str, value: str | None) -> str:
    """``column=value``, the folder of the rows of a partition; None: of those without a value."""
    return f"{column}={HIVE_NULL if value is None else value}"


def expand_path(template: str, *, export: str, now: datetime | None = None) -> str:
    """Expand ``{date}`` (UTC), ``{export}`` and ``{table}``, once, for the whole run."""
    day = (now or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%d")
    return template.replace("{date}", day).replace("{export}", export).replace("{table}", export)
