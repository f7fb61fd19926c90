"""The command line over a database of the test, in this process, from a folder of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from rivet_dagster.engine import redact
from tests.live.postgres.rig import run_cli
from tests.services.postgres import TestDatabase

URL_ENV: Final = "DATABASE_URL"


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What one line of JSON on stdout says."""
        return json.loads(self.out)

    @property
    def failure(self) -> dict[str, Any]:
        """The last line of stderr, which ``--json-errors`` made."""
        return dict(json.loads(self.err.splitlines()[-1]))


@dataclass(slots=True)
class Shell:
    """Calls ``rivet-dagster`` in ``root``. Nothing that a test registered as secret is known before."""

    db: TestDatabase
    root: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *args: str) -> Done:
        code = run_cli(self.monkeypatch, *args)
        out, err = self.capsys.readouterr()
        return Done(code, out, err)

    def ok(self, *args: str) -> str:
        done = self(*args)
        assert done.code == 0, done.err
        return done.out

    @property
    def config(self) -> Path:
        return self.root / "rivet.yaml"

    def write(self, exports: str, source: str = "tls: {mode: disable}") -> None:
        head = f"source:\n  type: postgres\n  url_env: {URL_ENV}\n  {source}\nexports:\n"
        self.config.write_text(head + exports)


@pytest.fixture
def sh(
    db: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(URL_ENV, db.url)
    monkeypatch.delenv("RIVET_CONFIG", raising=False)
    monkeypatch.setattr(redact, "_secrets", set())
    return Shell(db, tmp_path, monkeypatch, capsys)
