"""Do two folders of Parquet hold the same rows? Joined on the key, column by column, by DuckDB."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from benchmarks.load import Table


@dataclass(frozen=True)
class Loss:
    """What a tool does not keep of a type: both sides' columns in the form that is compared, and why."""

    ours: str
    theirs: str
    why: str


#: by (beginning of the tool's name, type in our file)
LOSSES: dict[tuple[str, str], Loss] = {
    ("duckdb", "VARCHAR"): Loss("rtrim({})", "rtrim({})", "text compared without trailing blanks: char(n)"),
    ("adbc", "UUID"): Loss("replace({}::varchar, '-', '')", "lower(hex({}))", "uuid is 16 bytes there"),
    ("connectorx", "JSON"): Loss("({} is null)", "({} is null)", "json is written anew there: only NULLs"),
}


@dataclass
class Comparison:
    """``differences`` counts rows by column; empty and ``rows_equal`` means the same table."""

    ours: int
    theirs: int
    matched: int
    differences: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        return self.ours == self.theirs == self.matched and not self.differences

    def __str__(self) -> str:
        text = (
            f"equal, {self.ours:,} rows" if self.equal else f"DIFFERENT: {self.ours:,} / {self.theirs:,} rows"
        )
        if self.matched != self.ours and not self.equal:
            text += f", {self.matched:,} by key"
        text += "".join(f"; {name}: {count:,} rows" for name, count in self.differences.items())
        return text + "".join(f" ({note})" for note in self.notes)


def files(folder: Path) -> list[str]:
    """The Parquet parts of one output folder, nothing that was put aside."""
    return sorted(str(path) for path in folder.glob("**/*.parquet") if "_quarantine" not in path.parts)


def compare(ours: Path, theirs: Path, table: Table, tool: str) -> Comparison:
    """Compare every value of every column; types may differ where the values are the same."""
    with duckdb.connect(config={"threads": 2, "memory_limit": "4GB"}) as db:
        db.execute("set timezone = 'UTC'")
        kinds = _view(db, "a", ours)
        added = ("_rivet_exported_at", "_rivet_row_hash")  # by ours, beside what the table has
        if list(kinds) != [name for name in _view(db, "b", theirs) if name not in added]:
            return Comparison(_count(db, "a"), _count(db, "b"), 0, {"(columns)": 1})
        keys = [name.strip() for name in table.primary_key.split(",")]
        matched = _one(db, f"select count(*) from a join b using ({', '.join(keys)})")
        result = Comparison(_count(db, "a"), _count(db, "b"), matched)
        known = {kind: loss for (name, kind), loss in LOSSES.items() if tool.startswith(name)}
        tests = ", ".join(_differs(name, kind, known.get(kind)) for name, kind in kinds.items())
        joined = " and ".join(f"a.{key} = b.{key}" for key in keys)
        row = db.execute(f"select {tests} from a join b on {joined}").fetchone()
        assert row is not None
        result.differences = {name: int(n) for name, n in zip(kinds, row, strict=True) if n}
        result.notes = [loss.why for kind, loss in known.items() if kind in kinds.values()]
        return result


def _view(db: duckdb.DuckDBPyConnection, name: str, folder: Path) -> dict[str, str]:
    paths = ", ".join(f"'{path}'" for path in files(folder))
    db.execute(f"create view {name} as select * from read_parquet([{paths}])")
    return {str(row[0]): str(row[1]) for row in db.execute(f"describe {name}").fetchall()}


def _count(db: duckdb.DuckDBPyConnection, name: str) -> int:
    return _one(db, f"select count(*) from {name}")


def _one(db: duckdb.DuckDBPyConnection, query: str) -> int:
    row = db.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def _differs(column: str, kind: str, loss: Loss | None) -> str:
    """Rows where the column differs, in the form of our file's type; uuid and json as text."""
    shown = "{}::varchar" if kind in {"VARCHAR", "JSON", "UUID"} else f"{{}}::{kind}"
    ours, theirs = (shown, shown) if loss is None else (loss.ours, loss.theirs)
    left, right = ours.format(f'a."{column}"'), theirs.format(f'b."{column}"')
    return f"count(*) filter (where ({left}) is distinct from ({right}))"
