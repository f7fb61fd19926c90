"""The catalog's statements. Each returns one row of one text column: a JSON object."""

from __future__ import annotations

from typing import Final, LiteralString

SERVER: Final[LiteralString] = """
SELECT json_build_object(
  'version', current_setting('server_version_num')::int,
  'in_recovery', pg_is_in_recovery(),
  'encoding', current_setting('server_encoding'),
  'database', current_database(),
  'user', current_user,
  'block_size', current_setting('block_size')::int,
  'control_readable', has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE'))::text
"""

IDENTIFIER: Final[LiteralString] = """
SELECT json_build_object('system_identifier', system_identifier::text)::text FROM pg_control_system()
"""

# Types named by the CTE `wanted(oid)`, with what domains and true arrays among them stand on.
# A true array is the one that its element type names: int2vector is not.
_TYPE_CLOSURE: Final[LiteralString] = """
type_closure(oid) AS (
  SELECT oid FROM wanted
  UNION
  SELECT v.oid FROM type_closure c
  JOIN pg_type t ON t.oid = c.oid
  LEFT JOIN pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
  CROSS JOIN LATERAL (VALUES (NULLIF(t.typbasetype, 0)), (e.oid)) AS v(oid)
  WHERE v.oid IS NOT NULL
), types AS (
  SELECT coalesce(json_agg(json_build_object(
    'oid', t.oid::int8, 'name', t.typname, 'schema', n.nspname, 'kind', t.typtype,
    'base', NULLIF(t.typbasetype, 0)::int8, 'typmod', t.typtypmod, 'ndims', t.typndims,
    'elem', (SELECT e.oid::int8 FROM pg_type e WHERE e.oid = t.typelem AND e.typarray = t.oid),
    'extension', (SELECT x.extname FROM pg_depend d JOIN pg_extension x ON x.oid = d.refobjid
                  WHERE d.classid = 'pg_catalog.pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'
                    AND d.refclassid = 'pg_catalog.pg_extension'::regclass LIMIT 1))), '[]') AS list
  FROM type_closure c JOIN pg_type t ON t.oid = c.oid JOIN pg_namespace n ON n.oid = t.typnamespace
)"""

TYPES_OF: Final[LiteralString] = (
    "WITH RECURSIVE asked AS (SELECT * FROM unnest(%(oids)s::oid[], %(mods)s::int4[])"
    " WITH ORDINALITY AS u(oid, typmod, place)), wanted AS (SELECT oid FROM asked),"
    + _TYPE_CLOSURE
    + """
SELECT json_build_object('types', list,
  'native', (SELECT json_agg(format_type(oid, typmod) ORDER BY place) FROM asked))::text FROM types
"""
)

