"""What only a query can return: rows and arrays without a type of their own."""

from __future__ import annotations

import duckdb
import pyarrow.parquet as pq

from tests.live.modes.kit import Project

QUERY = """
SELECT n, r, a FROM (VALUES (1, ROW(1, 'a "b", c', NULL::int)), (2, ROW(NULL, '', 3)), (3, NULL)) x(n, r)
LEFT JOIN (SELECT row_number() OVER (ORDER BY attname) AS n, most_common_vals AS a FROM pg_stats
           WHERE tablename = 't') s USING (n)"""


def test_a_query_of_pseudo_types(project: Project) -> None:
    project.db.execute(
        "CREATE TABLE t (a int, b text)",
        "INSERT INTO t SELECT g % 3, 'x,\"' || g % 2 FROM generate_series(1, 500) g",
        "ANALYZE t",
    )
    with project.db.connect() as connection:
        text = f"SELECT n, format('%s', r), format('%s', a), r IS NULL, a IS NULL FROM ({QUERY}) q ORDER BY n"
        found = connection.execute(text.encode()).fetchall()
    want = [(n, None if n == 3 else r, None if no_a else a) for n, r, a, _, no_a in found]
    assert [a is None for *_, a in want] == [False, False, True]
    project.run(query=QUERY)
    (part,) = project.prefix.glob("*.parquet")
    rows = pq.ParquetFile(part).read().to_pydict()
    assert sorted(zip(rows["n"], rows["r"], rows["a"], strict=True)) == want
    with duckdb.connect() as duck:
        assert duck.execute("SELECT n, r, a FROM read_parquet(?) ORDER BY n", [str(part)]).fetchall() == want
    assert project.reconcile() == "match"
    project.run(format="csv")
    (part,) = project.prefix.glob("*.csv")
    with duckdb.connect() as duck:
        query = (
            "SELECT n, r, a FROM read_csv(?, header=true, nullstr='', allow_quoted_nulls=false) ORDER BY n"
        )
        assert duck.execute(query, [str(part)]).fetchall() == want
    assert project.reconcile() == "match"
