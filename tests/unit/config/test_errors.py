"""Every mistake that the language knows: which code, where, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rivet_dagster.config import load_config
from tests.unit.config.cases import FILE, FIRST, SOURCE, config, load, refused

INVALID = "RIVET_CONFIG_INVALID"
UNKNOWN = "RIVET_CONFIG_UNKNOWN_KEY"
GATE = "RIVET_CONFIG_NOT_BUILT"
WINDOW = "mode: time_window\ntime_column: a\ndays_window: 1\n"
CHUNK = "mode: chunked\nchunk_column: id\n"
CURSOR = "mode: incremental\ncursor_column: a\n"
FOLDERS = 'destination: {type: local, path: "./{partition}"}'

# (lines of the export, arguments of config(), code, field, line, words of the message or the fix)
EXPORT_CASES: list[tuple[str, dict[str, Any], str, str | None, int, str]] = [
    # names of keys
    ("chunk_sise: 3", {}, UNKNOWN, "chunk_sise", FIRST, "did you mean `chunk_size`"),
    ("throttle_ms: 3", {}, UNKNOWN, "throttle_ms", FIRST, "move it under `tuning:`"),
    ("batch_size: 3", {}, UNKNOWN, "batch_size", FIRST, "move it under `tuning:`"),
    ("path: ./x", {}, UNKNOWN, "path", FIRST, "move it under `destination:`"),
    ("tuning:\n  profil: safe", {}, UNKNOWN, "tuning.profil", FIRST + 1, "did you mean `profile`"),
    ("wholly_other: 3", {}, UNKNOWN, "wholly_other", FIRST, "known here: name, query"),
    ("<<: {skip_empty: true}", {}, UNKNOWN, "<<", FIRST, "write the keys out"),
    ("skip_empty: true\nskip_empty: true", {}, INVALID, "skip_empty", FIRST + 1, "first in line 7"),
    # types and alternatives
    ("mode: chunkd", {}, INVALID, "mode", FIRST, "did you mean `chunked`"),
    ("mode: 7", {}, INVALID, "mode", FIRST, "one of: full, incremental"),
    ("mode:", {}, INVALID, "mode", FIRST, "no value"),
    ("compression: zstandard", {}, INVALID, "compression", FIRST, "did you mean `zstd`"),
    ("parallel: '3'", {}, INVALID, "parallel", FIRST, "without quotes"),
    ("parallel: many", {}, INVALID, "parallel", FIRST, "must be a whole number, not text"),
    ("parallel: 1.5", {}, INVALID, "parallel", FIRST, "must be a whole number"),
    ("parallel: true", {}, INVALID, "parallel", FIRST, "must be a whole number, not true/false"),
    ("parallel: 99999999999999999999", {}, INVALID, "parallel", FIRST, "64 bits"),
    ("skip_empty: yes", {}, INVALID, "skip_empty", FIRST, "must be true or false"),
    ("tuning: 4", {}, INVALID, "tuning", FIRST, "must be a mapping, not a number"),
    ("tables: x", {}, INVALID, "tables", FIRST, "write `tables: [a, b]`"),
    ("columns: [a]", {}, INVALID, "columns", FIRST, "must be a mapping, not a list"),
    ("source_group: {date}", {}, INVALID, "source_group", FIRST, "quote a value that has braces"),
    ("source_group: !secret x", {}, INVALID, "source_group", FIRST, "remove the tag"),
    (
        "source_group: ${RIVET_TEST_UNSET}",
        {},
        "RIVET_CONFIG_ENV_UNSET",
        "source_group",
        FIRST,
        "set RIVET_TEST_UNSET",
    ),
    (
        "source_group: '${A:-b}'",
        {},
        "RIVET_CONFIG_ENV_UNSET",
        "source_group",
        FIRST,
        "defaults in the braces",
    ),
    # the form of the query
    ("", {"form": "mode: full"}, INVALID, None, 3, "set `table`, `query` or `query_file`"),
    ("query: SELECT 1", {}, INVALID, "table", 4, "keep exactly one"),
    ("", {"form": "query: ' ; '"}, INVALID, "query", 4, "write a SELECT"),
    ("", {"form": "query_file: /etc/x.sql"}, INVALID, "query_file", 4, "absolute"),
    ("", {"form": "query_file: a/../../x.sql"}, INVALID, "query_file", 4, "`..`"),
    ("", {"form": "query_file: none.sql"}, INVALID, "query_file", 4, "not there"),
    ("", {"form": "table: a.b.c"}, INVALID, "table", 4, "write `schema.table`"),
    ("", {"form": "table: a-b"}, INVALID, "table", 4, "quote parts as in SQL"),
    ("", {"form": 'table: "a;drop"'}, INVALID, "table", 4, "quote parts as in SQL"),
    ("tables: [a]", {}, INVALID, "tables", FIRST, "keep exactly one"),
    ("", {"form": "tables: [a]"}, INVALID, "tables", 4, "only with `mode: cdc`"),
    ("mode: cdc", {"form": "tables: []"}, INVALID, "tables", 4, "at least one table"),
    ("mode: cdc", {"form": "tables: [a, a]"}, INVALID, "tables.1", 4, "name every table once"),
    # incremental
    ("mode: incremental", {}, INVALID, "cursor_column", 3, "add `cursor_column:`"),
    ("mode: incremental\ncursor_column: ''", {}, INVALID, "cursor_column", FIRST + 1, "must not be empty"),
    (
        "mode: incremental\ncursor_column: a\nincremental_cursor_mode: coalesce",
        {},
        INVALID,
        "incremental_cursor_mode",
        FIRST + 2,
        "add `cursor_fallback_column:`",
    ),
    (
        "mode: incremental\ncursor_column: a\ncursor_fallback_column: b",
        {},
        INVALID,
        "cursor_fallback_column",
        FIRST + 2,
        "incremental_cursor_mode: coalesce",
    ),
    ("cursor_column: a", {}, INVALID, "cursor_column", FIRST, "set `mode: incremental`"),
    ("settle: {after: 1h}", {}, INVALID, "settle", FIRST, "set `mode: incremental`"),
    (
        "mode: incremental\ncursor_column: a\nsettle: {after: soon}",
        {},
        INVALID,
        "settle.after",
        FIRST + 2,
        "s, m, h or d",
    ),
    # chunked
    (
        "mode: chunked",
        {"form": "query: SELECT 1"},
        INVALID,
        "mode",
        FIRST,
        "set `chunk_column` or `chunk_by_key`",
    ),
    (CHUNK + "chunk_size: 0", {}, INVALID, "chunk_size", FIRST + 2, "at least 1"),
    ("parallel: 0", {}, INVALID, "parallel", FIRST, "at least 1"),
    (
        CHUNK + "chunk_count: 0",
        {},
        "RIVET_CONFIG_CHUNK_COUNT_INVALID",
        "chunk_count",
        FIRST + 2,
        "at least 1",
    ),
    (
        CHUNK + "chunk_by_days: 0",
        {},
        "RIVET_CONFIG_CHUNK_BY_DAYS_INVALID",
        "chunk_by_days",
        FIRST + 2,
        "at least 1",
    ),
    (
        CHUNK + "chunk_count: 2\nchunk_dense: true",
        {},
        INVALID,
        "chunk_dense",
        FIRST + 3,
        "exclude each other",
    ),
    (
        CHUNK + "chunk_count: 2\nchunk_by_days: 3",
        {},
        INVALID,
        "chunk_by_days",
        FIRST + 3,
        "exclude each other",
    ),
    (
        CHUNK + "chunk_by_days: 3\nchunk_dense: true",
        {},
        INVALID,
        "chunk_dense",
        FIRST + 3,
        "exclude each other",
    ),
    (
        CHUNK + "chunk_size: 100000\nchunk_size_memory_mb: 3",
        {},
        INVALID,
        "chunk_size_memory_mb",
        FIRST + 3,
        "exclude each other",
    ),
    (CHUNK + "chunk_by_key: id", {}, INVALID, "chunk_by_key", FIRST + 2, "exclude each other"),
    (
        "mode: chunked\nchunk_by_key: id\npartition_by: d",
        {},
        INVALID,
        "chunk_by_key",
        FIRST + 1,
        "exclude each other",
    ),
    (
        "mode: chunked\nchunk_by_key: id",
        {"form": "query: SELECT 1"},
        INVALID,
        "chunk_by_key",
        FIRST + 1,
        "needs `table`",
    ),
    (
        CHUNK + "chunk_size_memory_mb: 3",
        {"form": "query: SELECT 1"},
        INVALID,
        "chunk_size_memory_mb",
        FIRST + 2,
        "needs `table`",
    ),
    (CHUNK + "keyset_incremental: true", {}, INVALID, "keyset_incremental", FIRST + 2, "add `chunk_by_key:`"),
    (CHUNK + "chunk_max_attempts: 2", {}, INVALID, "chunk_max_attempts", FIRST + 2, "chunk_checkpoint: true"),
    ("chunk_column: id", {}, INVALID, "chunk_column", FIRST, "set `mode: chunked`"),
    ("chunk_by_key: id", {}, INVALID, "chunk_by_key", FIRST, "set `mode: chunked`"),
    ("chunk_count: 3", {}, INVALID, "chunk_count", FIRST, "set `mode: chunked`"),
    ("chunk_by_days: 3", {}, INVALID, "chunk_by_days", FIRST, "set `mode: chunked`"),
    ("chunk_size_memory_mb: 3", {}, INVALID, "chunk_size_memory_mb", FIRST, "set `mode: chunked`"),
    ("chunk_max_attempts: 3", {}, INVALID, "chunk_max_attempts", FIRST, "set `mode: chunked`"),
    ("chunk_checkpoint: true", {}, INVALID, "chunk_checkpoint", FIRST, "set `mode: chunked`"),
    ("keyset_incremental: true", {}, INVALID, "keyset_incremental", FIRST, "set `mode: chunked`"),
    ("chunk_size: 5", {}, INVALID, "chunk_size", FIRST, "set `mode: chunked`"),
    ("chunk_dense: true", {}, INVALID, "chunk_dense", FIRST, "set `mode: chunked`"),
    # time window, partitions
    ("mode: time_window\ndays_window: 3", {}, INVALID, "time_column", 3, "add `time_column:`"),
    ("mode: time_window\ntime_column: a", {}, INVALID, "days_window", 3, "add `days_window:`"),
    ("days_window: 3", {}, INVALID, "days_window", FIRST, "set `mode: time_window`"),
    ("partition_by: ''", {}, INVALID, "partition_by", FIRST, "must not be empty"),
    ("partition_by: a/b", {}, INVALID, "partition_by", FIRST, "slash"),
    ("partition_by: d", {}, INVALID, "partition_by", FIRST, "`{partition}` in the destination"),
    (
        WINDOW + 'partition_by: d\ndestination: {type: local, path: "./{partition}"}',
        {},
        INVALID,
        "partition_by",
        FIRST + 3,
        "does not work in `mode: time_window`",
    ),
    (
        'partition_by: d\nload: {pk: auto}\ndestination: {type: local, path: "./{partition}"}',
        {},
        INVALID,
        "partition_by",
        FIRST,
        "`load` block",
    ),
    (
        'partition_by: d\ndestination: {type: local, path: "./{partition}/{export}"}',
        {},
        INVALID,
        "destination",
        FIRST + 1,
        'write it at the end: "out/{export}/{partition}"',
    ),
    (
        'partition_by: d\ndestination: {type: local, path: "./d-{partition}"}',
        {},
        INVALID,
        "destination",
        FIRST + 1,
        "the last folder of the destination, alone",
    ),
    (
        "partition_by: a=b\n" + FOLDERS,
        {},
        INVALID,
        "partition_by",
        FIRST,
        "holds `=`",
    ),
    (
        "dagster: {partitions_start: 2024-01-01}",
        {},
        INVALID,
        "dagster.partitions_start",
        FIRST,
        "needs `partition_by`",
    ),
    (
        "partition_by: d\ndagster: {partitions_start: 2024-02-30}\n" + FOLDERS,
        {},
        INVALID,
        "dagster.partitions_start",
        FIRST + 1,
        "like `2024-01-31`",
    ),
    (
        CURSOR + "partition_by: d\ndagster: {partitions_start: 2024-02-01}\n" + FOLDERS,
        {},
        INVALID,
        "dagster.partitions_start",
        FIRST + 3,
        "with `mode: incremental` the folders of a run belong together",
    ),
    (
        "partition_by: d\nconsistency: snapshot\ndagster: {partitions_start: 2024-02-01}\n" + FOLDERS,
        {},
        INVALID,
        "dagster.partitions_start",
        FIRST + 2,
        "with `consistency: snapshot`",
    ),
    ("partition_granularity: month", {}, INVALID, "partition_granularity", FIRST, "without `partition_by`"),
    (
        "partition_by: d\npartition_granularity: week\n" + FOLDERS,
        {},
        INVALID,
        "partition_granularity",
        8,
        "day",
    ),
    ("partition_by: d\nchunk_size: 5\n" + FOLDERS, {}, INVALID, "chunk_size", 8, "set `mode: chunked`"),
    (
        CURSOR + "partition_by: d\nchunk_checkpoint: true\n" + FOLDERS,
        {},
        INVALID,
        "chunk_checkpoint",
        10,
        "set `mode: chunked`",
    ),
    (
        "partition_by: d\nconsistency: snapshot\nchunk_checkpoint: true\n" + FOLDERS,
        {},
        INVALID,
        "chunk_checkpoint",
        9,
        "a snapshot ends with its run",
    ),
    # cdc
    ("mode: cdc", {"form": "query: SELECT 1"}, INVALID, "query", 4, "use `table` or `tables`"),
    ("cdc: {slot: s}", {}, INVALID, "cdc", FIRST, "set `mode: cdc`"),
    (
        "mode: cdc\ncdc: {initial: snapshot}",
        {"form": "table: snapshot"},
        INVALID,
        "cdc.initial",
        FIRST + 1,
        "baseline",
    ),
    (
        "mode: cdc\ncdc: {initial: snapshot}",
        {"source": "type: mysql, url_env: X"},
        INVALID,
        "cdc",
        FIRST + 1,
        "add `cdc.checkpoint:`",
    ),
    ("mode: cdc", {"source": "type: mongo, url_env: X"}, INVALID, "cdc", 3, "add `cdc.checkpoint:`"),
    ("mode: cdc", {"source": "type: mssql, url_env: X"}, INVALID, "cdc", 3, "capture_instance"),
    (
        "mode: cdc\ncdc: {capture_instance: c}",
        {"source": "type: mssql, url_env: X", "form": "tables: [a]"},
        INVALID,
        "tables",
        4,
        "use `table`",
    ),
    (
        "mode: cdc\ncdc: {checkpoint: c}",
        {"source": "type: mongo, url_env: X", "form": "table: a.b"},
        INVALID,
        "cdc",
        FIRST + 1,
        "rename the collection",
    ),
    ("cdc: {backfill: atuo}", {}, INVALID, "cdc.backfill", FIRST, "did you mean `auto`"),
    # mongo
    ("mode: chunked", {"source": "type: mongo, url_env: X"}, INVALID, "mode", FIRST, "use `full` or `cdc`"),
    (
        "parallel: 2",
        {"source": "type: mongo, url_env: X, mongo: {resume: true, page_size: 5}"},
        INVALID,
        "parallel",
        FIRST,
        "remove `parallel`",
    ),
    # format
    ("compression: gzip", {"fmt": "csv"}, INVALID, "compression", FIRST, "CSV is not compressed"),
    (
        "compression_profile: fast",
        {"fmt": "csv"},
        INVALID,
        "compression_profile",
        FIRST,
        "CSV is not compressed",
    ),
    ("compression_level: 3", {"fmt": "csv"}, INVALID, "compression_level", FIRST, "no effect on CSV"),
    ("parquet: {row_group_rows: 5}", {"fmt": "csv"}, INVALID, "parquet", FIRST, "no effect on CSV"),
    ("compression_level: 23", {}, INVALID, "compression_level", FIRST, "1 to 22"),
    ("compression_level: 0", {}, INVALID, "compression_level", FIRST, "1 to 22"),
    ("compression: gzip\ncompression_level: 10", {}, INVALID, "compression_level", FIRST + 1, "0 to 9"),
    ("compression: snappy\ncompression_level: 1", {}, INVALID, "compression_level", FIRST + 1, "no levels"),
    ("max_file_size: 0", {}, INVALID, "max_file_size", FIRST, "at least one byte"),
    ("max_file_size: 0.5B", {}, INVALID, "max_file_size", FIRST, "at least one byte"),
    ("max_file_size: 3TB", {}, INVALID, "max_file_size", FIRST, "KB, MB or GB"),
    ("max_file_size: -3MB", {}, INVALID, "max_file_size", FIRST, "KB, MB or GB"),
    (
        "parquet: {row_group_strategy: fixed_rows}",
        {},
        INVALID,
        "parquet.row_group_strategy",
        FIRST,
        "row_group_rows",
    ),
    (
        "parquet: {row_group_strategy: auto, row_group_rows: 5}",
        {},
        INVALID,
        "parquet.row_group_rows",
        FIRST,
        "fixed_rows",
    ),
    # destination
    ("destination: {type: local}", {}, INVALID, "destination.path", FIRST, "needs a `path`"),
    ("destination: {type: local, path: ../x}", {}, INVALID, "destination.path", FIRST, "`..` is not allowed"),
    ("destination: {type: local, path: 's3://b/x'}", {}, INVALID, "destination.path", FIRST, "URI"),
    ("destination: {type: local, path: ~/x}", {}, INVALID, "destination.path", FIRST, "not expanded"),
    ("destination: {type: local, path: './{dat}'}", {}, INVALID, "destination.path", FIRST, "write `{date}`"),
    (
        "destination: {type: local, path: './{zzz}'}",
        {},
        INVALID,
        "destination.path",
        FIRST,
        "use {date}, {export}",
    ),
    (
        "destination: {type: local, path: './{partition}'}",
        {},
        INVALID,
        "destination",
        FIRST,
        "add `partition_by:`",
    ),
    (
        "destination: {type: local, path: x, bucket: b}",
        {},
        INVALID,
        "destination.bucket",
        FIRST,
        "remove `bucket`",
    ),
    ("destination: {type: s3}", {}, INVALID, "destination.bucket", FIRST, "add `bucket:`"),
    (
        "destination: {type: s3, bucket: b, endpoint: 'https://evil.example'}",
        {},
        INVALID,
        "destination.endpoint",
        FIRST,
        "allow_anonymous: true",
    ),
    (
        "destination: {type: s3, bucket: b, access_key_env: A}",
        {},
        INVALID,
        "destination.access_key_env",
        FIRST,
        "set both, or neither",
    ),
    (
        "destination: {type: gcs, bucket: b, credentials_file: none.json}",
        {},
        INVALID,
        "destination.credentials_file",
        FIRST,
        "correct the path",
    ),
    (
        "destination: {type: gcs, bucket: b, credentials_file: none.json, allow_anonymous: true}",
        {},
        INVALID,
        "destination.allow_anonymous",
        FIRST,
        "keep one",
    ),
    (
        "destination: {type: azure, bucket: b, sas_token_env: S}",
        {},
        INVALID,
        "destination.account_name",
        FIRST,
        "add",
    ),
    (
        "destination: {type: azure, bucket: b, account_name: a}",
        {},
        INVALID,
        "destination.account_name",
        FIRST,
        "neither `account_key_env` nor `sas_token_env`",
    ),
    (
        "destination: {type: azure, bucket: b, account_name: a, account_key_env: K, sas_token_env: S}",
        {},
        INVALID,
        "destination.sas_token_env",
        FIRST,
        "keep one",
    ),
    (
        "destination: {type: azure, bucket: b, account_name: a, account_key_env: K, allow_anonymous: true}",
        {},
        INVALID,
        "destination.allow_anonymous",
        FIRST,
        "keep one",
    ),
    # tuning
    (
        "tuning: {batch_size: 5, batch_size_memory_mb: 5}",
        {},
        INVALID,
        "tuning.batch_size",
        FIRST,
        "keep one of the two",
    ),
    (
        "tuning: {batch_size: 5}",
        {"source": SOURCE + ", tuning: {batch_size_memory_mb: 5}"},
        INVALID,
        "tuning.batch_size",
        FIRST,
        "keep one of the two",
    ),
    ("tuning: {max_value_mb: 0}", {}, INVALID, "tuning.max_value_mb", FIRST, "at least 1"),
    ("tuning: {throttle_ms: -1}", {}, INVALID, "tuning.throttle_ms", FIRST, "at least 0"),
    # row hash, overrides, quality
    (
        "meta_columns: {row_hash: []}",
        {},
        INVALID,
        "meta_columns.row_hash",
        FIRST,
        "the list of columns is empty",
    ),
    (
        "meta_columns: {row_hash: [a, a]}",
        {},
        INVALID,
        "meta_columns.row_hash",
        FIRST,
        "name every column once",
    ),
    (
        "mode: cdc\nmeta_columns: {row_hash: [a]}",
        {"form": "tables: [t]"},
        INVALID,
        "meta_columns.row_hash",
        FIRST + 1,
        "write `row_hash: true`",
    ),
    ("columns: {t.a: text}", {"form": "query: SELECT 1"}, INVALID, "columns.t.a", FIRST, "write `a` alone"),
    ("columns: {u.a: text}", {}, INVALID, "columns.u.a", FIRST, "does not read a table u"),
    ("columns: {a: strin}", {}, INVALID, "columns.a", FIRST, "did you mean `string`"),
    ("columns: {a: decimal}", {}, INVALID, "columns.a", FIRST, "write `decimal(18,2)`"),
    ("columns: {a: 'decimal(5)'}", {}, INVALID, "columns.a", FIRST, "write `decimal(18,2)`"),
    ("columns: {a: 'decimal(77,2)'}", {}, INVALID, "columns.a", FIRST, "1 to 76 digits"),
    ("quality: {row_count_min: 5, row_count_max: 2}", {}, INVALID, "quality.row_count_min", FIRST, "swap"),
    ("quality: {null_ratio_max: {a: 2}}", {}, INVALID, "quality.null_ratio_max.a", FIRST, "at most 1"),
    # load
    ("load: {pk: atuo}", {}, INVALID, "load.pk", FIRST, "did you mean `auto`"),
    ("load: {partition: {colum: a}}", {}, UNKNOWN, "load.partition.colum", FIRST, "did you mean `column`"),
    ("load: {partition: {}}", {}, INVALID, "load.partition", FIRST, "keep exactly one"),
    ("load: {cluster_by: [a, b, c, d, e]}", {}, INVALID, "load.cluster_by", FIRST, "at most four"),
    # our own block
    ("dagster: {owners: [nobody]}", {}, INVALID, "dagster.owners.0", FIRST, "team:"),
    ("dagster: {tags: {a: 'b c'}}", {}, INVALID, "dagster.tags.a", FIRST, "letters, digits"),
    ("dagster: {group: a b}", {}, INVALID, "dagster.group", FIRST, "letters, digits"),
    ("dagster: {kinds: ['a b']}", {}, INVALID, "dagster.kinds.0", FIRST, "letters, digits"),
    ("dagster: {deps: [a//b]}", {}, INVALID, "dagster.deps.0", FIRST, "prefix/name"),
    ("dagster: {schedule: every day}", {}, INVALID, "dagster.schedule", FIRST, "five fields"),
    ("dagster: {schedule: '61 * * * *'}", {}, INVALID, "dagster.schedule", FIRST, "minute"),
    ("dagster: {pool: a b}", {}, INVALID, "dagster.pool", FIRST, "no spaces"),
    (
        "dagster: {pool: a}",
        {"tail": "dagster: {source_pool_limit: 2}"},
        INVALID,
        "dagster.pool",
        FIRST,
        "would not count",
    ),
    ("lock_wait: -1", {}, INVALID, "lock_wait", FIRST, "at least 0"),
]


@pytest.mark.parametrize(("lines", "arguments", "code", "field", "line", "words"), EXPORT_CASES)
def test_a_wrong_export(
    lines: str, arguments: dict[str, Any], code: str, field: str | None, line: int, words: str
) -> None:
    error = refused(config(lines, **arguments))
    assert (error.code, error.export, error.field, error.line) == (code, "o", field, line)
    assert error.file == str(FILE)
    assert error.fix
    assert words in error.message
    assert "pydantic" not in str(error)
    assert f"{FILE}:{line}" in error.message


SOURCE_CASES: list[tuple[str, str, str, str]] = [
    ("type: postgres", INVALID, "source", "set `url_env`"),
    ("url_env: X", INVALID, "source.type", "add `type:`"),
    ("type: postgre, url_env: X", INVALID, "source.type", "did you mean `postgres`"),
    ("type: postgres, url_env: X, url_file: f", INVALID, "source.url_file", "keep exactly one"),
    ("type: postgres, url_env: X, host: h", INVALID, "source.host", "either the URL"),
    ("type: postgres, user: u, database: d", INVALID, "source.host", "add `host:`"),
    ("type: postgres, host: h, database: d", INVALID, "source.user", "add `user:`"),
    ("type: postgres, host: h, user: u", INVALID, "source.database", "add `database:`"),
    ("type: postgres, host: h, user: u, database: d, port: 0", INVALID, "source.port", "at least 1"),
    ("type: postgres, host: h, user: u, database: d, port: 65536", INVALID, "source.port", "at most 65535"),
    (
        "type: postgres, host: h, user: u, database: d, password: p, password_env: P",
        INVALID,
        "source.password_env",
        "keep `password_env`",
    ),
    ("type: postgres, url_env: ''", INVALID, "source.url_env", "must not be empty"),
    ("type: postgres, url: 'localhost/d'", INVALID, "source.url", "start it with postgresql://"),
    (
        "type: postgres, url: 'mysql://u@localhost/d'",
        "RIVET_CONFIG_SOURCE_URL_SCHEME_MISMATCH",
        "source.url",
        "use postgresql://",
    ),
    (
        "type: mysql, url: 'postgresql://u@localhost/d'",
        "RIVET_CONFIG_SOURCE_URL_SCHEME_MISMATCH",
        "source.url",
        "use mysql://",
    ),
    ("type: postgres, url: 'postgresql://u@localhost'", INVALID, "source.url", "names no database"),
    ("type: postgres, url: 'postgresql://localhost/d'", INVALID, "source.url", "names no user"),
    ("type: postgres, url: 'postgresql://u@/d'", INVALID, "source.url", "names no host"),
    ("type: postgres, url: 'postgresql://u@h:99999/d'", INVALID, "source.url", "port"),
    ("type: postgres, url: 'postgresql://u@h/d?nope=1'", INVALID, "source.url", "a parameter"),
    (SOURCE + ", tls: {mode: verify}", INVALID, "source.tls.mode", "verify-full"),
    (
        SOURCE + ", tls: {mode: require, accept_invalid_certs: true}",
        INVALID,
        "source.tls.accept_invalid_certs",
        "contradicts",
    ),
    (
        SOURCE + ", tls: {mode: require, accept_invalid_hostnames: true}",
        INVALID,
        "source.tls.accept_invalid_hostnames",
        "contradicts",
    ),
    (SOURCE + ", tls: {ca_file: none.pem}", INVALID, "source.tls.ca_file", "correct the path"),
    (SOURCE + ", mongo: {page_size: 5}", INVALID, "source.mongo", "no effect on a postgres source"),
    ("type: mongo, url_env: X, mongo: {resume: true}", INVALID, "source.mongo.resume", "set `page_size`"),
    (
        SOURCE + ", tuning: {batch_size: 1, batch_size_memory_mb: 1}",
        INVALID,
        "source.tuning.batch_size",
        "keep one",
    ),
    (SOURCE + ", throttle_ms: 5", UNKNOWN, "source.throttle_ms", "move it under `tuning:`"),
    (SOURCE + ", mode: require", UNKNOWN, "source.mode", "move it under `source.tls:`"),
    (SOURCE + ", usr: u", UNKNOWN, "source.usr", "did you mean `user`"),
]


@pytest.mark.parametrize(("source", "code", "field", "words"), SOURCE_CASES)
def test_a_wrong_source(source: str, code: str, field: str, words: str) -> None:
    error = refused(config(source=source))
    assert (error.code, error.export, error.field, error.line) == (code, None, field, 1)
    assert words in error.message
    assert error.fix


ROOT_CASES: list[tuple[str, str, str | None, str]] = [
    ("exports: []", "RIVET_CONFIG_NO_EXPORTS", "exports", "add an export"),
    ("", "RIVET_CONFIG_NO_EXPORTS", "exports", "add `exports:`"),
    ("exports: 5", INVALID, "exports", "must be a list"),
    ("exports: [5]", INVALID, None, "must be a mapping"),
    ("exports: []\nparalel_exports: true", UNKNOWN, "paralel_exports", "did you mean `parallel_exports`"),
    (
        "exports: []\nload: {target: bigquery, warehouse: w}",
        "RIVET_CONFIG_NO_EXPORTS",
        "exports",
        "add an export",
    ),
    ("exports: []\ndagster: {key_prefix: [a b]}", "RIVET_CONFIG_NO_EXPORTS", "exports", "add an export"),
]


@pytest.mark.parametrize(("text", "code", "field", "words"), ROOT_CASES)
def test_a_wrong_root(text: str, code: str, field: str | None, words: str) -> None:
    error = refused(f"source: {{{SOURCE}}}\n{text}\n")
    assert (error.code, error.field) == (code, field)
    assert words in error.message
    assert error.fix


def test_a_key_of_another_load_target() -> None:
    error = refused(config(tail="load: {target: bigquery, warehouse: w}\n"))
    assert (error.code, error.field) == (INVALID, "load.warehouse")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", None, "the file is empty"),
        ("# only a comment\n", None, "the file is empty"),
        ("- a\n- b\n", 1, "not a mapping"),
        ("source", 1, "not a mapping"),
        ("source:\n\ttype: postgres\n", 2, "indent with spaces"),
        (config() + "\tx: 3\n", 7, "indent with spaces"),
        (config("source_group: {date}/x"), 7, "put it in quotes"),
        (config("query: 'open"), 7, "not valid YAML"),
        ("a: 1\n---\nb: 2\n", 2, "more than one YAML document"),
        ("a: \x01\n", 1, "control character"),
        ("a: &a [*a]\n", 1, "without end"),
        ("a: " + "[" * 5000 + "\n", None, "Fix"),
    ],
)
def test_text_that_is_no_config(text: str, line: int | None, words: str) -> None:
    error = refused(text)
    assert error.code == INVALID
    assert words in error.message
    assert error.fix
    if line is not None:
        assert error.line == line


def test_aliases_that_explode_are_refused() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "without end" in refused("\n".join(levels)).message


@pytest.mark.parametrize(
    "name", ["a/b", "a\\\\b", "..", "a..b", ".hidden", "/abs", "", " ", "a\\0b", "a\\tb", "x" * 200]
)
def test_an_unsafe_export_name(name: str) -> None:
    error = refused(config().replace("name: o", f'name: "{name}"'))
    assert (error.code, error.field, error.line) == (INVALID, "name", 3)


def two(first: str, second: str, first_path: str = "./a", second_path: str = "./b") -> str:
    def entry(name: str, path: str) -> str:
        return f"  - {{name: {name}, table: t, format: csv, destination: {{type: local, path: '{path}'}}}}\n"

    return f"source: {{{SOURCE}}}\nexports:\n" + entry(first, first_path) + entry(second, second_path)


def test_two_exports_of_one_name() -> None:
    error = refused(two("o", "o"))
    assert (error.code, error.export, error.field, error.line) == (
        "RIVET_CONFIG_DUPLICATE_EXPORT",
        "o",
        "name",
        4,
    )


def test_two_names_that_become_one_asset() -> None:
    error = refused(two("a-b", "a.b"))
    assert (error.code, error.export, error.line) == ("RIVET_CONFIG_DUPLICATE_EXPORT", "a.b", 4)
    assert "'a-b'" in error.message
    assert "a_b" in error.message


@pytest.mark.parametrize(
    ("first", "second"), [("./a", "a/"), ("./a", "x/../a".replace("x/../", "./")), ("./{export}", "p")]
)
def test_two_exports_in_one_folder(first: str, second: str) -> None:
    error = refused(two("p", "q", first, second))
    assert (error.code, error.export, error.field, error.line) == (INVALID, "q", "destination.path", 4)
    assert "'p'" in error.message


def test_folders_that_differ_by_token_are_apart() -> None:
    assert len(load(two("p", "q", "./{export}/{date}", "./{table}/{date}")).exports) == 2


@pytest.mark.parametrize(
    ("source", "cdc", "field"),
    [
        ("type: postgres", "{}", "cdc.slot"),
        ("type: postgres", "{slot: s}", "cdc.slot"),
        ("type: mysql", "{checkpoint: 'c{}'}", "cdc.server_id"),
        ("type: mongo", "{checkpoint: c}", "cdc.checkpoint"),
    ],
)
def test_two_readers_of_one_log(source: str, cdc: str, field: str) -> None:
    text = f"source: {{{source}, url_env: X}}\nexports:\n"
    for n, name in enumerate("pq"):
        block = cdc.replace("{}", str(n)) if cdc != "{}" else cdc
        text += (
            f"  - {{name: {name}, table: t, mode: cdc, cdc: {block}, format: csv, "
            f"destination: {{type: local, path: ./{name}}}}}\n"
        )
    error = refused(text)
    assert (error.code, error.export, error.field, error.line) == (INVALID, "q", field, 4)


def test_all_problems_of_a_file_are_kept() -> None:
    error = refused(config("mode: incremental\nmax_file_size: 0\nload: {pk: auto}"))
    assert [(e.code, e.field) for e in [error, *error.others]] == [
        (INVALID, "cursor_column"),
        (INVALID, "max_file_size"),
        (GATE, "load"),
    ]
    assert "2 more in this file" in error.message


def test_an_export_without_a_name_is_called_by_its_number() -> None:
    error = refused(config().replace("name: o", "mode: full"))
    assert (error.export, error.field, error.line) == ("#1", "name", 3)


def test_query_file_must_stay_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.sql").write_text("SELECT 1")
    folder = tmp_path / "conf"
    folder.mkdir()
    (folder / "link.sql").symlink_to(tmp_path / "secret.sql")
    error = refused(config(form="query_file: link.sql"), path=folder / "rivet.yaml")
    assert "leads out of" in error.message


def test_unreadable_files(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(Exception, match="RIVET_CONFIG_UNREADABLE"):
            load_config(path)
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    with pytest.raises(Exception, match="not UTF-8"):
        load_config(tmp_path / "latin.yaml")
