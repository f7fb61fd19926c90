"""Azurite, Microsoft's emulator of Azure Blob Storage; ``make setup`` installs it with npm."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from azure.storage.blob.aio import BlobServiceClient

from rivet_dagster.demo.install import ServerNotInstalledError
from rivet_dagster.demo.process import bound_to_parent
from rivet_dagster.demo.server import free_port
from tests.services.fake_gcs import await_port
from tests.services.postgres import work_folder
from tests.services.seaweed import BUCKET

ACCOUNT: Final = "devstoreaccount1"
#: Public: that of every emulator.
KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
KEY_ENV: Final = "AZURE_TEST_KEY"
_PROGRAM: Final = "node_modules/.bin/azurite-blob"
_READY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class AzureServer:
    kind = "azure"
    secret = KEY
    secret_env = KEY_ENV
    wrong_secret = "d3Jvbmc="

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{ACCOUNT}"

    def destination(self, bucket: str, prefix: str = "", **keys: Any) -> dict[str, Any]:
        """A ``destination:`` of rivet.yaml."""
        there = {"type": "azure", "bucket": bucket, "account_name": ACCOUNT, "endpoint": self.url, **keys}
        if not {"sas_token_env", "allow_anonymous"} & keys.keys():
            there["account_key_env"] = KEY_ENV
        return {**there, "prefix": prefix} if prefix else there

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """The secret is in this process's environment during the block."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(KEY_ENV, KEY)
            yield


@contextlib.contextmanager
def azurite() -> Iterator[AzureServer]:
    """A running server with its container. Raises ServerNotInstalledError. Call it from the main thread."""
    program = _program()
    server = AzureServer(free_port())
    with work_folder() as work:
        flags = {"blobHost": "127.0.0.1", "blobPort": server.port, "location": work / "data"}
        with (work / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    *program,
                    "--silent",
                    "--skipApiVersionCheck",
                    "--loose",
                    "--disableTelemetry",
                    *(str(word) for name, value in flags.items() for word in (f"--{name}", value)),
                ],
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=bound_to_parent(signal.SIGKILL),  # noqa: PLW1509 - the hook only calls prctl
            )
        try:
            await_port(process, server.port, work / "log", _READY_S)
            asyncio.run(_make_container(server))
            yield server
        finally:
            process.kill()
            process.wait()


async def _make_container(server: AzureServer) -> None:
    account = {"account_name": ACCOUNT, "account_key": KEY}
    async with BlobServiceClient(server.url, credential=account) as client:
        await client.create_container(BUCKET)


def _program() -> list[str]:
    """What ``make setup`` installed, or what RIVET_AZURITE names."""
    folders = [os.environ.get("RIVET_AZURITE", ""), f"{sys.prefix}/npm"]
    found = [path for path in (Path(folder) / _PROGRAM for folder in folders if folder) if path.exists()]
    node = shutil.which("node") or shutil.which("node", path=f"{sys.prefix}/bin")
    if not found or node is None:
        raise ServerNotInstalledError("there is no azurite")
    return [node, str(found[0].resolve())]
