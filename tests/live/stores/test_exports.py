"""Whole exports to each kind of store, and what is asked about them afterwards."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rivet_dagster.engine import doctor
from rivet_dagster.engine.errors import RivetError
from rivet_dagster.engine.verify.repair import plan_repair
from tests.live.postgres.rig import run_cli
from tests.live.stores.conftest import Place, held
from tests.services.exporting import Exporter
from tests.services.fake_gcs import GcsServer
from tests.services.postgres import TestDatabase

ROWS = 3000
CHUNKED = {"mode": "chunked", "chunk_column": "id", "chunk_size": 1000}
MODES: list[dict[str, Any]] = [
    {"mode": "full"},
    CHUNKED,
    {"mode": "incremental", "cursor_column": "id"},
    {"mode": "full", "format": "csv"},
    {"mode": "full", "partition_by": "day"},
]


@pytest.fixture
def exporter(db: TestDatabase, tmp_path: Path) -> Exporter:
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, day date, note text)",
        f"INSERT INTO t SELECT n, date '2024-01-01' + n % 3, md5(n::text) FROM generate_series(1, {ROWS}) n",
        "ANALYZE t",
    )
    return Exporter(db, tmp_path)


class Read:
    """The prefix as a reader sees it who knows the manifest."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def bytes(self, name: str) -> bytes:
        with self.place.store() as store:
            data = store.read_bytes(name, 1 << 26)
        assert data is not None, name
        return data

    @property
    def names(self) -> set[str]:
        with self.place.store() as store:
            return {item.name for item in store.list()}

    @property
    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.bytes("manifest.json"))
        return found

    def ids(self) -> list[int]:
        """Of all runs, in order."""
        found: list[int] = []
        manifests = [n for n in self.names if n.startswith("manifest-") and "/" not in n]
        for part in (p for n in manifests for p in json.loads(self.bytes(n))["parts"]):
            data = self.bytes(part["path"])
            if part["path"].endswith(".csv"):
                found.extend(int(line.split(b",")[0]) for line in data.splitlines()[1:])
            else:
                found.extend(pq.ParquetFile(pa.BufferReader(data)).read().column("id").to_pylist())
        return sorted(found)


def keys_for(place: Place, **keys: Any) -> dict[str, Any]:
    there = place.server.destination("exports", place.prefix)
    if "partition_by" in keys:
        there["prefix"] += "/{partition}"
    return {"destination": there, **keys}


@pytest.mark.parametrize("keys", MODES, ids=lambda k: "-".join([k["mode"], *list(k)[1:2]]))
def test_an_export_of_each_mode(place: Place, exporter: Exporter, keys: dict[str, Any]) -> None:
    done = exporter.run(**keys_for(place, **keys))
    assert done.rows == ROWS
    read = Read(place)
    assert read.ids() == list(range(1, ROWS + 1))
    manifest = read.manifest
    assert manifest["destination"]["kind"] == place.server.kind
    assert manifest["destination"]["uri"] == done.prefix_uri
    assert done.manifest_uri == f"{done.prefix_uri}/manifest-{done.run_id}.json"
    for part in manifest["parts"]:
        digest = hashlib.md5(read.bytes(part["path"])).digest()
        assert part["content_md5"] == base64.b64encode(digest).decode()
    listed = {"manifest.json", "_SUCCESS", f"manifest-{done.run_id}.json"}
    parts = {p["path"] for p in manifest["parts"]}
    assert {n for n in read.names if "=" not in n or n in parts} == listed | parts
    with exporter.engine(**keys_for(place, **keys)) as engine:
        for depth in ("light", "sample", "full"):
            report = engine.validate("o", depth=depth)
            assert report.passed, report.findings
        assert report.parts_md5_verified == len(parts)
        assert engine.reconcile("o").status == "match"


