"""Every way to cut a table, over one shape of table: what a test of all modes walks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tests.live.modes.kit import Project

ROWS: Final = 600
_COLUMNS: Final = (
    "n int NOT NULL, k int, a text NOT NULL, b int NOT NULL, d date, at timestamptz NOT NULL,"
    " touched timestamptz, word text, odd date"
)
#: NULLs and ties in k and d, ties in at; all of at lies in the last days, and none in the last hour.
#: Rows past the first ``ROWS`` are younger than those.
_ROW: Final = (
    "SELECT i, NULLIF(i % 30, 7), chr(97 + i % 3), i, NULLIF(date '2024-01-01' + i % 40, '2024-01-08'),"
    f" CASE WHEN i > {ROWS} THEN now() - interval '90 min' ELSE date_trunc('h', now()) - interval '2 h'"
    " - i % 3 * interval '1 d' END, CASE WHEN i % 2 = 0 THEN now() - interval '2 h' END,"
    " {word} FROM generate_series({first}, {last}) i"
)

#: Two rows that lie in one unit of every way.
NEIGHBOURS: Final = (60, 63)


@dataclass(frozen=True, slots=True)
class Way:
    """keys: of rivet.yaml. relation: what ``t`` is. splits: into several units, when the table is large."""

    keys: dict[str, Any]
    relation: str = "table"
    splits: bool = True

    @property
    def base(self) -> str:
        """The table that statements change."""
        return "base" if self.relation == "view" else "t"

    @property
    def resumes(self) -> bool:
        """Its units outlive a run, and each reads a snapshot of its own unless it is told otherwise."""
        folders = self.keys["mode"] == "full" and "partition_by" in self.keys
        return folders or self.keys["mode"] == "chunked"


_CHUNKED: Final = {"mode": "chunked", "chunk_size": 100}
_CURSOR: Final = {"mode": "incremental", "cursor_column": "at"}
_FOLDERS: Final = {"partition_by": "d", "partition_granularity": "month"}

MODES: Final[dict[str, Way]] = {
    "full": Way({"mode": "full"}),
    "full_view": Way({"mode": "full"}, "view", splits=False),
    "full_partitioned": Way({"mode": "full"}, "partitioned"),
    "full_inheritance": Way({"mode": "full"}, "inheritance"),
    "range": Way({**_CHUNKED, "chunk_column": "k", "chunk_size": 5}),
    "count": Way({"mode": "chunked", "chunk_column": "k", "chunk_count": 5}),
    "days": Way({"mode": "chunked", "chunk_column": "d", "chunk_by_days": 7}),
    "dense": Way({**_CHUNKED, "chunk_column": "k", "chunk_dense": True}),
    "memory": Way({"mode": "chunked", "chunk_column": "k", "chunk_size_memory_mb": 1}),
    "keyset": Way({**_CHUNKED, "chunk_by_key": "n"}),
    "keyset_composite": Way({**_CHUNKED, "chunk_by_key": ["a", "b"]}),
    "keyset_incremental": Way({**_CHUNKED, "chunk_by_key": "n", "keyset_incremental": True}),
    "incremental": Way(_CURSOR),
    "incremental_coalesce": Way(
        {
            "mode": "incremental",
            "cursor_column": "touched",
            "cursor_fallback_column": "at",
            "incremental_cursor_mode": "coalesce",
        }
    ),
    "incremental_settle": Way(
        {"mode": "incremental", "cursor_column": "n", "settle": {"after": "1h", "column": "at"}}
    ),
    "incremental_late_rows": Way({**_CURSOR, "late_rows": "5d"}),
    "time_window": Way({"mode": "time_window", "time_column": "at", "days_window": 6}),
    "query": Way({"mode": "chunked", "query": "SELECT * FROM t", "chunk_column": "k", "chunk_size": 5}),
    "query_file": Way({"mode": "full", "query_file": "rows.sql"}, splits=False),
    "partition_full": Way({"mode": "full", **_FOLDERS}),
    "partition_chunked": Way({**_CHUNKED, **_FOLDERS, "chunk_column": "n"}),
    "partition_incremental": Way({**_CURSOR, **_FOLDERS}),
}

_RELATIONS: Final[dict[str, tuple[str, ...]]] = {
    "table": (f"CREATE TABLE t ({_COLUMNS}, PRIMARY KEY (n), UNIQUE (a, b))", "CREATE INDEX ON t (at)"),
    "view": (
        f"CREATE TABLE base ({_COLUMNS})",
        "CREATE VIEW t WITH (security_invoker) AS SELECT * FROM base",
    ),
    "partitioned": (
        f"CREATE TABLE t ({_COLUMNS}) PARTITION BY RANGE (n)",
        f"CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (MINVALUE) TO ({ROWS // 2})",
        f"CREATE TABLE t2 PARTITION OF t FOR VALUES FROM ({ROWS // 2}) TO (MAXVALUE)",
    ),
    "inheritance": (
        f"CREATE TABLE t ({_COLUMNS})",
        "CREATE TABLE child (more int) INHERITS (t)",
    ),
}


def create(project: Project, way: Way) -> None:
    """``t`` without rows, and the query in a file beside the config."""
    (project.folder / "rows.sql").write_text("SELECT * FROM t")
    made = _RELATIONS[way.relation]
    if project.db.server.installation.version < 15:  # all views were their owner's
        made = tuple(statement.replace(" WITH (security_invoker)", "") for statement in made)
    project.db.execute(*made, "ANALYZE")


def fill(project: Project, way: Way) -> None:
    """``ROWS`` rows, numbered from 1."""
    insert(project, way, 1, ROWS // 2)
    if way.relation == "inheritance":
        insert(project, way, ROWS // 2 + 1, ROWS, into="child")
    else:
        insert(project, way, ROWS // 2 + 1, ROWS)


def insert(
    project: Project, way: Way, first: int, last: int, word: str = "'word ' || i", into: str | None = None
) -> None:
    """Rows ``first`` to ``last``; ``word``: SQL over their number ``i``."""
    into = into or way.base
    rows = _ROW.format(word=word, first=first, last=last)
    project.db.execute(f"INSERT INTO {into} (n, k, a, b, d, at, touched, word) {rows}", f"ANALYZE {into}")


def add_a_column(project: Project, way: Way) -> None:
    if way.relation == "view":
        project.db.execute("ALTER TABLE base ADD extra int", "CREATE OR REPLACE VIEW t AS SELECT * FROM base")
    else:
        project.db.execute("ALTER TABLE t ADD extra int")


def retype_a_column(project: Project, way: Way) -> None:
    if way.relation == "view":
        names = "n, k, a, b, d, at, touched, word::varchar AS word, odd"
        project.db.execute(
            "DROP VIEW t", f"CREATE VIEW t WITH (security_invoker) AS SELECT {names} FROM base"
        )
    else:
        project.db.execute("ALTER TABLE t ALTER word TYPE varchar")
