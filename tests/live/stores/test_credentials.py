"""Every way to name credentials, each against a server that checks them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

from rivet_dagster.config import load_config
from rivet_dagster.config.destination import DestinationConfig
from rivet_dagster.engine import doctor
from rivet_dagster.engine.destinations.objects import ObjectStore
from rivet_dagster.engine.destinations.place import open_objects, prefix_of
from rivet_dagster.engine.destinations.s3 import S3Bucket
from rivet_dagster.engine.errors import RivetError
from rivet_dagster.engine.run.engine import Engine
from tests.live.stores.conftest import held
from tests.services.azurite import ACCOUNT, KEY, AzureServer
from tests.services.fake_gcs import GcsServer
from tests.services.rivet_cli import write_config
from tests.services.seaweed import BUCKET, KEY_ENV, SECRET_ENV, S3Server


@contextlib.contextmanager
def opened(**keys: Any) -> Iterator[ObjectStore]:
    there = DestinationConfig(**{"bucket": BUCKET, "prefix": "credentials", **keys})
    with contextlib.closing(open_objects(there, prefix_of(there, "o"))) as store:
        yield store


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment without credentials of any kind."""
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("RIVET_DEST_PATIENCE_S", "0")
    return monkeypatch


def test_the_usual_chain(bare: pytest.MonkeyPatch, s3: S3Server) -> None:
    bare.setenv("AWS_ACCESS_KEY_ID", s3.key)
    bare.setenv("AWS_SECRET_ACCESS_KEY", s3.secret)
    with opened(type="s3", endpoint=s3.url) as store:
        store.probe()


def test_a_profile(bare: pytest.MonkeyPatch, s3: S3Server, tmp_path: Path) -> None:
    text = f"[shop]\naws_access_key_id = {s3.key}\naws_secret_access_key = {s3.secret}\n"
    (tmp_path / "credentials").write_text(text)
    with opened(type="s3", endpoint=s3.url, aws_profile="shop") as store:
        store.probe()
    with pytest.raises(RivetError) as caught, opened(type="s3", endpoint=s3.url, aws_profile="gone") as store:
        store.probe()
    assert caught.value.code == "RIVET_DEST_AUTH_FAILED"


def test_named_variables_win_over_the_chain(bare: pytest.MonkeyPatch, s3: S3Server) -> None:
    bare.setenv("AWS_ACCESS_KEY_ID", "wrong")
    bare.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    names: dict[str, Any] = {"access_key_env": KEY_ENV, "secret_key_env": SECRET_ENV}
    with opened(type="s3", endpoint=s3.url, **names) as store:
        store.probe()
    with pytest.raises(RivetError) as caught, opened(type="s3", endpoint=s3.url) as store:
        store.probe()
    assert caught.value.code == "RIVET_DEST_AUTH_FAILED"


def test_none_at_all(bare: pytest.MonkeyPatch, s3: S3Server) -> None:
    with pytest.raises(RivetError) as caught, opened(type="s3", endpoint=s3.url) as store:
        store.probe()
    assert caught.value.code == "RIVET_DEST_AUTH_FAILED"


def test_an_anonymous_one_signs_nothing(bare: pytest.MonkeyPatch, s3: S3Server) -> None:
    bare.setenv("AWS_ACCESS_KEY_ID", s3.key)
    bare.setenv("AWS_SECRET_ACCESS_KEY", s3.secret)
    with (
        pytest.raises(RivetError) as caught,
        opened(type="s3", endpoint=s3.url, allow_anonymous=True) as store,
    ):
        store.probe()
    assert caught.value.code in {"RIVET_DEST_NOT_WRITABLE", "RIVET_DEST_AUTH_FAILED"}


