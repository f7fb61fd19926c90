"""What the demo cannot go on from."""

from __future__ import annotations


class DemoError(RuntimeError):
    """Something that a person has to look at; printed without a traceback."""
