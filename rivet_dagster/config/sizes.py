"""Sizes and durations that people write: ``512MB``, ``1.5gb``, ``30m``."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(B|KB|MB|GB)?", re.IGNORECASE)
_UNITS: Final = {"": 1, "B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}
_DURATION = re.compile(r"([0-9]+)\s*([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_size(text: str) -> int:
    """Bytes of ``text`` (binary units, fractions allowed). Raises ValueError below one byte."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise ValueError("not a size")
    size = int(Fraction(found[1]) * _UNITS[(found[2] or "").upper()])
    if size < 1:
        raise ValueError("less than one byte")
    return size


def parse_duration(text: str) -> int:
    """Seconds of ``text``, e.g. ``1h``. Raises ValueError for anything else and for zero."""
    found = _DURATION.fullmatch(text.strip())
    if not found or int(found[1]) == 0:
        raise ValueError("not a duration")
    return int(found[1]) * _SECONDS[found[2]]
