"""The state's server is restarted while a run is at work: the run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa

from tests.crash.kit import ON_STORES, RANGE, Mode, Project, Reader
from tests.services.postgres import database, postgres_server

SLOW = Mode("slow", {**RANGE.export, "chunk_size": 5, "tuning": {"batch_size": 60, "throttle_ms": 70}})


@ON_STORES
def test_a_restart_of_the_state_in_mid_run(project: Callable[..., Project], orders: pa.Table) -> None:
    with postgres_server(17) as server, database(server) as state:
        this = project(SLOW)
        this.state_url = state.url
        child = this.start()
        child.await_text(" units")
        done = "SELECT count(*) FROM chunk_task WHERE status = 'completed'"
        while this.query(done)[0][0] < 3:
            time.sleep(0.05)
        server.restart("immediate")
        assert child.wait() == 0, child.log
        Reader(this).check_exact(orders, union=False)
        assert this.query("SELECT count(*) FROM chunk_run") == [(1,)]
