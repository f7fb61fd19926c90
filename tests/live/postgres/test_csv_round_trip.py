"""CSV parts go back into PostgreSQL with COPY, and the table is the one that they came from."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from rivet_dagster.engine.sources.postgres.quote import quote_literal
from tests.live.postgres.rig import Rig

TEXTS: Final = (
    "plain", "", None, "NULL", "\\N", "\\.", 'a"b', '"', "a,b", "a\nb", "a\r\nb", "\r", "\t", " lead",
    "trail ", "=cmd()", "é🚰\u2028", "\x01\x7f", "'", "#x", "--", ",", '""', "\\", "x" * 5000,
)  # fmt: skip
#: Columns of types whose CSV text PostgreSQL reads back.
COLUMNS: Final = (
    "id int, word text, flag bool, small int2, big int8, ratio float4, precise float8, amount numeric(12,2),"
    " fine numeric(20,9), loose numeric, day date, naive timestamp, made timestamptz, clock time, doc jsonb,"
    " uid uuid, numbers int[], words text[], took interval, net inet, bits bit(3), zoned timetz"
)
FILL: Final = """
INSERT INTO things SELECT g, NULL, g % 2 = 0, -g, g * 900000000000000000, g / 3.0,
  CASE g % 5 WHEN 0 THEN 'NaN' WHEN 1 THEN '-0' WHEN 2 THEN '-Infinity' WHEN 3 THEN 1e300 ELSE g / 7.0 END,
  -g * 1.01, g * 1e-9, CASE g WHEN 1 THEN 'NaN' ELSE 1e-30 * g END, date '1582-10-15' + g * 10000,
  timestamp '0001-01-01' + g * interval '99 d 1 us', timestamptz '1900-06-01+00' + g * interval '1 us',
  time '23:59:59.99999' + g * interval '1 us', jsonb_build_object('a"b', E'\\n,'), md5(g::text)::uuid,
  ARRAY[g, NULL], ARRAY['a,b', NULL, 'NULL', '', '"'], g * interval '1 mon -1 d 0.000001 s',
  '10.0.0.1/8', B'101', '23:59:59.999999+15:59'
FROM generate_series(1, 10) g"""


def everything(connection: psycopg.Connection[Any], table: str) -> list[tuple[Any, ...]]:
    return connection.execute(f"SELECT x::text FROM {table} x ORDER BY id".encode()).fetchall()


def test_copy_reads_what_was_written(rig: Rig) -> None:
    rig.db.execute(f"CREATE TABLE things ({COLUMNS})", FILL)
    with rig.db.connect() as connection:
        for number, text in enumerate(TEXTS, 100):
            connection.execute("INSERT INTO things (id, word) VALUES (%s, %s)", [number, text])
    rig.export(format="csv").run()
    with rig.db.connect() as connection:
        connection.execute("CREATE TABLE back (LIKE things)")
        for part in rig.parts():
            copy = "COPY back FROM STDIN (FORMAT csv, HEADER match)"
            with connection.cursor().copy(copy) as stream:
                stream.write(part.read_bytes())
        assert everything(connection, "back") == everything(connection, "things")


def test_the_manifest_says_how_to_read_it(rig: Rig) -> None:
    rig.db.execute("CREATE TABLE things (id int GENERATED ALWAYS AS IDENTITY, word text, n int)")
    values = ", ".join(f"({'NULL' if t is None else quote_literal(t)})" for t in TEXTS)
    rig.db.execute(f"INSERT INTO things (word) VALUES {values}")
    rig.export(format="csv").run()
    added = rig.manifest()["rivet_dagster"]
    dialect = added["csv"]
    options = ", ".join(
        f"{key} {quote_literal(dialect[key])}" for key in ("delimiter", "quote", "escape", "null")
    )
    (part,) = rig.parts()
    text = part.read_text(dialect["encoding"])
    assert dialect["header"]
    assert text.startswith(f"id,word,n{dialect['line_end']}")
    with rig.db.connect() as connection:
        connection.execute("CREATE TABLE back (LIKE things)")
        copy = f"COPY back FROM STDIN (FORMAT csv, HEADER match, ENCODING 'utf8', {options})"
        with connection.cursor().copy(copy.encode()) as stream:
            stream.write(part.read_bytes())
        assert everything(connection, "back") == everything(connection, "things")
    assert added["column_origins"] == {"id": "identity always"}
    rig.export(format="parquet").run()
    assert "csv" not in rig.manifest()["rivet_dagster"]


def test_one_column_of_texts(rig: Rig) -> None:
    """Where a field is a whole line, NULL is an empty one and ``\\.`` does not end the data."""
    rig.db.execute("CREATE TABLE things (word text)")
    values = ", ".join(f"({'NULL' if t is None else quote_literal(t)})" for t in TEXTS)
    rig.db.execute(f"INSERT INTO things VALUES {values}")
    rig.export(format="csv").run()
    with rig.db.connect() as connection:
        connection.execute("CREATE TABLE back (LIKE things)")
        with connection.cursor().copy("COPY back FROM STDIN (FORMAT csv, HEADER match)") as stream:
            stream.write(rig.parts()[0].read_bytes())
        found = [sorted(connection.execute(f"TABLE {t}".encode()), key=repr) for t in ("back", "things")]
    assert found[0] == found[1]