def test_a_second_run_quarantines_the_first(place: Place, exporter: Exporter) -> None:
    keys = keys_for(place, **CHUNKED)
    first = exporter.run(**keys)
    before = {p["path"] for p in Read(place).manifest["parts"]}
    exporter.db.execute("DELETE FROM t WHERE id > 2000")
    exporter.run(**keys)
    assert not before & Read(place).names
    with place.store() as store:
        aside = {item.name for item in store.list_quarantine()}
    assert aside == {f"_quarantine/{first.run_id}/{name}" for name in before}


def test_damaged_parts_are_found_by_a_listing_alone(
    place: Place, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_for(place, **CHUNKED)
    exporter.run(**keys)
    part = Read(place).manifest["parts"][1]
    damaged = bytearray(Read(place).bytes(part["path"]))
    damaged[100] ^= 1
    with place.store() as store:
        held(store).put_bytes(part["path"], bytes(damaged))
    with exporter.engine(**keys) as engine:
        asked = engine.store(engine.export("o"), engine.prefix(engine.export("o")))
        monkeypatch.setattr(asked, "open_input", None)  # nothing of the parts is downloaded
        report = engine.validate("o", depth="sample")
        assert [f.kind for f in report.findings] == ["part_checksum_mismatch"]
        assert (report.parts_failed, report.parts_md5_verified) == (1, len(Read(place).manifest["parts"]) - 1)


def test_rows_that_changed_are_reconciled_and_repaired(place: Place, exporter: Exporter) -> None:
    keys = keys_for(place, **CHUNKED)
    exporter.run(**keys)
    exporter.db.execute("DELETE FROM t WHERE id = 1500")
    with exporter.engine(**keys) as engine:
        wanted = plan_repair(engine.reconcile("o"))
        assert len(wanted.partitions) == 1
        with engine.session("o", holder="test") as session:
            session.plan(only=wanted.partitions, repair=True)
            assert len(list(session.execute())) >= 1
            session.finalize()
        assert engine.reconcile("o").status == "match"
        assert engine.validate("o").passed


def test_a_run_that_stopped_is_resumed(place: Place, exporter: Exporter) -> None:
    keys = keys_for(place, **CHUNKED, chunk_checkpoint=True)
    run_id = exporter.stopped(1, **keys)
    assert "_SUCCESS" not in Read(place).names
    assert exporter.run(**keys).run_id == run_id
    assert Read(place).ids() == list(range(1, ROWS + 1))


def test_verify_content_reads_back(place: Place, exporter: Exporter) -> None:
    assert exporter.run(**keys_for(place, **CHUNKED, verify="content")).rows == ROWS


def test_the_doctor_writes_to_it(place: Place, exporter: Exporter) -> None:
    with exporter.engine(**keys_for(place)) as engine:
        (check,) = doctor.destinations(engine, 0)
        assert (check.status, check.detail) == ("ok", "1 prefixes can be written")
    assert Read(place).names == set()


def test_the_doctor_names_secrets_that_are_not_set_or_wrong(
    place: Place, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(place.server, GcsServer):
        pytest.skip("its emulator takes everybody")
    variable = place.server.secret_env
    wanted = {"": "RIVET_CONFIG_ENV_UNSET", place.server.wrong_secret: "RIVET_DEST_AUTH_FAILED"}
    for value, code in wanted.items():
        monkeypatch.setenv(variable, value)
        with exporter.engine(**keys_for(place)) as engine:
            (check,) = doctor.destinations(engine, 0)
            assert check.status == "fail"
            assert check.as_json()["code"] == code, check
        with pytest.raises(RivetError) as caught:
            exporter.run(**keys_for(place))
        assert caught.value.code == code
        assert not value or value not in str(caught.value)


def test_the_command_line(
    place: Place, exporter: Exporter, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with exporter.engine(**keys_for(place, **CHUNKED)):
        pass
    config = str(exporter.root / "rivet.yaml")
    for verb in ("doctor", "run", "validate", "reconcile"):
        assert run_cli(monkeypatch, verb, "-c", config) == 0, capsys.readouterr()
    said = "".join(capsys.readouterr())
    assert not place.server.secret or place.server.secret not in said
    assert Read(place).ids() == list(range(1, ROWS + 1))
