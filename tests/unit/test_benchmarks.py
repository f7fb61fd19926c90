"""The benchmark's own parts: every tool that is named exists, and outputs are compared value by value."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.compare import LOSSES, compare
from benchmarks.load import TABLES
from benchmarks.probe import TOOLS_PROBED
from benchmarks.tools import CORE, MODES, TOOLS

ID = uuid.UUID(int=7)
OURS: dict[str, Any] = {
    "id": pa.array([1, 2], pa.int64()),
    "VARCHAR": pa.array(["a ", None]),
    "UUID": pa.array([ID.bytes, None], pa.uuid()),
    "JSON": pa.array(['{"a": 1}', None], pa.json_()),
}
#: As each tool that keeps less of a type writes the same rows.
THEIRS: dict[tuple[str, str], pa.Array] = {
    ("duckdb", "VARCHAR"): pa.array(["a", None]),
    ("adbc", "UUID"): pa.array([ID.bytes, None], pa.binary(16)),
    ("connectorx", "JSON"): pa.array(['{"a":1}', None]),
}


def written(folder: Path, columns: dict[str, Any]) -> Path:
    folder.mkdir()
    pq.write_table(pa.table(columns), folder / "part.parquet")
    return folder


def test_tools_that_are_named_exist() -> None:
    assert {*TOOLS_PROBED, *CORE, *MODES} <= TOOLS.keys()


@pytest.mark.parametrize(("tool", "kind"), sorted(LOSSES))
def test_what_a_tool_does_not_keep_is_no_difference_and_all_else_is(
    tmp_path: Path, tool: str, kind: str
) -> None:
    names = ("id", kind)
    ours = written(tmp_path / "ours", {name: OURS[name] for name in names})
    theirs = written(tmp_path / "theirs", {"id": OURS["id"], kind: THEIRS[tool, kind]})
    table = TABLES["wide"]
    found = compare(ours, theirs, table, tool)
    assert found.equal, str(found)
    assert found.notes == [LOSSES[tool, kind].why]
    lacking = pa.nulls(2, THEIRS[tool, kind].type)
    other = written(tmp_path / "other", {"id": OURS["id"], kind: lacking})
    assert compare(ours, other, table, tool).differences == {kind: 1}


def test_columns_that_we_add_are_not_the_tables(tmp_path: Path) -> None:
    ours = written(tmp_path / "ours", {"id": OURS["id"]})
    added = written(tmp_path / "added", {"id": OURS["id"], "_rivet_row_hash": OURS["id"]})
    more = written(tmp_path / "more", {"id": OURS["id"], "more": OURS["id"]})
    assert compare(ours, added, TABLES["wide"], "rivet_dagster everything on").equal
    assert not compare(ours, more, TABLES["wide"], "connectorx").equal