# A relation is found by its exact name: to_regclass alone would cut a long one to 63 bytes.
# A partition that is being detached no longer belongs to its parent.
# NOT NULL is believed where the server keeps it: not on foreign tables, not when only a plain parent has
# it and not its children, and not in PostgreSQL 18 when its constraint was never validated.
RELATION: Final[LiteralString] = (
    """
WITH RECURSIVE target AS MATERIALIZED (
  SELECT c.oid, c.relname, n.nspname, c.relnamespace, c.relkind, c.relispartition, c.relrowsecurity,
         c.relforcerowsecurity, c.relowner
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relname = %(table)s::text AND c.oid = CASE WHEN %(schema)s::text IS NULL
      THEN to_regclass(quote_ident(%(table)s::text))::oid
      ELSE (SELECT k.oid FROM pg_class k JOIN pg_namespace m ON m.oid = k.relnamespace
            WHERE k.relname = %(table)s::text AND m.nspname = %(schema)s::text) END
), tree(oid) AS (
  SELECT oid FROM target
  UNION
  SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid
  WHERE NOT coalesce((to_jsonb(i) ->> 'inhdetachpending')::boolean, false)
), sized AS MATERIALIZED (
  SELECT c.oid, c.relname, n.nspname, c.relkind, c.reltuples, c.relpages, a.amname,
    CASE WHEN c.relkind IN ('r', 'm') THEN
      coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::int ELSE 0 END AS pages,
    CASE WHEN c.relkind IN ('r', 'm') THEN coalesce(pg_table_size(c.oid), 0) ELSE 0 END AS bytes,
    has_schema_privilege(n.oid, 'USAGE') AND NOT row_security_active(c.oid)
      AND (has_table_privilege(c.oid, 'SELECT') OR NOT EXISTS (
        SELECT FROM pg_attribute p WHERE p.attrelid = c.oid AND p.attnum > 0 AND NOT p.attisdropped
          AND NOT has_column_privilege(c.oid, p.attnum, 'SELECT'))) AS readable
  FROM tree JOIN pg_class c ON c.oid = tree.oid JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_am a ON a.oid = c.relam
  WHERE c.relkind <> 'p'
), row_width AS (
  -- a row's header and line pointer, fixed widths, and 32 bytes for what varies, as the server guesses
  SELECT 28 + coalesce(sum(CASE WHEN a.attlen > 0 THEN a.attlen ELSE 32 END), 0) AS bytes
  FROM pg_attribute a WHERE a.attrelid = (SELECT oid FROM target) AND a.attnum > 0 AND NOT a.attisdropped
), leaves AS (
  SELECT sized.*, CASE WHEN relkind IN ('r', 'm') AND pages = 0 THEN 0
                 WHEN reltuples <= 0 THEN NULLIF(pages, 0) * current_setting('block_size')::float8 / w.bytes
                 WHEN relpages > 0 AND pages > 0 THEN reltuples::float8 * pages / relpages
                 ELSE reltuples END AS tuples,
    reltuples > 0 OR (relkind IN ('r', 'm') AND pages = 0) AS analysed
  FROM sized, row_width w
), sampled AS (
  SELECT nspname, relname, true AS own FROM target
  UNION ALL
  (SELECT l.nspname, l.relname, false FROM leaves l, target t WHERE l.oid <> t.oid
   ORDER BY l.pages DESC LIMIT 1)
), stats AS (
  SELECT DISTINCT ON (s.attname) s.attname, s.n_distinct, s.avg_width, s.null_frac, s.correlation
  FROM sampled x JOIN pg_stats s ON s.schemaname = x.nspname AND s.tablename = x.relname
  ORDER BY s.attname, s.inherited DESC, x.own DESC
), kin AS MATERIALIZED (
  -- whose attnotnull counts: partitions have their parent's, the children of a plain parent need not
  SELECT x.oid FROM tree x, target t WHERE t.relkind = 'r' OR x.oid = t.oid
), columns AS MATERIALIZED (
  SELECT a.attnum, a.attname, a.atttypid, a.atttypmod, a.attndims,
    CASE WHEN a.attgenerated <> '' THEN 'generated' WHEN a.attidentity = 'a' THEN 'identity always'
      WHEN a.attidentity = 'd' THEN 'identity by default' END AS origin,
    -- that give each number to whoever asks next: a session's cache of them is used up later
    CASE WHEN a.atthasdef OR a.attidentity <> '' THEN (
      SELECT json_agg(q.seqrelid::int8) FROM pg_sequence q WHERE q.seqcache = 1 AND q.seqincrement > 0
        AND q.seqrelid IN (
          SELECT d.refobjid FROM pg_attrdef f JOIN pg_depend d ON d.objid = f.oid
          WHERE f.adrelid = t.oid AND f.adnum = a.attnum AND d.classid = 'pg_catalog.pg_attrdef'::regclass
            AND d.refclassid = 'pg_catalog.pg_class'::regclass
          UNION ALL
          SELECT d.objid FROM pg_depend d
          WHERE d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = t.oid
            AND d.refobjsubid = a.attnum AND d.classid = d.refclassid AND d.deptype = 'i')) END AS sequences,
    a.attnotnull AND enforced AND NOT EXISTS (
      SELECT FROM kin JOIN pg_attribute m ON m.attrelid = kin.oid AND m.attname = a.attname
      WHERE NOT m.attnotnull OR EXISTS (
        SELECT FROM pg_constraint k WHERE k.conrelid = kin.oid AND k.contype = 'n' AND NOT k.convalidated
          AND k.conkey[1] = m.attnum)) AS not_null,
    has_column_privilege(t.oid, a.attnum, 'SELECT') AS can_select, s.n_distinct, s.avg_width, s.null_frac,
    s.correlation
  FROM target t JOIN pg_attribute a ON a.attrelid = t.oid LEFT JOIN stats s ON s.attname = a.attname,
    (SELECT bool_and(relkind <> 'f') IS NOT FALSE AS enforced FROM sized) AS kept
  WHERE a.attnum > 0 AND NOT a.attisdropped
), wanted AS (SELECT atttypid AS oid FROM columns),"""
    + _TYPE_CLOSURE
    + """, indexes AS MATERIALIZED (
  SELECT i.relname, a.amname, x.indisunique, x.indisprimary, x.indkey[0] AS lead,
    (SELECT json_agg(c.attname ORDER BY u.place) FROM unnest(x.indkey) WITH ORDINALITY AS u(attnum, place)
     JOIN columns c ON c.attnum = u.attnum WHERE u.place <= x.indnkeyatts) AS names
  FROM target t JOIN pg_index x ON x.indrelid = t.oid JOIN pg_class i ON i.oid = x.indexrelid
  JOIN pg_am a ON a.oid = i.relam
  WHERE x.indisvalid AND x.indislive AND x.indpred IS NULL
    AND (x.indexprs IS NULL OR NOT x.indisunique)
), whole AS (
  -- a unique index of a plain parent says nothing about the rows of its children
  SELECT NOT (t.relkind = 'r' AND (SELECT count(*) FROM tree) > 1) AS one_table FROM target t
)
SELECT json_build_object(
  'oid', t.oid::int8, 'schema', t.nspname, 'name', t.relname, 'kind', t.relkind,
  'is_partition', t.relispartition,
  'row_security', t.relrowsecurity, 'row_security_forced', t.relforcerowsecurity,
  'rows_hidden', row_security_active(t.oid),
  'owned', pg_has_role(t.relowner, 'USAGE'),
  'bypasses_row_security', coalesce(
    (SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user), false),
  'schema_usage', has_schema_privilege(t.relnamespace, 'USAGE'),
  'columns', coalesce((SELECT json_agg(json_build_object(
      'name', attname, 'number', attnum, 'type', atttypid::int8, 'typmod', atttypmod, 'ndims', attndims,
      'native', format_type(atttypid, atttypmod), 'not_null', not_null, 'origin', origin,
      'sequences', sequences,
      'can_select', can_select, 'n_distinct', n_distinct, 'avg_width', avg_width, 'null_frac', null_frac)
    ORDER BY attnum) FROM columns), '[]'),
  'types', (SELECT list FROM types),
  'keys', coalesce((SELECT json_agg(
      json_build_object('index', relname, 'columns', names, 'primary', indisprimary)
    ORDER BY indisprimary DESC, relname) FROM indexes, whole
    WHERE indisunique AND amname = 'btree' AND one_table), '[]'),
  'primary_key', coalesce((SELECT names FROM indexes WHERE indisprimary), '[]'),
  'indexed', coalesce((SELECT json_agg(DISTINCT c.attname) FROM indexes i JOIN columns c ON c.attnum = i.lead
    WHERE i.amname = 'btree'), '[]'),
  -- a walk along an index that begins with it meets each page of the table about once
  'in_order', coalesce((SELECT json_agg(attname) FROM columns WHERE abs(correlation) >= 0.9), '[]'),
  'leaves', coalesce((SELECT json_agg(json_build_object('oid', oid::int8, 'schema', nspname, 'name', relname,
      'kind', relkind, 'pages', pages, 'bytes', bytes, 'tuples', tuples, 'analysed', analysed,
      'readable', readable,
      'is_heap', coalesce(amname = 'heap', false)) ORDER BY nspname, relname) FROM leaves), '[]')
)::text FROM target t
"""
)

#: Names of relations that a person may have meant: same but for case first, then everything else.
NAMES: Final[LiteralString] = """
SELECT coalesce(json_agg(json_build_array(nspname, relname, shown)), '[]')::text FROM (
  SELECT n.nspname, c.relname, pg_table_is_visible(c.oid) AS shown
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
    AND has_schema_privilege(n.oid, 'USAGE')
  ORDER BY lower(c.relname) = lower(%(table)s::text) DESC, n.nspname = %(schema)s::text DESC NULLS LAST,
    pg_table_is_visible(c.oid) DESC, n.nspname, c.relname
  LIMIT 5000) AS x
"""

ATTNUMS: Final[LiteralString] = """
SELECT attrelid::bigint, attname::text, attnum::int FROM pg_catalog.pg_attribute
WHERE attrelid = ANY (%(oids)s::bigint[]::oid[]) AND attname = ANY (%(names)s::text[])
  AND attnum > 0 AND NOT attisdropped
"""
