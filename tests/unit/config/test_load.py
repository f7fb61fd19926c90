"""What a loaded config offers to the engine."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from rivet_dagster.config import RivetConfig, load_config
from rivet_dagster.config.dagster_block import cron_fault
from rivet_dagster.config.sizes import parse_duration, parse_size
from rivet_dagster.engine.errors import UsageError
from tests.unit.config.cases import FILE, SOURCE, config, load, refused

SHOP = """\
source:
  type: postgres
  url_env: SHOP_URL
  tls: { mode: disable }
exports:
  - name: orders_full
    table: orders
    mode: full
    format: parquet
    destination: { type: local, path: ./out/orders_full }
  - name: orders_chunked
    table: shop.orders
    mode: chunked
    chunk_column: id
    chunk_size: 400
    chunk_checkpoint: true
    format: parquet
    destination: { type: local, path: /srv/out/orders_chunked }
  - name: orders_incremental
    query: "SELECT * FROM orders ; "
    mode: incremental
    cursor_column: placed_at
    format: csv
    destination: { type: local, path: "./out/{export}/{date}" }
"""


def test_a_file_of_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOP_URL", raising=False)
    file = tmp_path / "rivet.yaml"
    file.write_text("\ufeff" + SHOP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    loaded = load_config("rivet.yaml")
    assert (loaded.path, loaded.dir) == (file, tmp_path)
    assert [e.name for e in loaded.exports] == ["orders_full", "orders_chunked", "orders_incremental"]
    full, chunked, incremental = loaded.exports
    assert full.destination.path == str(tmp_path / "out" / "orders_full")
    assert chunked.destination.path == "/srv/out/orders_chunked"
    assert incremental.destination.path == str(tmp_path / "out/{export}/{date}")
    assert (full.relation, chunked.relation, incremental.relation) == (
        (None, "orders"),
        ("shop", "orders"),
        None,
    )
    assert (full.query_text(), incremental.query_text()) == (None, "SELECT * FROM orders")
    assert (chunked.chunk_strategy, full.chunk_strategy) == ("size", None)
    assert loaded.export("orders_chunked") is chunked


def test_an_unknown_export() -> None:
    with pytest.raises(UsageError, match="there are: o") as caught:
        load(config()).export("x")
    assert caught.value.code == "RIVET_CLI_EXPORT_UNKNOWN"


def test_a_query_file(tmp_path: Path) -> None:
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "o.sql").write_text("SELECT 1\n;\n")
    loaded = load(config(form="query_file: sql/o.sql"), path=tmp_path / "rivet.yaml")
    assert loaded.exports[0].query_text() == "SELECT 1"


@pytest.mark.parametrize(
    ("lines", "fmt", "expected"),
    [
        ("", "parquet", ("zstd", 3)),
        ("compression: zstd\ncompression_level: 9", "parquet", ("zstd", 9)),
        ("compression: gzip", "parquet", ("gzip", 6)),
        ("compression: gzip\ncompression_level: 0", "parquet", ("gzip", 0)),
        ("compression: snappy", "parquet", ("snappy", None)),
        ("compression: lz4", "parquet", ("lz4", None)),
        ("compression: none", "parquet", ("none", None)),
        ("compression_profile: none", "parquet", ("none", None)),
        ("compression_profile: fast", "parquet", ("snappy", None)),
        ("compression_profile: balanced\ncompression: snappy", "parquet", ("zstd", 3)),
        ("compression_profile: compact\ncompression_level: 2", "parquet", ("zstd", 9)),
        ("", "csv", ("none", None)),
        ("compression: none\ncompression_profile: none", "csv", ("none", None)),
    ],
)
def test_compression(lines: str, fmt: str, expected: tuple[str, int | None]) -> None:
    assert load(config(lines, fmt=fmt)).exports[0].compression_resolved() == expected


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("10B", 10), ("1KB", 1024), ("1.5 mb", 1572864), ("2gb", 2**31), ("0.0009765625KB", 1)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert load(config(f"max_file_size: {text}")).exports[0].max_file_bytes == size


@pytest.mark.parametrize(("text", "seconds"), [("1s", 1), ("2m", 120), ("1h", 3600), ("2d", 172800)])
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("lines", "strategy"),
    [
        ("chunk_by_key: id", "key"),
        ("chunk_column: id\nchunk_count: 3\nchunk_size: 5", "count"),
        ("chunk_column: id\nchunk_size_memory_mb: 3", "memory"),
        ("", "size"),
    ],
)
def test_chunk_strategy(lines: str, strategy: str) -> None:
    assert load(config("mode: chunked\n" + lines)).exports[0].chunk_strategy == strategy


@pytest.mark.parametrize(
    "line",
    [
        "* * * * *",
        "*/5 0-6 1,15 jan-mar mon",
        "0 3 * * 7",
        "@daily",
        "59 23 31 12 0",
        "0 0 * * mon-fri",
        "0 0-12/2 * * *",
    ],
)
def test_cron_lines(line: str) -> None:
    assert cron_fault(line) is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "a * * * *",
        *("*/0 * * * *", "5-1 * * * *", "1,,2 * * * *", "*-5 * * * *", "@never", "* * * * fri-mon"),
    ],
)
def test_lines_that_are_no_cron(line: str) -> None:
    assert cron_fault(line) is not None


def test_lock_wait_and_group_fall_back() -> None:
    export = load(config()).exports[0]
    assert load(config()).lock_wait_for(export) == 600
    loaded = load(config(tail="lock_wait: 7\ndagster: {group: g}\n"))
    assert (loaded.lock_wait_for(export), loaded.group_for(export)) == (7, "g")
    loaded = load(config("lock_wait: 0\ndagster: {group: h}", tail="lock_wait: 7\ndagster: {group: g}\n"))
    assert (loaded.lock_wait_for(loaded.exports[0]), loaded.group_for(loaded.exports[0])) == (0, "h")
    assert loaded.dagster.key_prefix == ("rivet",)


def test_names_that_dagster_does_not_take_are_mapped() -> None:
    loaded = load(config().replace("name: o", "name: sales.orders-v2 é"))
    assert loaded.exports[0].asset_name == "sales_orders_v2__"


def test_aliases_are_read() -> None:
    text = f"source: {{{SOURCE}}}\nexports:\n"
    entry = "  - {name: a, table: t, format: csv, tuning: &t {throttle_ms: 5}, "
    entry += "destination: {type: local, path: a}}"
    text += entry + "\n" + entry.replace("&t {throttle_ms: 5}", "*t").replace(": a", ": b") + "\n"
    loaded = load(text)
    assert [loaded.tuning_for(e).throttle_ms for e in loaded.exports] == [5, 5]


def test_models_are_frozen() -> None:
    loaded = load(config())
    with pytest.raises(ValidationError):
        loaded.exports[0].name = "x"
    assert isinstance(loaded.exports, tuple)


def test_three_hundred_exports_load_fast() -> None:
    entry = config("mode: chunked\nchunk_column: id\nparallel: 4\ntuning: {profile: safe}").split(
        "exports:\n"
    )[1]
    entry = entry.replace("./out", "./out/{export}").replace("{type: local, path: ", '{type: local, path: "')
    entry = entry.replace("{export}}", '{export}"}')
    text = f"source: {{{SOURCE}}}\nexports:\n" + "".join(
        entry.replace("name: o", f"name: e{n}") for n in range(300)
    )
    started = time.process_time()
    loaded = load(text)
    assert time.process_time() - started < 1
    assert len(loaded.exports) == 300


def test_the_import_is_light() -> None:
    heavy = ("dagster", "pyarrow", "sqlalchemy", "psycopg")
    code = f"import sys, rivet_dagster.config; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_path_of_a_text() -> None:
    loaded = load(config())
    assert isinstance(loaded, RivetConfig)
    assert loaded.path == FILE


@pytest.mark.parametrize(
    ("lines", "one_snapshot"),
    [
        ("partition_granularity: year", False),
        ("chunk_checkpoint: true", False),
        ("consistency: chunk", False),
        ("consistency: snapshot", True),
        ("mode: chunked\nchunk_column: id", False),
        ("mode: incremental\ncursor_column: a", True),
    ],
)
def test_folders_of_partitions(lines: str, one_snapshot: bool) -> None:
    """A whole pass cut into folders reads a snapshot each; a watermark needs one."""
    path = 'destination: {type: local, path: "./{export}/{partition}"}'
    export = load(config(f"partition_by: d\n{lines}\n{path}")).exports[0]
    assert export.reads_one_snapshot is one_snapshot
    assert export.destination.root == "/etc/rivet/{export}"


def test_folders_of_partitions_lie_in_a_prefix_of_their_own() -> None:
    path = 'destination: {type: local, path: "./out/{partition}"}'
    other = f"  - {{name: p, table: t, format: parquet, partition_by: d, {path}}}\n"
    error = refused(config() + other)
    assert "the export 'o' writes into the same folder" in error.message
