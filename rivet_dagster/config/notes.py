"""One line about every key, for the docs and for editors."""

from __future__ import annotations

from typing import Final

NOTES: Final[dict[str, dict[str, str]]] = {
    "RivetConfig": {
        "source": "The database that is read.",
        "exports": "What is read from it, one entry for each destination folder.",
        "notifications": "Who is told about runs.",
        "parallel_exports": "Run exports in threads of one process.",
        "parallel_export_processes": "Run each export in a process of its own.",
        "load": "Warehouse that the files are loaded into.",
        "lock_wait": "Seconds to wait for another run of the same export (addition of this project).",
        "dagster": "How the exports show in Dagster (addition of this project).",
    },
    "SourceConfig": {
        "type": "Kind of database.",
        "url": "Connection URL. Prefer `url_env`: a URL in the file is a password in the file.",
        "url_env": "Environment variable that holds the URL; read when a run connects.",
        "url_file": "File that holds the URL, relative to the config; read when a run connects.",
        "host": "Host, IP address, or socket folder.",
        "port": "Port; 5432 when absent.",
        "user": "Role to connect as.",
        "password": "Password. Prefer `password_env`.",
        "password_env": "Environment variable that holds the password; read when a run connects.",
        "database": "Database name.",
        "environment": "`local` makes `fast` the default tuning profile, the others `balanced`.",
        "tls": "Encryption. Without this block only hosts of this machine are connected to.",
        "mongo": "How MongoDB documents are read.",
        "tuning": "Tuning of all exports.",
    },
    "TlsConfig": {
        "mode": "What is encrypted and verified; `disable` sends everything in clear.",
        "ca_file": "Certificates to trust, relative to the config; the system's when absent.",
        "accept_invalid_certs": "Encrypt without verifying anyone. Not with an explicit `mode`.",
        "accept_invalid_hostnames": "Verify the certificate but not its host. Not with an explicit `mode`.",
    },
    "MongoConfig": {
        "json": "Dialect of extended JSON.",
        "read_concern": "`snapshot` reads one point in time.",
        "no_cursor_timeout": "Keep the server's cursor open between batches.",
        "page_size": "Documents of a page; turns on paging by `_id`.",
        "resume": "Go on after the last page of a stopped run.",
    },
    "TuningConfig": {
        "profile": "Defaults of the other keys: `fast`, `balanced` or `safe`.",
        "batch_size": "Rows between two pauses of `throttle_ms`; turns sizing by memory off. Rows come as a "
        "stream: what is in memory is a row group of the file, see `parquet`.",
        "batch_size_memory_mb": "MB fetched at a time.",
        "throttle_ms": "Pause in ms for each `batch_size` rows, in proportion; no timeout counts it.",
        "statement_timeout_s": "Longest statement in seconds, pauses aside; 0 is no limit.",
        "max_retries": "How often a unit is tried again after a passing failure.",
        "retry_backoff_ms": "First pause before a retry in ms; it doubles each time.",
        "lock_timeout_s": "Longest wait for a lock of the source in seconds; 0 is no limit.",
        "memory_threshold_mb": "MB of the process above which no unit begins beside another; 0 is no limit.",
        "max_batch_memory_mb": "MB of the largest batch; 0 is no limit.",
        "on_batch_memory_exceeded": "A larger batch is reported, ends the run, or does not come about.",
        "adaptive": "Fewer workers while others keep the source busy.",
        "min_parallel": "Fewest workers with `adaptive`.",
        "max_value_mb": "Largest single value; a larger one stops the run.",
    },
    "ExportConfig": {
        "name": "Unique name, usable as a file name.",
        "query": "SELECT to read. Exactly one of query, query_file, table, tables.",
        "query_file": "File with the SELECT, inside the config's folder.",
        "table": "`table` or `schema.table`, case as in the database. A part with other characters than "
        "letters, digits, `_` and `$` is quoted as in SQL: `'public.\"Odd.Name\"'`.",
        "tables": "Tables of one change stream; only `mode: cdc`.",
        "mode": "How rows are chosen.",
        "cdc": "Change capture; only `mode: cdc`.",
        "cursor_column": "Column that only grows; needed by `mode: incremental`.",
        "cursor_fallback_column": "Column used where the cursor is NULL; only with `coalesce`.",
        "incremental_cursor_mode": "One column, or the first that is not NULL of two.",
        "settle": "Leave rows alone until they are old enough.",
        "late_rows": "Also read rows up to this far below the watermark that were committed late: `1d` "
        "(addition of this project).",
        "open_transactions": "What a cursor does about transactions that may bring rows below it: stop, or "
        "go on and miss them (addition of this project).",
        "chunk_column": "Column to cut ranges of: integer, a date for `chunk_by_days`, any ordered one for "
        "`chunk_dense`; the single integer primary key when absent.",
        "chunk_dense": "Cut into ranges of exactly `chunk_size` rows, counted once by a sort; equal values "
        "stay together.",
        "chunk_size": "Values of a range, or rows of a page by key; unless it is set, ranges of a key that "
        "the table lies in the order of are larger (16 to 48 MiB).",
        "chunk_size_memory_mb": "MB of a chunk, estimated from the table's size; needs `table`.",
        "chunk_count": "Number of ranges; wins over `chunk_size`.",
        "chunk_by_days": "UTC days of a range of a date or timestamp `chunk_column`.",
        "chunk_by_key": "NOT NULL unique column to page by; needs `table`. A list names the columns of a "
        "composite unique index in its order (addition of this project).",
        "chunk_checkpoint": "Keep finished chunks of a stopped run.",
        "chunk_max_attempts": "Tries of a chunk; `max_retries` + 1 when absent. Needs `chunk_checkpoint`.",
        "keyset_incremental": "Go on after the last key of the last run; "
        "a key of several columns is compared as a row.",
        "allow_scan": "Look for bounds even where no index helps and the table is larger than 1 GiB "
        "(addition of this project).",
        "consistency": "Whether all units read one snapshot or each its own; `chunk` only with "
        "`mode: chunked`, where it is the default (addition of this project).",
        "parallel": "Workers at most; each opens a connection.",
        "wave": "Of many exports, lower waves begin first; those without one begin last.",
        "parallel_safe": "`false`: heavy, never beside another heavy one; `true`: not heavy. Unset: heavy "
        "from 10 million rows in its last run.",
        "time_column": "Column of `mode: time_window`.",
        "time_column_type": "Whether the column holds timestamps or Unix seconds.",
        "days_window": "Days back from now of `mode: time_window`.",
        "partition_by": "Date or timestamp column whose UTC days (months, years) become Hive folders; "
        "needs `{partition}` as the last folder of the destination.",
        "partition_granularity": "What a folder holds.",
        "format": "File format.",
        "compression": "Codec of Parquet. CSV is not compressed.",
        "compression_level": "1 to 22 for zstd (default 3), 0 to 9 for gzip (default 6).",
        "compression_profile": "fast is snappy, balanced zstd 3, compact zstd 9; wins over `compression`.",
        "parquet": "Row groups.",
        "max_file_size": "Start a new file at this size: `256MB`, `1.5GB`. Binary units.",
        "skip_empty": "Skip the run when there are no rows: the folder, its marker included, stays as it is. "
        "Without it an empty file shows the columns.",
        "destination": "Where the files go.",
        "verify": "`size`: that every part is there. `content`: also read each part back before its unit "
        "counts, and compare its bytes, rows and value checksums with what was read from the source.",
        "meta_columns": "Columns added to every row.",
        "quality": "Gates over the written rows.",
        "columns": "Types to use instead of the ones found, by `column` or `table.column`; a name that holds "
        "a dot is quoted as in SQL: `'\"a.b\"'`.",
        "value_policy": "Column, or `*`, to what becomes of a value that its type cannot hold: `error`, "
        "`null` (counted) or `text` for the whole column (addition of this project).",
        "target": "Warehouse that a type report is for.",
        "on_schema_drift": "What a changed shape of the source leads to.",
        "shape_drift_warn_factor": "Warn when values grow by this factor; 0 is off.",
        "source_group": "Label of exports that share the source's capacity.",
        "reconcile_required": "Label for planning.",
        "tuning": "Tuning of this export, key by key over the source's.",
        "load": "What this export does differently from the root's `load`.",
        "lock_wait": "Seconds to wait for another run of this export (addition of this project).",
        "dagster": "How the export shows in Dagster (addition of this project).",
    },
    "SettleConfig": {
        "after": "Age by the source's clock: `30m`, `1h`, `2d`.",
        "column": "Column with the age; the cursor when absent.",
    },
    "CdcConfig": {
        "initial": "Read the tables once before the changes.",
        "checkpoint": "File that holds the position.",
        "until_current": "Stop when caught up.",
        "max_events": "Stop at the first commit after this many changes.",
        "rollover": "Rows of a file; 100000 when absent.",
        "rollover_memory_mb": "MB of a file; 256 when absent.",
        "server_id": "Id of the replica for MySQL; 4271 when absent.",
        "slot": "Replication slot of PostgreSQL; rivet_slot when absent.",
        "capture_instance": "Capture instance of SQL Server.",
        "backfill": "Exports that read the tables once instead of `initial`.",
    },
    "ParquetConfig": {
        "row_group_strategy": "How rows are grouped; `fixed_rows` when only `row_group_rows` is set.",
        "row_group_rows": "Rows of a group.",
        "target_row_group_mb": "MB that a group aims at; 128 when absent.",
        "max_row_group_mb": "MB of a group at most.",
    },
    "DestinationConfig": {
        "type": "Kind of store.",
        "bucket": "Bucket or container.",
        "prefix": "Folder in the bucket.",
        "path": "Folder, relative to the config file. Tokens {date}, {export}, {table} and, as the last "
        "folder, {partition}; quote them.",
        "region": "Region of the bucket.",
        "endpoint": "Address of an emulator.",
        "credentials_file": "Service account file of Google Cloud.",
        "access_key_env": "Variable with the access key.",
        "secret_key_env": "Variable with the secret key.",
        "session_token_env": "Variable with the session token.",
        "aws_profile": "Profile of the AWS configuration.",
        "account_name": "Storage account of Azure.",
        "account_key_env": "Variable with the account key.",
        "sas_token_env": "Variable with the SAS token.",
        "allow_anonymous": "No credentials; for emulators.",
        "oneshot_budget_mb": "Memory for parts that are sent in one request.",
    },
    "MetaColumns": {
        "exported_at": "Add the time of the export.",
        "row_hash": "Add a hash of the row, or of the named columns.",
    },
    "QualityConfig": {
        "row_count_min": "Fewest rows.",
        "row_count_max": "Most rows.",
        "null_ratio_max": "Column to largest share of NULLs, 0 to 1.",
        "unique_columns": "Columns without duplicates.",
        "unique_max_entries": "Values kept in memory to find duplicates.",
    },
    "NotificationsConfig": {"slack": "A Slack channel."},
    "SlackConfig": {
        "webhook_url": "Address of the webhook. Prefer `webhook_url_env`: who has the address can write.",
        "webhook_url_env": "Environment variable that holds the address; read when a message is sent.",
        "on": "What is told, one message a run: `failure` (of an export, a crash included), `schema_change` "
        "(columns came, went or changed their type), `degraded` (it ended well with retries, values "
        "replaced by NULL, or a check that did not pass). Default: all three.",
    },
    "LoadConfig": {
        "target": "Kind of warehouse.",
        "project": "Project of BigQuery.",
        "dataset": "Dataset of BigQuery.",
        "connection": "Named connection of Snowflake.",
        "warehouse": "Warehouse of Snowflake.",
        "database": "Database of Snowflake or ClickHouse.",
        "schema": "Schema of Snowflake.",
        "storage_integration": "Storage integration of Snowflake.",
        "url": "Address of ClickHouse.",
        "user": "User of ClickHouse.",
        "password_env": "Variable with ClickHouse's password.",
        "named_collection": "Named collection of ClickHouse.",
        "ca_file": "Certificates to trust.",
        "cleanup_source": "Remove files that are loaded.",
        "pk": "Key columns.",
        "layout": "Shape of the tables.",
        "deleted_flag": "Keep deleted rows with a flag.",
        "allow_source_drift": "Load also when row counts differ.",
        "gc_orphans": "Remove files that no manifest names.",
        "cluster_by": "Columns to cluster by, four at most.",
        "partition": "How the table is partitioned.",
    },
    "LoadPartition": {
        "column": "Column to partition by.",
        "granularity": "Width of a partition.",
        "range": "Ranges of an integer column.",
        "ingestion": "Partition by load time.",
        "expiration_days": "Days until a partition is dropped.",
        "require_filter": "Refuse queries without a filter.",
    },
    "PartitionRange": {
        "column": "Integer column.",
        "start": "First value.",
        "end": "Value after the last.",
        "interval": "Width of a range.",
    },
    "ExportDagster": {
        "group": "Asset group.",
        "owners": "Email addresses, or `team:<name>`.",
        "tags": "Tags of the asset.",
        "description": "Text shown with the asset.",
        "kinds": "Further kinds; source and format are added.",
        "deps": "Upstream asset keys, written `a/b`.",
        "schedule": "Cron line of five fields.",
        "automation": "Automation condition of the table: `eager`, or a cron line (once a "
        "tick, and only after what it depends on was updated).",
        "timezone": "Time zone of the cron lines here, e.g. `Europe/Berlin`.",
        "freshness": "Freshness policy of the table.",
        "sensor": "Start a run when the source has moved.",
        "pool": "Concurrency pool of the asset.",
        "partitions_start": "First day, `2024-01-31`, of time partitions of the chunk asset; only with "
        "`partition_by`.",
        "workers": "Processes that share a run, each a step of the export's job, which may be on "
        "other hosts.",
    },
    "FreshnessConfig": {
        "fail_after": "Time since the last materialization after which the table is stale, e.g. `26h`.",
        "warn_after": "Time after which it is nearly so.",
        "by": "Cron line: the times by which the table must have been materialized.",
        "within": "How long before such a time a materialization counts for it.",
    },
    "RootDagster": {
        "key_prefix": "First parts of every asset key.",
        "group": "Asset group of exports that name none.",
        "source_pool_limit": "Steps that read the source at a time, all exports together: they queue in one "
        "pool, named after the source.",
        "executor": "Executor of shared exports and of what is materialized without a job, with its config "
        "as Dagster takes it: `in_process`, `multiprocess`, `celery` or `k8s`.",
        "max_connections": "Connections that the exports of one `export_all` hold together: `parallel` + 2 "
        "each.",
        "max_memory_mb": "Memory that they take together, by what their last runs took.",
    },
}
_SHARED: Final = (
    *("pk", "cleanup_source", "gc_orphans", "cluster_by"),
    *("allow_source_drift", "layout", "deleted_flag", "partition"),
)
NOTES["LoadOverride"] = {
    **{key: NOTES["LoadConfig"][key] for key in _SHARED},
    "tables": "What one table of a change stream does differently.",
}
