"""Calls into parts of Dagster that are not public, made while steps run; for others see ``_internal.py``."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

# Whoever only loads the definitions needs neither SQLAlchemy nor compute logs: imported where they are used.
if TYPE_CHECKING:
    import dagster as dg
    from dagster._core.storage.compute_log_manager import CapturedLogContext
    from sqlalchemy import Connection, Engine

_ALLOCATOR_THREAD: Final = "jemalloc_bg_thd"


@contextmanager
def event_files_open(instance: dg.DagsterInstance) -> Iterator[None]:
    """Keep one connection to each SQLite file of events; nothing where they are kept elsewhere.

    Dagster makes an engine and connects for each event and each look. Most of what an event costs is then
    to compile its statement again, and to write the log back into the file as the last connection that
    closes. Not for a process that will be forked: open SQLite files must not be carried over.
    """
    from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
    from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS
    from sqlalchemy import create_engine
    from sqlalchemy.pool import QueuePool

    storage = instance.event_log_storage
    if type(storage) is not SqliteEventLogStorage or "_connect" in vars(storage):  # or they are open already
        yield
        return
    engines: dict[str, Engine] = {}
    connect = storage._connect

    @contextmanager
    def kept(shard: str) -> Iterator[Connection]:
        if shard not in storage._initialized_dbs:
            with connect(shard) as connection:
                yield connection
            return
        with storage._db_lock:
            if shard not in engines:
                engines[shard] = create_engine(
                    storage.conn_string_for_shard(shard),
                    poolclass=QueuePool,
                    pool_size=1,
                    connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS, "check_same_thread": False},
                )
            with engines[shard].begin() as connection:
                yield connection

    # of this object alone, until they are deleted and the class's own show again
    storage._connect = kept  # type: ignore[method-assign]
    storage.has_table = cache(storage.has_table)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del storage._connect, storage.has_table
        for engine in engines.values():
            engine.dispose()


@dataclass(frozen=True)
class CapturedLogs:
    """What is captured. paths: files of standard output and error that are on no console, or none."""

    context: CapturedLogContext
    paths: tuple[str, ...]


@contextmanager
def captured_logs(instance: dg.DagsterInstance, log_key: Sequence[str]) -> Iterator[CapturedLogs]:
    """Put what this process prints into the compute log of ``log_key``.

    To show it on the console too, Dagster starts four processes a step, which takes as much CPU as a small
    export. With files on this machine that is left to the reader of ``paths``.
    """
    from dagster._core.execution.compute_logs import redirect_to_file
    from dagster._core.storage.compute_log_manager import CapturedLogContext, ComputeIOType
    from dagster._core.storage.local_compute_log_manager import IO_TYPE_EXTENSION, LocalComputeLogManager
    from dagster._utils import ensure_file, touch_file

    manager = instance.compute_log_manager
    if type(manager) is not LocalComputeLogManager or sys.platform == "win32":
        with manager.capture_logs(log_key) as context:
            yield CapturedLogs(context, ())
        return
    out, err = (
        ensure_file(manager.get_captured_local_path(log_key, IO_TYPE_EXTENSION[kind]))
        for kind in (ComputeIOType.STDOUT, ComputeIOType.STDERR)
    )
    with redirect_to_file(sys.stdout, out), redirect_to_file(sys.stderr, err):
        yield CapturedLogs(CapturedLogContext(log_key), (out, err))
    touch_file(manager.complete_artifact_path(log_key))  # type: ignore[no-untyped-call]


def has_no_threads() -> bool:
    """Whether this process can be forked: no other thread may hold a lock. Arrow's allocator is ready."""
    if threading.active_count() > 1:
        return False
    try:
        names = [Path(f"/proc/self/task/{task}/comm").read_text() for task in os.listdir("/proc/self/task")]
    except OSError:
        return False
    return sum(name.strip() != _ALLOCATOR_THREAD for name in names) == 1
