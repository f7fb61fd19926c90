"""A request to S3 ends in time whatever its server does, over plain HTTP and over TLS."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rivet_dagster.config.destination import DestinationConfig
from rivet_dagster.engine.destinations import s3 as module
from rivet_dagster.engine.destinations.bucket import retried
from rivet_dagster.engine.destinations.s3 import S3Bucket
from rivet_dagster.engine.errors import TransientError
from tests.services.certificates import write_certificates
from tests.services.fault_proxy import FaultProxy, fault_proxy
from tests.services.seaweed import BUCKET, S3Server

#: More than the sockets between the client and the server hold.
LARGE = bytes(48 << 20)


class Rig:
    def __init__(self, bucket: S3Bucket, proxy: FaultProxy) -> None:
        self.bucket = bucket
        self.proxy = proxy

    def put(self, data: bytes, patience: float = 30) -> str:
        """A well server may need more than the second that it has here, too."""
        return retried(lambda: self._put(data), patience)

    def _put(self, data: bytes) -> str:
        key = f"deadline/{secrets.token_hex(8)}"
        self.bucket.put(key, data, hashlib.md5(data).digest(), None)
        return key


@pytest.fixture(params=["http", "https"])
def rig(
    request: pytest.FixtureRequest, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Rig]:
    tls = None
    if request.param == "https":
        monkeypatch.setenv("AWS_CA_BUNDLE", str(write_certificates(tmp_path, ["127.0.0.1"])))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    monkeypatch.setenv("RIVET_DEST_TIMEOUT_S", "1")
    with fault_proxy(s3.port, tls) as proxy:
        there = DestinationConfig(**{**s3.destination(BUCKET), "endpoint": proxy.url})
        with contextlib.closing(S3Bucket(there)) as bucket:
            yield Rig(bucket, proxy)


@contextlib.contextmanager
def given_up(within_s: float) -> Iterator[None]:
    began = time.monotonic()
    with pytest.raises(TransientError) as caught:
        yield
    assert caught.value.code == "RIVET_DEST_UNAVAILABLE"
    assert time.monotonic() - began < within_s


def test_answers_that_come_byte_by_byte(rig: Rig) -> None:
    key = rig.put(b"data")
    rig.proxy.mode = "slow"
    with given_up(3):
        rig.bucket.head(key)
    with given_up(3):
        rig.bucket.read(key, 0, 4)
    with given_up(3):
        list(rig.bucket.list("deadline/"))
    rig.proxy.mode = "pass"
    assert retried(lambda: rig.bucket.read(key, 0, 10), 30) == b"data"


def test_a_server_that_takes_bytes_ever_more_slowly(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.put(b"data")
    rig.proxy.mode = "slow"
    with monkeypatch.context() as patch, given_up(6):
        patch.setattr(module, "deadline_s", lambda size: 3.0)
        rig.put(LARGE, 0)
    rig.proxy.mode = "pass"
    rig.put(LARGE)


def test_a_server_that_takes_no_more_bytes(rig: Rig) -> None:
    """Noticed by its silence, long before the time for the whole request is over."""
    rig.put(b"data")
    rig.proxy.mode = "silent"
    with given_up(10):
        rig.put(LARGE, 0)
    rig.proxy.mode = "pass"
    rig.put(LARGE)
