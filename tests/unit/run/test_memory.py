"""Which allocator Arrow takes, told by processes that import it afresh."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the choice is made on Linux only")

#: The pool of Arrow's own code is what pyarrow has before anybody set another one.
_ASK = "import {first}, rivet_dagster.engine, pyarrow as pa; print(pa.default_memory_pool().backend_name)"
_RUN = "import pyarrow; from rivet_dagster.engine.memory import prepare_memory as p; p(); " + _ASK


def pool(program: str, first: str = "sys", **env: str) -> str:
    clean = {k: v for k, v in os.environ.items() if k != "ARROW_DEFAULT_MEMORY_POOL"}
    done = subprocess.run(
        [sys.executable, "-c", program.format(first=first)],
        env={**clean, **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_arrow_itself_takes_the_lean_pool() -> None:
    assert pool(_ASK) == "jemalloc"


def test_a_process_that_had_arrow_before_takes_it_for_runs() -> None:
    assert pool(_ASK, first="pyarrow") == "mimalloc"
    assert pool(_RUN) == "jemalloc"


@pytest.mark.parametrize("program", [_ASK, _RUN])
def test_a_choice_in_the_environment_stands(program: str) -> None:
    assert pool(program, ARROW_DEFAULT_MEMORY_POOL="system") == "system"
