"""Every mode on each server version that is tested: 15, 17 and 18."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.live.postgres.rig import Rig, source_rows
from tests.services.postgres import TestServer, database

ROWS: Final = 20_000
TABLE: Final = f"""
CREATE TABLE things AS
SELECT g::bigint AS id, md5(g::text)::uuid AS uid, (g % 97)::int AS grade,
       round(g / 7.0, 2)::numeric(12, 2) AS price,
       timestamptz '2026-01-01' + g * interval '1 second' AS changed, 'Straße ' || g AS note,
       jsonb_build_object('n', g) AS doc, CASE WHEN g % 5 = 0 THEN NULL ELSE g * 0.5 END::float8 AS share
FROM generate_series(1, {ROWS}) g
"""
READ: Final = "id, uid::text, grade, price, changed, note, doc->>'n', share"

MODES: Final[dict[str, dict[str, Any]]] = {
    "full": {"mode": "full"},
    "range": {"mode": "chunked", "chunk_column": "id", "chunk_size": 3_000},
    "count": {"mode": "chunked", "chunk_column": "id", "chunk_count": 7},
    "key": {"mode": "chunked", "chunk_by_key": "uid", "chunk_size": 3_000},
    "incremental": {"mode": "incremental", "cursor_column": "changed"},
}


@pytest.fixture(params=[15, 17, 18])
def versioned(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    server: TestServer = request.getfixturevalue(f"pg{request.param}")
    with database(server) as db:
        db.execute(
            TABLE,
            "ALTER TABLE things ADD PRIMARY KEY (id), ALTER uid SET NOT NULL, ADD UNIQUE (uid)",
            "ANALYZE things",
        )
        made = Rig(db, tmp_path)
        yield made
        made.close()
        made.assert_no_connections()


@pytest.mark.parametrize("mode", MODES)
def test_the_files_hold_the_table(versioned: Rig, mode: str) -> None:
    versioned.export(**MODES[mode], parallel=2)
    outcome = versioned.run()
    assert outcome.rows == ROWS
    assert versioned.read(READ) == source_rows(versioned.db, READ)
    assert versioned.engine.validate("things").passed
    assert versioned.engine.reconcile("things").status == "match"


def test_incremental_goes_on_from_the_watermark(versioned: Rig) -> None:
    versioned.export(**MODES["incremental"])
    versioned.run()
    versioned.db.execute(
        "INSERT INTO things SELECT id + 100000, gen_random_uuid(), grade, price, changed + interval '1 year',"
        " note, doc, share FROM things WHERE id <= 50"
    )
    assert versioned.run().rows == 50
    assert versioned.read(READ) == source_rows(versioned.db, READ)
    assert versioned.run().status == "skipped"
