"""The state on a PostgreSQL of production: TLS, a pooler in front, a role with few rights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from rivet_dagster.demo.install import ServerNotInstalledError
from rivet_dagster.engine.errors import EnvironmentFault, RivetError
from rivet_dagster.engine.state.location import StateLocation
from rivet_dagster.engine.state.models import RunFinish
from rivet_dagster.engine.state.store import StateStore
from tests.conftest import without
from tests.live.state.helpers import begin, commit_all
from tests.services.certificates import write_certificates
from tests.services.pgbouncer import pgbouncer
from tests.services.postgres import TestDatabase, TestServer, database, postgres_server

#: docs/state.md tells people to run these; the owner of the database migrates, this role runs.
ROLE = (
    "GRANT USAGE ON SCHEMA public TO {role}",
    "GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO {role}",
    "GRANT DELETE ON export_state, export_progression TO {role}",
    "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}",
)


@pytest.fixture(scope="module")
def tls_server() -> Iterator[TestServer]:
    with postgres_server(17, tls=True) as server:
        yield server


def whole_run(store: StateStore) -> None:
    lease = begin(store, 3)
    assert commit_all(store, lease) == 3
    store.finish_run("r1", lease, RunFinish("completed"))
    store.release(lease)
    assert store.latest_run("orders") is not None


def test_the_certificate_is_checked(tls_server: TestServer, tmp_path: Path) -> None:
    with database(tls_server) as db:
        url = f"{db.url.partition('?')[0]}?sslmode=verify-full&sslrootcert={quote(str(tls_server.ca_file))}"
        with StateStore.open(StateLocation.parse(url, tmp_path)) as store:
            with store._db.single() as connection:
                assert connection.scalar("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
            whole_run(store)


def test_a_certificate_of_another_authority_is_refused(tls_server: TestServer, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    other = write_certificates(tmp_path / "made", ("localhost",))
    with database(tls_server) as db:
        url = f"{db.url.partition('?')[0]}?sslmode=verify-full&sslrootcert={quote(str(other))}"
        with pytest.raises(RivetError) as caught:
            StateStore.open(StateLocation.parse(url, tmp_path))
    assert caught.value.code.startswith("RIVET_STATE_")


def test_a_transaction_pooler_may_stand_before_it(db: TestDatabase, tmp_path: Path) -> None:
    try:
        with (
            pgbouncer(db, pool_size=2) as pooler,
            StateStore.open(StateLocation.parse(pooler.url, tmp_path)) as store,
        ):
            whole_run(store)
    except ServerNotInstalledError:
        without("pgbouncer")


def test_a_role_that_runs_needs_no_right_to_migrate(db: TestDatabase, tmp_path: Path) -> None:
    role = f"runs_{db.name}"
    StateStore.open(StateLocation.parse(db.url, tmp_path)).close()
    db.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'", *(grant.format(role=role) for grant in ROLE))
    try:
        url = f"postgresql://{role}:x@127.0.0.1:{db.server.port}/{db.name}"
        with StateStore.open(StateLocation.parse(url, tmp_path)) as store:
            whole_run(store)
        with database(db.server) as empty:
            empty.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
            url = f"postgresql://{role}:x@127.0.0.1:{db.server.port}/{empty.name}"
            with pytest.raises(EnvironmentFault) as caught:
                StateStore.open(StateLocation.parse(url, tmp_path))
            assert caught.value.code == "RIVET_STATE_NOT_WRITABLE"
    finally:
        db.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
