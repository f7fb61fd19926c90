"""A prefix on each kind of store in turn."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rivet_dagster.config.destination import DestinationConfig
from rivet_dagster.engine.destinations.objects import ObjectStore
from rivet_dagster.engine.destinations.place import open_objects, prefix_of
from rivet_dagster.engine.run.fencing import FencedStore
from tests.services.azurite import AzureServer
from tests.services.fake_gcs import GcsServer
from tests.services.seaweed import BUCKET, S3Server

#: What keys may hold and URLs must escape.
AWKWARD = "wéird %25 +=&?#/it's"


@dataclass(frozen=True, slots=True)
class Place:
    """A prefix of its own for one test. server: of any kind."""

    server: S3Server | GcsServer | AzureServer
    prefix: str

    def destination(self, **keys: Any) -> DestinationConfig:
        return DestinationConfig(**{**self.server.destination(BUCKET, self.prefix), **keys})

    @contextlib.contextmanager
    def store(self, *, below: str = "", **keys: Any) -> Iterator[ObjectStore]:
        there = self.destination(**keys)
        with contextlib.closing(open_objects(there, prefix_of(there, "o") + below)) as store:
            yield store

    def stage(self, store: ObjectStore, data: bytes, name: str = "x") -> Path:
        path = store.staging_path(name)
        path.write_bytes(data)
        return path


def held(store: ObjectStore) -> FencedStore:
    """The store as a run whose lease is never lost has it."""
    return FencedStore(store, "o", lambda: None)


@pytest.fixture(params=["s3", "gcs", "azure"])
def place(request: pytest.FixtureRequest) -> Place:
    server = request.getfixturevalue(request.param)
    return Place(server, f"{AWKWARD}/{secrets.token_hex(4)}")
