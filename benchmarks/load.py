"""Build the benchmark tables: three of fixed content and a narrow one of any length.

The values come from ``random()`` after ``setseed``, so two servers of the same version hold
the same rows. ``python -m benchmarks.load DSN [--rows-narrow N]`` builds what is missing.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import psycopg
from psycopg import sql

SEED = 0.42

NARROW_COLUMNS = """
  id bigint not null, k int not null, amount numeric(12,2), ts timestamptz not null,
  flag boolean, name text
"""
NARROW_ROWS = """
select g, (random() * 1000000)::int,
  case when g % 50 = 0 then null else round((random() * 100000)::numeric, 2) end,
  timestamptz '2020-01-01 00:00:00+00' + g * interval '13 seconds' + random() * interval '1 second',
  g % 3 = 0, 'name_' || (g % 100000)::text
from generate_series(1, {rows}) g
"""

WIDE_COLUMNS = """
  id bigint not null, account_id int not null, status smallint, price numeric(18,4), qty integer,
  ratio double precision, score real, is_active boolean, uid uuid, title varchar(200), body text,
  payload jsonb, born date, created_at timestamp, updated_at timestamptz, note text
"""
WIDE_ROWS = """
select g, (random() * 100000)::int, (g % 7)::smallint, round((random() * 1e9)::numeric, 4),
  (random() * 1000)::int, random(), random()::real, g % 2 = 0, md5('uid' || g::text)::uuid,
  'Title ' || md5(g::text),
  md5(g::text) || ' ' || md5((g + 1)::text) || ' ' || md5((g + 2)::text) || ' lorem ipsum dolor',
  jsonb_build_object(
    'user', g, 'tags', jsonb_build_array('a', 'b', (g % 10)::text),
    'amount', round((random() * 1000)::numeric, 2),
    'nested', jsonb_build_object('x', g % 100, 'y', md5((g % 1000)::text))),
  date '1960-01-01' + (g % 20000)::int,
  timestamp '2019-01-01' + g * interval '17 seconds' + random() * interval '1 second',
  timestamptz '2019-01-01 00:00:00+00' + g * interval '17 seconds' + random() * interval '1 second',
  case when g % 10 = 0 then null else 'note ' || (g % 1000) end
from generate_series(1, {rows}) g
"""

LINEITEM_COLUMNS = """
  l_orderkey bigint not null, l_partkey bigint not null, l_suppkey bigint not null,
  l_linenumber int not null, l_quantity numeric(15,2) not null,
  l_extendedprice numeric(15,2) not null, l_discount numeric(15,2) not null,
  l_tax numeric(15,2) not null, l_returnflag char(1) not null, l_linestatus char(1) not null,
  l_shipdate date not null, l_commitdate date not null, l_receiptdate date not null,
  l_shipinstruct char(25) not null, l_shipmode char(10) not null, l_comment varchar(44) not null
"""
LINEITEM_ROWS = """
select (g / 4)::bigint + 1, (random() * 200000)::bigint + 1, (random() * 10000)::bigint + 1,
  (g % 4) + 1, 1 + (random() * 49)::int, round((900 + random() * 104000)::numeric, 2),
  round((random() * 0.10)::numeric, 2), round((random() * 0.08)::numeric, 2),
  (array['A', 'N', 'R'])[1 + (random() * 2)::int], (array['O', 'F'])[1 + random()::int],
  date '1992-01-01' + (random() * 2500)::int, date '1992-01-01' + (random() * 2500)::int,
  date '1992-01-01' + (random() * 2500)::int,
  (array['DELIVER IN PERSON', 'COLLECT COD', 'NONE', 'TAKE BACK RETURN'])[1 + (random() * 3)::int],
  (array['AIR', 'FOB', 'MAIL', 'RAIL', 'REG AIR', 'SHIP', 'TRUCK'])[1 + (random() * 6)::int],
  substr('carefully final deposits ' || md5(g::text) || ' sleep quickly', 1 + (g % 20), 20 + (g % 24))
from generate_series(0, {rows} - 1) g
"""


@dataclass(frozen=True)
class Table:
    """One benchmark table: its name in ``public``, its shape, and how many rows it holds."""

    name: str
    columns: str
    rows_sql: str
    rows: int
    key: str
    primary_key: str

    @property
    def key_column(self) -> str:
        """The integer column that range splits use."""
        return self.key


def narrow(rows: int, name: str | None = None) -> Table:
    """A narrow table of ``rows`` rows; the row at position *n* is the same for every length."""
    return Table(name or f"bench_narrow_{rows}", NARROW_COLUMNS, NARROW_ROWS, rows, "id", "id")


TABLES: dict[str, Table] = {
    "narrow": narrow(5_000_000, "bench_narrow"),
    "wide": Table("bench_wide", WIDE_COLUMNS, WIDE_ROWS, 1_000_000, "id", "id"),
    "lineitem": Table(
        "bench_lineitem", LINEITEM_COLUMNS, LINEITEM_ROWS, 2_000_000, "l_orderkey", "l_orderkey, l_linenumber"
    ),
}


def exists(conn: psycopg.Connection[tuple[object, ...]], table: Table) -> bool:
    """Whether the table is there, whole and analyzed."""
    row = conn.execute(
        "select reltuples from pg_class where oid = to_regclass(%s)", (f"public.{table.name}",)
    ).fetchone()
    return row is not None and isinstance(row[0], float) and abs(row[0] - table.rows) <= table.rows * 0.01


def build(conn: psycopg.Connection[tuple[object, ...]], table: Table) -> None:
    """Create and fill the table, then freeze and analyze it so that no later read pays for it."""
    name = sql.Identifier("public", table.name)
    conn.execute(sql.SQL("drop table if exists {}").format(name))
    conn.execute(sql.SQL("create table {} ({})").format(name, sql.SQL(table.columns)))
    conn.execute("select setseed(%s)", (SEED,))
    rows = table.rows_sql.format(rows=table.rows)
    conn.execute(sql.SQL("insert into {} {}").format(name, sql.SQL(rows)))
    conn.execute(sql.SQL("alter table {} add primary key ({})").format(name, sql.SQL(table.primary_key)))
    conn.execute(sql.SQL("vacuum (analyze, freeze) {}").format(name))
    conn.execute("checkpoint")


def ensure(dsn: str, tables: list[Table]) -> None:
    """Build each table that the server does not hold yet."""
    with psycopg.connect(dsn, autocommit=True, application_name="bench-load") as conn:
        conn.execute("set time zone 'UTC'")
        for table in tables:
            if exists(conn, table):
                continue
            began = time.monotonic()
            build(conn, table)
            print(f"built {table.name}: {table.rows:,} rows in {time.monotonic() - began:.1f} s", flush=True)


def main() -> None:
    """Command line: the three fixed tables, or narrow tables of the given lengths."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dsn")
    parser.add_argument("--rows-narrow", type=int, nargs="*", help="narrow tables of these lengths instead")
    args = parser.parse_args()
    ensure(args.dsn, [narrow(n) for n in args.rows_narrow] if args.rows_narrow else list(TABLES.values()))


if __name__ == "__main__":
    main()
