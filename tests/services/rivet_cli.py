"""The reference tool as a program: it runs exports of its own and judges prefixes of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

PROGRAM: Final = Path(sys.executable).parent / "rivet"
DEPTHS: Final = ("light", "sample", "full")
_TIMEOUT_S: Final = 120


@dataclass(frozen=True, slots=True)
class Verdict:
    """What ``rivet validate`` said about one export. verification: its JSON."""

    export: str
    depth: str
    exit_code: int
    verification: Mapping[str, Any]

    @property
    def passed(self) -> bool:
        return self.exit_code == 0 and self.verification["passed"] is True

    @property
    def codes(self) -> list[str]:
        return [failure["code"] for failure in self.verification["failures"]]

    def __str__(self) -> str:
        seen = self.verification
        word = "passed" if self.passed else "FAILED"
        text = f"{self.export:<24} {self.depth:<7} {word:<7} {seen['parts_verified']:>3} parts"
        return " ".join([text, *self.codes])


def write_config(path: Path, url: str, exports: Iterable[Mapping[str, Any]]) -> Path:
    """A rivet.yaml that both tools read: PostgreSQL at ``url`` without TLS."""
    source = {"type": "postgres", "url": url, "tls": {"mode": "disable"}}
    path.write_text(yaml.safe_dump({"source": source, "exports": [dict(e) for e in exports]}))
    return path


def version() -> str:
    """The program's name and version, as it prints them."""
    done = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def run(config: Path) -> None:
    """``rivet run`` of every export. Raises CalledProcessError."""
    _rivet(config, "run", "-c", config.name).check_returncode()


def validate(config: Path, export: str, depth: str) -> Verdict:
    """``rivet validate`` of one export at one depth."""
    done = _rivet(config, "validate", "-c", config.name, "-e", export, "--depth", depth, "--format", "json")
    body = json.loads(done.stdout)
    return Verdict(export, depth, done.returncode, body["exports"][0]["verification"])


def _rivet(config: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("RIVET_")}
    return subprocess.run(
        [PROGRAM, *args],
        cwd=config.parent,
        env=env,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
