"""What is not built is refused by name; what only looks like it is let through."""

from __future__ import annotations

import pytest

from tests.unit.config.cases import SOURCE, config, load, refused

GATE = "RIVET_CONFIG_NOT_BUILT"
CURSOR = "mode: incremental\ncursor_column: a\n"
CHUNK = "mode: chunked\nchunk_column: id\n"


@pytest.mark.parametrize(
    ("lines", "field"),
    [
        ("mode: cdc", "mode"),
        ('destination: {type: local, path: "./{run_id}"}', "destination.path"),
        ("load: {pk: auto}", "load"),
    ],
)
def test_refused_in_an_export(lines: str, field: str) -> None:
    error = refused(config(lines))
    assert (error.code, error.export, error.field) == (GATE, "o", field)
    assert "not built yet" in error.message
    assert error.line is not None
    assert error.fix


@pytest.mark.parametrize("kind", ["mysql", "mssql", "mongo", "oracle"])
def test_refused_sources(kind: str) -> None:
    error = refused(config(source=f"type: {kind}, url_env: X"))
    assert (error.code, error.field, error.line) == (GATE, "source.type", 1)


@pytest.mark.parametrize(
    "tail",
    [
        "parallel_exports: true",
        "parallel_export_processes: true",
        "load: {target: bigquery, project: p, dataset: d}",
    ],
)
def test_refused_at_the_root(tail: str) -> None:
    error = refused(config(tail=tail + "\n"))
    assert (error.code, error.field, error.line) == (GATE, tail.partition(":")[0], 7)


def test_a_mistake_comes_before_the_gate() -> None:
    error = refused(config("mode: time_window\ntime_column: a\nload: {pk: auto}"))
    assert error.code == "RIVET_CONFIG_INVALID"
    assert [e.code for e in error.others] == [GATE]


@pytest.mark.parametrize(
    "lines",
    [
        "tuning: {profile: safe}",
        "tuning: {profile: balanced, adaptive: false, min_parallel: 1, memory_threshold_mb: 0}",
        "tuning: {on_batch_memory_exceeded: warn, max_value_mb: 5}",
        "meta_columns: {exported_at: false, row_hash: false}",
        "verify: content\non_schema_drift: continue\nshape_drift_warn_factor: 0\nquality:\ncolumns: {}",
        'columns: {a: timestamp_ns, "t.b": "decimal(5,2)"}\nvalue_policy: {a: null, "*": text}',
        "quality: {row_count_min: 1}\non_schema_drift: fail\nshape_drift_warn_factor: 2.0",
        "meta_columns: {exported_at: true, row_hash: [a, b]}",
        "wave: 2\nparallel_safe: true\nsource_group: g\nreconcile_required: true\ntarget: duckdb",
        "chunk_size: 100000\nchunk_dense: false\nchunk_checkpoint: false",
        "parquet: {row_group_rows: 1000}\nmax_file_size: 1.5GB\nskip_empty: true",
        CHUNK + "chunk_size: 5\nchunk_count: 3\nchunk_checkpoint: true\nchunk_max_attempts: 2\nparallel: 4",
        "mode: chunked\nchunk_by_key: id\nchunk_size: 5",
        "mode: chunked\nchunk_by_key: [a, b]\nconsistency: snapshot\nallow_scan: true",
        CHUNK + "chunk_by_days: 3",
        "mode: time_window\ntime_column: a\ndays_window: 3",
        CURSOR + "incremental_cursor_mode: coalesce\ncursor_fallback_column: b",
        CURSOR + "settle: {after: 1h, column: c}",
        CURSOR + "late_rows: 1d",
        "mode: chunked\nchunk_by_key: id\nkeyset_incremental: true",
        CHUNK + "chunk_dense: true\nchunk_size: 7",
        "mode: chunked",
        CHUNK + "chunk_size_memory_mb: 64",
        "mode: incremental\ncursor_column: a\nincremental_cursor_mode: single_column",
    ],
)
def test_let_through(lines: str) -> None:
    load(
        config(
            lines,
            tail="parallel_exports: false\nlock_wait: 0\nnotifications: {slack: {webhook_url_env: W}}\n",
        )
    )


def test_every_key_of_the_language_is_read() -> None:
    """All of it in one file: nothing is unknown or of the wrong type; the gate names what is missing."""
    text = config(
        """
        mode: incremental
        cursor_column: a
        cursor_fallback_column: b
        incremental_cursor_mode: coalesce
        settle: {after: 2d, column: c}
        wave: 1
        parallel_safe: true
        parallel: 2
        compression: zstd
        compression_level: 4
        compression_profile: compact
        parquet: {row_group_strategy: fixed_memory, target_row_group_mb: 64, max_row_group_mb: 128}
        max_file_size: 512MB
        skip_empty: true
        verify: content
        meta_columns: {exported_at: true, row_hash: [a, b]}
        quality:
          row_count_min: 1
          row_count_max: 10
          null_ratio_max: {a: 0.5}
          unique_columns: [a]
          unique_max_entries: 1000
        columns: {a: 'decimal(18,2)', t.b: timestamp_tz}
        target: bigquery
        on_schema_drift: fail
        shape_drift_warn_factor: 3
        source_group: g
        reconcile_required: true
        tuning: {profile: fast, throttle_ms: 1, retry_backoff_ms: 5, max_batch_memory_mb: 3}
        load:
          pk: [a]
          cluster_by: none
          layout: base_buffer
          deleted_flag: true
          gc_orphans: true
          cleanup_source: false
          allow_source_drift: true
          partition: {range: {column: a, start: 0, end: 10, interval: 1}, require_filter: true}
          tables: {t: {pk: auto, partition: none}}
        lock_wait: 5
        dagster:
          group: g
          owners: ["a@b.cd", "team:data"]
          tags: {team/x: y}
          description: d
          kinds: [table]
          deps: [raw/orders]
          schedule: "*/5 0-6 1,15 jan-mar mon"
          sensor: true
          pool: shop
        """,
        source=SOURCE + ", environment: production, tls: {mode: disable}, tuning: {adaptive: true}",
        tail="""
        parallel_exports: true
        load:
          target: snowflake
          connection: c
          schema: s
          pk: auto
          partition: {ingestion: day, expiration_days: 3}
        notifications: {slack: {webhook_url_env: W, on: [failure, schema_change, degraded]}}
        dagster: {key_prefix: [a, b], group: g}
        lock_wait: 30
        """,
    )
    error = refused(text)
    assert {e.code for e in [error, *error.others]} == {GATE}
    assert [(e.export, e.field) for e in [error, *error.others]] == [
        (None, "parallel_exports"),
        (None, "load"),
        ("o", "load"),
    ]


def test_a_cdc_config_is_read() -> None:
    text = config(
        """
        mode: cdc
        cdc:
          initial: snapshot
          checkpoint: ./c.json
          until_current: false
          max_events: 5
          rollover: 100
          rollover_memory_mb: 64
          server_id: 7
          slot: s
          capture_instance: c
          backfill: auto
        """,
        form="tables: [a, public.b]",
    )
    error = refused(text)
    assert [e.field for e in [error, *error.others]] == ["mode"]
    assert refused(text.replace("backfill: auto", "backfill: [a]")).code == GATE
