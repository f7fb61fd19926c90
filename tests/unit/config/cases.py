"""Configs as text, and the one way the tests read them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from rivet_dagster.config import RivetConfig, parse_config
from rivet_dagster.engine.errors import ConfigError

FILE = Path("/etc/rivet/rivet.yaml")
SOURCE = "type: postgres, url_env: SHOP_URL"
#: The line on which the first key of ``export`` stands in ``config``.
FIRST = 7


def config(
    export: str = "", *, source: str = SOURCE, form: str = "table: t", fmt: str = "parquet", tail: str = ""
) -> str:
    """A config with the export ``o``; the lines of ``export`` start at line 7. ``tail``: root keys."""
    head = (
        f"source: {{{source}}}\n"
        "exports:\n"
        "  - name: o\n"
        f"    {form}\n"
        f"    format: {fmt}\n"
        "    destination: {type: local, path: ./out}\n"
    )
    if "destination:" in export:
        head = head.replace(
            "    destination: {type: local, path: ./out}\n", "    # the destination is below\n"
        )
    body = textwrap.dedent(export).strip("\n")
    return head + (textwrap.indent(body, "    ") + "\n" if body else "") + textwrap.dedent(tail)


def load(text: str, params: Mapping[str, str] | None = None, path: Path = FILE) -> RivetConfig:
    return parse_config(text, path, params)


def refused(text: str, params: Mapping[str, str] | None = None, path: Path = FILE) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, path, params)
    return caught.value