def test_no_variable_sends_credentials_elsewhere(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    bare.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    bucket = S3Bucket(DestinationConfig(type="s3", bucket="b", region="eu-central-1"))
    with contextlib.closing(bucket):
        assert bucket._client.meta.endpoint_url == "https://s3.eu-central-1.amazonaws.com"


LOGGING = """
import contextlib, logging, sys
logging.basicConfig(level=logging.DEBUG)
from rivet_dagster.engine.errors import RivetError
from tests.live.stores.test_credentials import KEY_ENV, SECRET_ENV, opened
for more in ({}, {"session_token_env": "TEST_TOKEN"}):
    names = {"access_key_env": KEY_ENV, "secret_key_env": SECRET_ENV, **more}
    with contextlib.suppress(RivetError), opened(type="s3", endpoint=sys.argv[1], **names) as store:
        store.probe()
"""


def test_the_log_tells_no_secret(bare: pytest.MonkeyPatch, s3: S3Server) -> None:
    """Not even that of a process which logs everything. It is one of its own: others set up loggers, too."""
    bare.setenv("TEST_TOKEN", "a-session-token")
    ended = subprocess.run(
        [sys.executable, "-c", LOGGING, s3.url], capture_output=True, text=True, check=True
    )
    assert "DEBUG:urllib3" in ended.stderr
    said = ended.stdout + ended.stderr
    assert not [secret for secret in (s3.secret, "a-session-token", "Signature=") if secret in said]


def test_keys_of_one_kind_alone(bare: pytest.MonkeyPatch, s3: S3Server) -> None:
    with pytest.raises(RivetError) as caught, opened(type="s3", endpoint=s3.url, access_key_env=KEY_ENV):
        pass
    assert caught.value.code == "RIVET_DEST_AUTH_FAILED"


def test_a_sas_token(bare: pytest.MonkeyPatch, azure: AzureServer) -> None:
    token = generate_account_sas(
        ACCOUNT,
        KEY,
        ResourceTypes(container=True, object=True),
        AccountSasPermissions(read=True, write=True, delete=True, list=True, create=True),
        datetime.now(UTC) + timedelta(hours=2),
    )
    there: dict[str, Any] = {
        "type": "azure",
        "account_name": ACCOUNT,
        "endpoint": azure.url,
        "sas_token_env": "TEST_SAS",
    }
    for text in (token, f"?{token}"):
        bare.setenv("TEST_SAS", text)
        with opened(**there) as store:
            store.probe()
            held(store).put_bytes("x", b"1")
            store.move("x", "_quarantine/x")
            store.delete("_quarantine/x")
    bare.setenv("TEST_SAS", token.replace("sig=", "sig=x"))
    with pytest.raises(RivetError) as caught, opened(**there) as store:
        store.probe()
    assert caught.value.code == "RIVET_DEST_AUTH_FAILED"
    assert "sig=" not in f"{caught.value} {caught.value.__cause__}"


def test_the_doctor_says_that_a_token_ends_soon(
    bare: pytest.MonkeyPatch, azure: AzureServer, tmp_path: Path
) -> None:
    for minutes, soon in ((20, True), (90, False)):
        token = generate_account_sas(
            ACCOUNT,
            KEY,
            ResourceTypes(container=True, object=True),
            AccountSasPermissions(read=True, write=True, delete=True, list=True, create=True),
            datetime.now(UTC) + timedelta(minutes=minutes),
        )
        bare.setenv("TEST_SAS", token)
        there = {"type": "azure", "account_name": ACCOUNT, "endpoint": azure.url, "sas_token_env": "TEST_SAS"}
        export = {"name": "o", "table": "t", "format": "csv", "destination": {**there, "bucket": BUCKET}}
        export["mode"] = "full"
        config = load_config(write_config(tmp_path / "rivet.yaml", "postgresql://u:p@localhost/x", [export]))
        with Engine(config) as engine:
            *warned, last = doctor.destinations(engine, 0)
        assert last.status == "ok"
        said = [check.detail for check in warned if check.status == "warn"]
        assert said == (["the token ends in 19 minutes"] if soon else [])


def test_the_emulators_account(bare: pytest.MonkeyPatch, azure: AzureServer) -> None:
    with opened(type="azure", account_name=ACCOUNT, endpoint=azure.url, allow_anonymous=True) as store:
        store.probe()


def test_google_without_credentials(bare: pytest.MonkeyPatch, gcs: GcsServer, tmp_path: Path) -> None:
    """Nothing is tried without them: no emulator is asked, no anonymous request is sent."""
    bare.setenv("HOME", str(tmp_path))
    bare.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    bare.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "gone.json"))
    bare.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    with pytest.raises(RivetError) as caught, opened(type="gcs") as store:
        store.probe()
    assert caught.value.code == "RIVET_DEST_AUTH_FAILED"
