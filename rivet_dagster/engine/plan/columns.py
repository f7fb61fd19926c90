"""Names of columns that a config mentions, held against those that the source has."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from rivet_dagster.engine.errors import ConfigError


def require_column(
    names: Sequence[str],
    export: str | None,
    key: str,
    name: str,
    *,
    case_code: str = "RIVET_CONFIG_COLUMN_UNKNOWN",
) -> None:
    """Raise ConfigError unless ``names`` has the column, exactly as spelled.

    case_code: of a name that differs in case alone.
    """
    if name in names:
        return
    other_case = [n for n in names if n.lower() == name.lower()]
    near = other_case or difflib.get_close_matches(name, names, n=1)
    raise ConfigError(
        f"there is no column '{name}'",
        code=case_code if other_case else "RIVET_CONFIG_COLUMN_UNKNOWN",
        export=export,
        field=key,
        fix=f"did you mean '{near[0]}'?" if near else f"name one of: {', '.join(names[:20])}",
    )
