"""Measurements of ours alone: cost against rows, and what the engine adds to reading and writing."""

from __future__ import annotations

from pathlib import Path


def linearity(work: Path, dsn: str, level: int, runs: int) -> int:
    raise SystemExit("later")


def shares(work: Path, dsn: str, level: int, runs: int) -> int:
    raise SystemExit("later")
