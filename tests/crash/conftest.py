"""Tables that all crash tests read, and projects over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.crash.kit import Mode, Project, create_table, table_rows
from tests.services.postgres import TestDatabase, TestServer, database


@pytest.fixture(scope="session")
def shop(pg: TestServer) -> Iterator[TestDatabase]:
    """``orders``, and ``orders_before``: other values and fewer rows."""
    with database(pg) as db:
        create_table(db, "orders")
        create_table(db, "orders_before", seed=1, rows=4000)
        yield db


@pytest.fixture(scope="session")
def orders(shop: TestDatabase) -> pa.Table:
    return table_rows(shop, "orders")


@pytest.fixture(scope="session")
def orders_before(shop: TestDatabase) -> pa.Table:
    return table_rows(shop, "orders_before")


@pytest.fixture
def project(tmp_path: Path, shop: TestDatabase) -> Callable[..., Project]:
    """A project of a mode in the test's own folder."""

    def make(mode: Mode, table: str = "orders") -> Project:
        return Project(tmp_path, shop, mode, table)

    return make
