"""The measurement of types runs through every type that it lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import types
from tests.services.postgres import TestDatabase


def test_every_type_is_measured(
    db: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BENCH_DSN", db.url)
    assert types.main(["--rows", "200", "--rounds", "1", "--work", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines] == [f"| {kind.label}" for kind in types.KINDS]
